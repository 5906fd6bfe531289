/** Settings of a pipeline and of its ops. */
import { CubeError } from '../../lib/core/errors.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { ModuleSnapshot } from './module-snapshot.ts';
import type { OpClient, OpSettings, StepOp } from './op.ts';

export interface PipelineSettings {
  /** Requests in progress at most; further ones are refused with CLIENT_ERROR. Default 1024. */
  readonly maxRequests?: number;
  /** Complete inputs that may wait at an op; then its predecessors wait. Default: maxRequests. */
  readonly channelSize?: number;
  /** An op with several predecessors starts with the first output of a request. Default false. */
  readonly firstArrival?: boolean;
  /** Tries of a request; it is tried again only after TIMEOUT (6000). Default 1: no retry. */
  readonly retry?: number;
  /** Settings by the name of the op; they replace those of its constructor. */
  readonly ops?: Readonly<Record<string, OpSettings>>;
  /**
   * The file that exports this pipeline. Each op then runs in worker threads that load the file, as
   * many as its `concurrency`; request and response op stay. Default: ops run in the event loop.
   */
  readonly threadFile?: string;
  /** What threads run instead of the file as it is when they start. Default: the file. */
  readonly threadSnapshot?: ModuleSnapshot;
  /** Default: the files of `logFolder`, else silent. */
  readonly logger?: Logger;
  /** Folder of pipeline.log, pipeline.log.wf, pipeline.tracer and pipeline.trace.json. */
  readonly logFolder?: string;
  /** Interval of pipeline.tracer in milliseconds; below 1 (default): none. Needs `logFolder`. */
  readonly tracerIntervalMs?: number;
  /** Writes the stages of each request to pipeline.trace.json. Needs `logFolder`. */
  readonly useProfile?: boolean;
}

export interface ResolvedOpSettings {
  readonly concurrency: number;
  readonly timeoutMs: number;
  readonly retry: number;
  readonly batchSize: number;
  readonly autoBatchingTimeoutMs: number;
  readonly client: OpClient | undefined;
}

const MAX_REQUESTS_DEFAULT = 1024;
/** The original waits for ever for a full batch. */
const AUTO_BATCHING_TIMEOUT_MS_DEFAULT = 2;

/** @throws CubeError INVALID_ARGUMENT naming the op and the setting */
export function resolveOpSettings(op: StepOp, override: OpSettings = {}): ResolvedOpSettings {
  const settings = { ...op.settings, ...override };
  const { concurrency = 1, retry = 1, batchSize = 1, timeoutMs = -1, client } = settings;
  checkPositive(`concurrency of op ${op.name}`, concurrency);
  checkPositive(`retry of op ${op.name}`, retry);
  checkPositive(`batchSize of op ${op.name}`, batchSize);
  if (!Number.isFinite(timeoutMs)) {
    throw invalid(`timeoutMs of op ${op.name} is ${timeoutMs}; it must be a number`);
  }
  const { autoBatchingTimeoutMs: waitMs = -1 } = settings;
  const autoBatchingTimeoutMs = waitMs < 0 ? AUTO_BATCHING_TIMEOUT_MS_DEFAULT : waitMs;
  return { concurrency, retry, batchSize, timeoutMs, client, autoBatchingTimeoutMs };
}

/** @throws CubeError INVALID_ARGUMENT naming the setting */
export function resolveLimits(settings: PipelineSettings): {
  readonly maxRequests: number;
  readonly channelSize: number;
  readonly retry: number;
} {
  const { maxRequests = MAX_REQUESTS_DEFAULT, channelSize = maxRequests, retry = 1 } = settings;
  checkPositive('maxRequests', maxRequests);
  checkPositive('channelSize', channelSize);
  checkPositive('retry of the pipeline', retry);
  return { maxRequests, channelSize, retry };
}

/** @throws CubeError INVALID_ARGUMENT for settings of an op that the pipeline does not have */
export function checkOpNames(
  ops: PipelineSettings['ops'] = {},
  known: readonly { readonly name: string }[],
): void {
  const names = known.map(({ name }) => name);
  const unknown = Object.keys(ops).find((name) => !names.includes(name));
  if (unknown === undefined) return;
  throw invalid(`settings for op ${unknown}, which the pipeline has not; ops: ${names.join(', ')}`);
}

function checkPositive(what: string, value: number): void {
  if (Number.isSafeInteger(value) && value >= 1) return;
  throw invalid(`${what} is ${value}; it must be an integer from 1`);
}

function invalid(message: string): CubeError {
  return new CubeError('INVALID_ARGUMENT', message);
}
