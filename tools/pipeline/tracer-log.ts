/**
 * Reads `pipeline.tracer`, as pipelines here and Paddle Serving's write it: reports of intervals,
 * each with its ops, its requests and its queues. There may be a time before every line.
 */
import { CubeError } from '../../lib/core/errors.ts';

/** Stages of an op in the order of the file, in milliseconds. */
export const STAGES = ['in', 'prep', 'midp', 'postp', 'out'] as const;
export type Stage = (typeof STAGES)[number];

/** Means of an interval. Stages and values that the file does not have are 0 or undefined. */
export interface OpReport {
  readonly stageMs: Readonly<Record<Stage, number>>;
  /** Share of time outside of the hooks, 0 to 1. */
  readonly idle: number | undefined;
  readonly concurrency: number | undefined;
}

export interface QueueReport {
  readonly length: number;
  /** 0: not limited. */
  readonly capacity: number;
}

export interface IntervalReport {
  readonly ops: ReadonlyMap<string, OpReport>;
  readonly queues: ReadonlyMap<string, QueueReport>;
  readonly requests: number;
  /** Requests per second. */
  readonly qps: number;
  /** 0 to 1. */
  readonly success: number;
  readonly latencyMs: number;
}

const START = /=+ TRACER =+/;
const TIME = /^\d{4}-\d\d-\d\d[ T][\d:.,]+Z? ?/;
const OP = /^Op\((.*)\):$/;
/** `in[1.5 ms]`, `idle[0.2]`, `QPS[3.1 q/s]`, `.99[4 ms]` */
const FIGURE =
  /^(in|prep|midp|postp|out|idle|concurrency|Query count|QPS|Succ|ave)\[([^\] ]*)[^\]]*\]$/;
/** `bow(In) size[1/8]`; the original adds the names of the ops. */
const QUEUE = /^(.+?)\(In.*\) size\[(\d+)\/(\d+)\]$/;
const OPS_MAX = 10_000;

/**
 * The reports in their order; text between them is skipped.
 * @throws CubeError INVALID_ARGUMENT for a figure that is not a number, with the number of the line
 */
export async function* readReports(lines: AsyncIterable<string>): AsyncGenerator<IntervalReport> {
  let report: ReportReader | undefined;
  let number = 0;
  for await (const line of lines) {
    number++;
    if (START.test(line)) {
      if (report !== undefined) yield report.finish();
      report = new ReportReader();
    } else {
      report?.read(line.replace(TIME, '').trim(), number);
    }
  }
  if (report !== undefined) yield report.finish();
}

class ReportReader {
  readonly #ops: Map<string, Map<string, number>> = new Map();
  readonly #queues: Map<string, QueueReport> = new Map();
  readonly #requests: Map<string, number> = new Map();
  /** Where the next figures belong: an op, or all requests. */
  #figures = this.#requests;

  read(text: string, line: number): void {
    const [, op] = OP.exec(text) ?? [];
    if (op !== undefined) this.#figures = this.#addOp(op, line);
    else if (text === 'DAGExecutor:') this.#figures = this.#requests;
    const [, name = '', value = ''] = FIGURE.exec(text) ?? [];
    if (name !== '') this.#figures.set(name, readNumber(name, value, line));
    const [, queue = '', length, capacity] = QUEUE.exec(text) ?? [];
    if (queue === '' || this.#queues.size >= OPS_MAX) return;
    this.#queues.set(queue, { length: Number(length), capacity: Number(capacity) });
  }

  finish(): IntervalReport {
    const figure = (name: string): number => this.#requests.get(name) ?? 0;
    return {
      ops: new Map([...this.#ops].map(([name, figures]) => [name, toOpReport(figures)])),
      queues: this.#queues,
      requests: figure('Query count'),
      qps: figure('QPS'),
      success: figure('Succ'),
      latencyMs: figure('ave'),
    };
  }

  #addOp(op: string, line: number): Map<string, number> {
    if (this.#ops.size >= OPS_MAX) {
      throw new CubeError('TOO_LARGE', `line ${line}: more than ${OPS_MAX} ops in one report`);
    }
    const figures = new Map<string, number>();
    this.#ops.set(op, figures);
    return figures;
  }
}

function toOpReport(figures: ReadonlyMap<string, number>): OpReport {
  const stageMs = Object.fromEntries(STAGES.map((stage) => [stage, figures.get(stage) ?? 0]));
  return {
    stageMs: stageMs as Record<Stage, number>,
    idle: figures.get('idle'),
    concurrency: figures.get('concurrency'),
  };
}

function readNumber(name: string, text: string, line: number): number {
  const value = Number(text);
  if (text !== '' && Number.isFinite(value) && value >= 0) return value;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `line ${line}: ${name} is ${JSON.stringify(text.slice(0, 40))}; expected a number from 0`,
  );
}
