/** The models of this process. Every protocol asks here for the version that serves a request. */

import { CubeError } from '../../lib/core/errors.ts';
import { quoteInput } from '../../lib/core/shown-input.ts';
import { LoadedBundle } from '../engine/loaded-bundle.ts';
import type { LoadedVersion } from '../engine/loaded-version.ts';
import type { TensorModel } from '../engine/tensor-model.ts';
import type { ModelRepository } from './model-repository.ts';
import type { RepositoryModel } from './repository-model.ts';
import type { ModelStatus, VersionManager } from './version-manager.ts';

/**
 * Selects a version by name, or by a label (a channel). Without either, the first channel's version
 * is used.
 */
export interface VersionSelector {
  readonly version?: string;
  readonly label?: string;
}

export interface Models {
  /**
   * The version that serves a request. The caller must acquire it before its next await: a version
   * in use is never retired.
   * @throws CubeError NOT_FOUND naming the served models or versions, NOT_READY with the reason
   */
  find(model: string, selector?: VersionSelector): LoadedVersion;

  /**
   * The only model's version, for requests that name no model. @throws CubeError INVALID_ARGUMENT
   * when there are several
   */
  findOnly(): LoadedVersion;

  /** The name of the only model. @throws CubeError INVALID_ARGUMENT when there are several */
  findOnlyName(): string;

  /** The name by which requests call the model of a version that `find` or `findOnly` returned. */
  getName(loaded: LoadedVersion): string;

  /** The status of each model, in the order of the configuration. */
  status(): readonly ModelStatus[];

  /** Every loaded version of every model. */
  loadedVersions(): readonly LoadedVersion[];

  /**
   * Reads the model's source now and serves the desired version. @throws CubeError NOT_FOUND,
   * NOT_READY with the reason
   */
  load(model: string): Promise<void>;

  /**
   * Releases a model after its requests finish; it stays unloaded until `load`.
   * @param withDependents also unloads the steps of an ensemble, as Triton's `unload_dependents`
   * @throws CubeError NOT_FOUND
   */
  unload(model: string, withDependents?: boolean): Promise<void>;
}

type AnyManager = VersionManager | RepositoryModel<TensorModel>;

export class ModelRegistry implements Models {
  readonly #managers: ReadonlyMap<string, VersionManager>;
  readonly #repository: ModelRepository<TensorModel> | undefined;
  /** Several models may serve one bundle, each with loaded versions of its own. */
  readonly #names = new WeakMap<LoadedVersion, string>();

  /**
   * @param managers by the model names that requests use
   * @param repository further models, which may come and go; names in `managers` hide its models
   */
  constructor(
    managers: ReadonlyMap<string, VersionManager>,
    repository?: ModelRepository<TensorModel>,
  ) {
    this.#managers = managers;
    this.#repository = repository;
  }

  start(): void {
    for (const manager of this.#managers.values()) manager.start();
    this.#repository?.start();
  }

  get #all(): ReadonlyMap<string, AnyManager> {
    if (this.#repository === undefined) return this.#managers;
    return new Map<string, AnyManager>([...this.#repository.models, ...this.#managers]);
  }

  find(model: string, { version, label }: VersionSelector = {}): LoadedVersion {
    const manager = this.#getManager(model);
    if (version !== undefined && label !== undefined) {
      throw new CubeError('INVALID_ARGUMENT', 'give a version or a label, not both');
    }
    if (version !== undefined) return this.#name(model, manager.findByVersion(version));
    return this.#name(model, label === undefined ? manager.current : manager.findByChannel(label));
  }

  getName(loaded: LoadedVersion): string {
    return this.#names.get(loaded) ?? loaded.name;
  }

  #name(model: string, loaded: LoadedVersion): LoadedVersion {
    this.#names.set(loaded, model);
    return loaded;
  }

  findOnly(): LoadedVersion {
    return this.find(this.findOnlyName());
  }

  findOnlyName(): string {
    const all = [...this.#all.keys()];
    const [only, ...others] = all;
    if (only !== undefined && others.length === 0) return only;
    const names = all.join(', ');
    throw new CubeError(
      'INVALID_ARGUMENT',
      `several models are served here; name one of them: ${names}`,
    );
  }

  status(): readonly ModelStatus[] {
    return [...this.#all.values()].map((manager) => manager.status);
  }

  loadedVersions(): readonly LoadedVersion[] {
    return [...this.#all.values()].flatMap((manager): readonly LoadedVersion[] => {
      return manager.loadedVersions;
    });
  }

  async load(model: string): Promise<void> {
    const manager = this.#managers.get(model);
    if (manager === undefined && this.#repository !== undefined) {
      return this.#repository.load(model);
    }
    await (manager ?? this.#failUnknown(model)).load();
  }

  async unload(model: string, withDependents = false): Promise<void> {
    const manager = this.#managers.get(model);
    if (manager === undefined && this.#repository !== undefined) {
      return this.#repository.unload(model, withDependents);
    }
    await (manager ?? this.#failUnknown(model)).unload();
  }

  async stop(): Promise<void> {
    const managers = [...this.#managers.values()].map((manager) => manager.stop());
    await Promise.all([...managers, this.#repository?.stop()]);
  }

  #getManager(model: string): AnyManager {
    const { models } = this.#repository ?? {};
    return this.#managers.get(model) ?? models?.get(model) ?? this.#failUnknown(model);
  }

  #failUnknown(model: string): never {
    const names = [...this.#all.keys()].join(', ');
    // Triton's clients know this error by how it begins.
    throw new CubeError(
      'NOT_FOUND',
      `Request for unknown model: model ${quoteInput(model)} is not served here (served: ${names})`,
    );
  }
}

/**
 * The version as a bundle, for protocols whose requests are rows of features. @throws CubeError
 * INVALID_ARGUMENT for a model whose requests are tensors
 */
export function requireBundle(loaded: LoadedVersion): LoadedBundle {
  if (loaded instanceof LoadedBundle) return loaded;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${loaded.name} takes tensors, not rows of features: call it over KServe v2, :predict or ` +
      "Predict of TensorFlow Serving, or Paddle's GeneralModelService",
  );
}
