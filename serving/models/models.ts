/** The models of this process: what every door asks which version answers a request. */
import { CubeError } from '../../lib/core/errors.ts';
import type { LoadedBundle } from './bundle.ts';
import type { BundleWatcher } from './bundle-watcher.ts';
import type { WatcherStatus } from './watcher-status.ts';

/** Which version of a model: by name, or by the label (a channel) that stands for it; neither: the first channel's. */
export interface Which {
  readonly version?: string;
  readonly label?: string;
}

export interface Models {
  /**
   * The version that answers. Who uses it enters it before the next await: a version in use is never retired.
   * @throws CubeError NOT_FOUND naming what is served, NOT_READY saying why nothing is
   */
  find(model: string, which?: Which): LoadedBundle;

  /** The one model's version, for doors that name no model. @throws CubeError INVALID_ARGUMENT naming the models when several */
  only(): LoadedBundle;

  /** One for each model, in the order of the configuration. */
  status(): readonly WatcherStatus[];

  /** Every version that is loaded whole. */
  held(): readonly LoadedBundle[];

  /** Reads what is wanted of a model now, and serves it. @throws CubeError NOT_FOUND, NOT_READY saying why it cannot be served */
  load(model: string): Promise<void>;

  /** Lets a model go once its requests are done; it stays unloaded until `load`. @throws CubeError NOT_FOUND */
  unload(model: string): Promise<void>;
}

export class ModelRegistry implements Models {
  readonly #watchers: ReadonlyMap<string, BundleWatcher>;

  /** @param watchers by the names that requests use; at least one */
  constructor(watchers: ReadonlyMap<string, BundleWatcher>) {
    this.#watchers = watchers;
  }

  start(): void {
    for (const watcher of this.#watchers.values()) watcher.start();
  }

  find(model: string, { version, label }: Which = {}): LoadedBundle {
    const watcher = this.#require(model);
    if (version !== undefined && label !== undefined) {
      throw new CubeError('INVALID_ARGUMENT', 'give a version or a label, not both');
    }
    if (version !== undefined) return watcher.versioned(version);
    return label === undefined ? watcher.current : watcher.labelled(label);
  }

  only(): LoadedBundle {
    const [first, ...others] = this.#watchers.values();
    if (others.length === 0) return first!.current;
    const names = [...this.#watchers.keys()].join(', ');
    throw new CubeError('INVALID_ARGUMENT', `several models are served here, name one: ${names}`);
  }

  status(): readonly WatcherStatus[] {
    return [...this.#watchers.values()].map((watcher) => watcher.status);
  }

  held(): readonly LoadedBundle[] {
    return [...this.#watchers.values()].flatMap((watcher) => watcher.held);
  }

  async load(model: string): Promise<void> {
    await this.#require(model).load();
  }

  async unload(model: string): Promise<void> {
    await this.#require(model).unload();
  }

  async stop(): Promise<void> {
    await Promise.all([...this.#watchers.values()].map((watcher) => watcher.stop()));
  }

  #require(model: string): BundleWatcher {
    const watcher = this.#watchers.get(model);
    if (watcher !== undefined) return watcher;
    const names = [...this.#watchers.keys()].join(', ');
    throw new CubeError(
      'NOT_FOUND',
      `model ${JSON.stringify(model.slice(0, 128))} is not served here (served: ${names})`,
    );
  }
}
