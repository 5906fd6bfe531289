/**
 * The traffic of files: the experiments and shadows of serving.yaml, and of the traffic file, which
 * is read again when it changes. While a changed file is invalid, the previous content stays.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { Experiment } from '../../lib/core/experiment.ts';
import type { Shadow } from '../../lib/core/shadow.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import { getFileStamp } from '../../lib/platform/files.ts';
import type { Logger } from '../../lib/platform/logs.ts';

const CHECK_INTERVAL_MS = 1_000;

export interface Traffic {
  readonly experiments: readonly Experiment[];
  readonly shadows: readonly Shadow[];
}

export interface TrafficFileOptions {
  readonly path: string;
  readonly read: (path: string) => Traffic;
  /** @throws CubeError if experiments from elsewhere contradict the changed ones */
  readonly check: (traffic: Traffic) => void;
  readonly clock: Clock;
  readonly logger: Logger;
}

const NO_TRAFFIC: Traffic = { experiments: [], shadows: [] };

export class TrafficFile {
  readonly #options: TrafficFileOptions | undefined;
  readonly #fixed: Traffic;
  #traffic: Traffic;
  #stamp: string | undefined;
  #checkAtMs = Number.POSITIVE_INFINITY;

  /**
   * @param options undefined: there is no file
   * @param fixed experiments and shadows of serving.yaml
   * @throws CubeError when the file cannot be read, is invalid or contradicts `fixed`
   */
  constructor(options?: TrafficFileOptions, fixed: Traffic = NO_TRAFFIC) {
    this.#options = options;
    this.#fixed = fixed;
    this.#traffic = fixed;
    if (options === undefined) return;
    this.#stamp = getFileStamp(options.path);
    this.#traffic = this.#read(options);
    this.#checkAtMs = options.clock.nowMs() + CHECK_INTERVAL_MS;
  }

  /** How often a process without requests should call `current`; undefined without a file. */
  get pollMs(): number | undefined {
    return this.#options && CHECK_INTERVAL_MS;
  }

  /** At most a second old: the same object while the file is unchanged. */
  current(): Traffic {
    if (this.#options === undefined) return this.#traffic;
    const { path, clock, logger } = this.#options;
    const nowMs = clock.nowMs();
    if (nowMs < this.#checkAtMs) return this.#traffic;
    this.#checkAtMs = nowMs + CHECK_INTERVAL_MS;
    // The stamp is taken before the read, so that a change in between is noticed later.
    const stamp = getFileStamp(path);
    if (stamp === this.#stamp) return this.#traffic;
    this.#stamp = stamp;
    try {
      this.#traffic = this.#read(this.#options);
      const toNames = (list: readonly { readonly name: string }[]): string[] =>
        list.map(({ name }) => name);
      const { experiments, shadows } = this.#traffic;
      logger.info(
        { path, experiments: toNames(experiments), shadows: toNames(shadows) },
        'traffic file read again',
      );
    } catch (error) {
      const { message } = CubeError.from(error);
      logger.error({ error: message }, 'the traffic file is invalid; the previous one continues');
    }
    return this.#traffic;
  }

  #read({ path, read, check }: TrafficFileOptions): Traffic {
    const traffic = joinTraffic(this.#fixed, read(path));
    check(traffic);
    return traffic;
  }
}

/** @throws CubeError if a shadow is named twice */
function joinTraffic(first: Traffic, second: Traffic): Traffic {
  const names = new Set(first.shadows.map(({ name }) => name));
  const twice = second.shadows.find(({ name }) => names.has(name));
  if (twice !== undefined) {
    throw new CubeError('CONFLICT', `serving.yaml has a shadow ${twice.name} already: rename one`);
  }
  return {
    experiments: [...first.experiments, ...second.experiments],
    shadows: [...first.shadows, ...second.shadows],
  };
}
