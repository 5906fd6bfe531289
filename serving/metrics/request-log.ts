/**
 * Log lines of single predictions: slow ones, and a sample of all. They have times, counts and
 * names, never features or keys.
 */
import type { ErrorCode } from '../../lib/core/errors.ts';
import { type Logger, RateLimitedLog } from '../../lib/platform/logs.ts';
import type { PredictionSummary } from '../engine/prediction.ts';
import type { ProtocolName } from './serving-metrics.ts';

/** Which predictions are logged. */
export interface RequestLogOptions {
  /** Infinity: none for being slow. */
  readonly slowMs: number;
  /** 0..1 of all. */
  readonly share: number;
}

/** A request that was answered or has failed. */
export interface LoggedRequest {
  readonly protocol: ProtocolName;
  readonly code: ErrorCode | 'OK';
  readonly durationMs: number;
  /** Undefined when the request failed before or in its prediction. */
  readonly model: string | undefined;
  readonly prediction: PredictionSummary | undefined;
}

export class RequestLog {
  readonly #logger: Logger;
  readonly #slowLog: RateLimitedLog;
  readonly #config: RequestLogOptions;

  constructor(logger: Logger, config: RequestLogOptions) {
    this.#logger = logger;
    this.#slowLog = new RateLimitedLog(logger);
    this.#config = config;
  }

  record(request: LoggedRequest): void {
    const { slowMs, share } = this.#config;
    if (request.durationMs >= slowMs) this.#slowLog.warn(toFields(request), 'slow request');
    if (share > 0 && Math.random() < share) this.#logger.info(toFields(request), 'request');
  }
}

/** The rest of the duration is parsing, formatting and waiting for the event loop. */
function toFields({ protocol, code, durationMs, model, prediction }: LoggedRequest): object {
  return {
    protocol,
    code,
    durationMs: toMillis(1_000 * durationMs),
    ...(model !== undefined && { model }),
    ...(prediction !== undefined && {
      version: prediction.version,
      rows: prediction.rowCount,
      queueMs: toMillis(prediction.timings.queueMicros),
      lookupMs: toMillis(prediction.timings.lookupMicros),
      inferMs: toMillis(prediction.timings.inferMicros),
      unavailable: prediction.unavailable,
    }),
  };
}

/** Milliseconds with three decimals. */
function toMillis(micros: number): number {
  return Math.round(micros) / 1_000;
}
