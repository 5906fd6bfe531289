/**
 * The traffic of files: the experiments and shadows of serving.yaml, and of the traffic file, which
 * is read again when it changes. While a changed file is invalid, the previous content stays.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { Experiment } from '../../lib/core/experiment.ts';
import type { Shadow } from '../../lib/core/shadow.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { RereadValue } from '../../lib/platform/reread-value.ts';

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
  readonly #traffic: { readonly current: Traffic };
  /** How often a process without requests should call `current`; undefined without a file. */
  readonly pollMs: number | undefined;

  /**
   * @param options undefined: there is no file
   * @param fixed experiments and shadows of serving.yaml
   * @throws CubeError when the file cannot be read, is invalid or contradicts `fixed`
   */
  constructor(options?: TrafficFileOptions, fixed: Traffic = NO_TRAFFIC) {
    this.pollMs = options && CHECK_INTERVAL_MS;
    this.#traffic = options === undefined ? { current: fixed } : openTraffic(options, fixed);
  }

  /** At most a second old: the same object while the file is unchanged. */
  current(): Traffic {
    return this.#traffic.current;
  }
}

function openTraffic(options: TrafficFileOptions, fixed: Traffic): RereadValue<Traffic> {
  const { path, read, check, clock, logger } = options;
  const toNames = (list: readonly { readonly name: string }[]): string[] =>
    list.map(({ name }) => name);
  return new RereadValue({
    paths: [path],
    read: () => {
      const traffic = joinTraffic(fixed, read(path));
      check(traffic);
      return traffic;
    },
    intervalMs: CHECK_INTERVAL_MS,
    clock,
    onChange: ({ experiments, shadows }) =>
      logger.info(
        { path, experiments: toNames(experiments), shadows: toNames(shadows) },
        'traffic file read again',
      ),
    onInvalid: ({ message: error }) =>
      logger.error({ error }, 'the traffic file is invalid; the previous one continues'),
  });
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
