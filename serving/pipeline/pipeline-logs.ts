/**
 * The files of a pipeline in its log folder, with the names and sizes of Paddle Serving:
 * pipeline.log, pipeline.log.wf, pipeline.tracer; and pipeline.trace.json for `useProfile`.
 */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { makeFolder, replaceFile } from '../../lib/platform/files.ts';
import { createLogger, type Logger, RateLimitedLog } from '../../lib/platform/logs.ts';
import { RotatingFile } from '../../lib/platform/rotating-file.ts';
import { toTraceEvents } from './chrome-trace.ts';
import type { PipelineAnswer } from './pipeline-answer.ts';
import type { PipelineSettings } from './settings.ts';
import { Tracer, type TracerSource } from './tracer.ts';

const BYTES_MAX = 512 << 20;
const LOG_FILES = 20;
const WARNING_FILES = 10;
const TRACER_FILES = 5;
/** About 400 MB; a trace is for minutes, not for days. */
const TRACE_EVENTS_MAX = 2_000_000;

function openPipelineLog(folder: string): Logger {
  const file = (name: string, filesMax: number) => ({
    path: join(folder, name),
    bytesMax: BYTES_MAX,
    filesMax,
  });
  return createLogger('pipeline', {
    level: 'debug',
    file: file('pipeline.log', LOG_FILES),
    warningsFile: file('pipeline.log.wf', WARNING_FILES),
  });
}

/** The log, the tracer and the trace of a pipeline, as its settings say. */
export class PipelineLogFiles {
  readonly logger: Logger | undefined;
  readonly #folder: string | undefined;
  readonly #tracerIntervalMs: number;
  readonly #trace: TraceFile | undefined;
  readonly #failures: RateLimitedLog | undefined;
  #tracer: TracerFile | undefined;

  /** @throws CubeError INVALID_ARGUMENT without a folder; when the folder cannot be written */
  constructor({ logger, logFolder, tracerIntervalMs = -1, useProfile = false }: PipelineSettings) {
    this.#folder = logFolder;
    this.#tracerIntervalMs = tracerIntervalMs;
    if (logFolder === undefined && (tracerIntervalMs >= 1 || useProfile)) {
      throw new CubeError('INVALID_ARGUMENT', 'tracerIntervalMs and useProfile need logFolder');
    }
    this.logger = logger ?? (logFolder === undefined ? undefined : openPipelineLog(logFolder));
    if (this.logger === undefined) return;
    this.#failures = new RateLimitedLog(this.logger);
    if (useProfile && logFolder !== undefined) this.#trace = new TraceFile(logFolder, this.logger);
  }

  /** Call when all ops have started. @throws CubeError when the folder cannot be written */
  start(source: TracerSource): void {
    this.#trace?.start();
    if (this.#folder === undefined || this.logger === undefined) return;
    if (this.#tracerIntervalMs < 1) return;
    this.#tracer = new TracerFile(this.#folder, this.#tracerIntervalMs, source, this.logger);
  }

  record(answer: PipelineAnswer): void {
    const { errNo, errMsg, dataId, logId } = answer;
    if (errNo !== 0) {
      const ids = { data_id: dataId, log_id: String(logId) };
      this.#failures?.warn({ ...ids, err_no: errNo }, errMsg);
    }
    this.#trace?.record(answer);
  }

  close(): void {
    this.#tracer?.close();
  }
}

/** Writes the tracer's lines each interval. */
class TracerFile {
  readonly #file: RotatingFile;
  readonly #tracer: Tracer;
  readonly #timer: NodeJS.Timeout;
  readonly #logger: Logger;

  /** @throws CubeError when the folder cannot be written */
  constructor(folder: string, intervalMs: number, source: TracerSource, logger: Logger) {
    const path = join(folder, 'pipeline.tracer');
    this.#file = new RotatingFile({ path, bytesMax: BYTES_MAX, filesMax: TRACER_FILES });
    this.#tracer = new Tracer(source, performance.now());
    this.#logger = logger;
    this.#timer = setInterval(() => this.#write(), intervalMs).unref();
  }

  /** Writes the last interval. */
  close(): void {
    clearInterval(this.#timer);
    this.#write();
  }

  #write(): void {
    const text = this.#tracer.format(performance.now());
    try {
      this.#file.appendNow(Buffer.from(`${systemClock.isoTime()} ${text}`));
    } catch (error) {
      this.#logger.warn({ err: error }, 'pipeline.tracer cannot be written');
    }
  }
}

/** Writes a Chrome trace: a JSON array without its end, which trace viewers accept. */
class TraceFile {
  readonly #path: string;
  readonly #logger: Logger;
  #file: RotatingFile | undefined;
  #events = 0;

  /** @throws CubeError when the folder cannot be created */
  constructor(folder: string, logger: Logger) {
    this.#path = join(folder, 'pipeline.trace.json');
    makeFolder(folder);
    this.#logger = logger;
  }

  /** Replaces the file of an earlier run. Another pipeline may write it until this one starts. */
  start(): void {
    replaceFile(this.#path, '[\n');
    const limits = { bytesMax: Number.MAX_SAFE_INTEGER, filesMax: 1 };
    this.#file = new RotatingFile({ path: this.#path, ...limits });
  }

  record(answer: PipelineAnswer): void {
    if (this.#events >= TRACE_EVENTS_MAX) return;
    const events = toTraceEvents(answer, performance.now());
    this.#events += events.length;
    const lines = events.map((event) => `${JSON.stringify(event)},\n`);
    try {
      this.#file?.appendNow(Buffer.from(lines.join('')));
    } catch (error) {
      this.#events = TRACE_EVENTS_MAX;
      this.#logger.warn({ err: error }, 'pipeline.trace.json cannot be written; the trace ends');
    }
  }
}
