/** Counters of a pipeline since its start, for its tracer and metrics. They only increase. */
import type { PipelineAnswer } from './pipeline-answer.ts';

/** Milliseconds, summed over the requests that ended the op. */
export interface OpStats {
  count: number;
  /** Wait for a slot with all inputs there. */
  inMs: number;
  prepMs: number;
  midpMs: number;
  postpMs: number;
  /** Wait for room in the queues of the next ops. */
  outMs: number;
}

/** Latencies kept for percentiles. */
const LATENCIES_MAX = 4096;

export class PipelineStats {
  readonly ops: ReadonlyMap<string, OpStats>;
  requests = 0;
  failures = 0;
  requestMs = 0;
  #latencies: number[] = [];

  constructor(ops: readonly string[]) {
    const zero = { count: 0, inMs: 0, prepMs: 0, midpMs: 0, postpMs: 0, outMs: 0 };
    this.ops = new Map(ops.map((op) => [op, { ...zero }]));
  }

  record({ errNo, timings, durationMs }: PipelineAnswer): void {
    this.requests++;
    if (errNo !== 0) this.failures++;
    this.requestMs += durationMs;
    // The newest replace the oldest.
    this.#latencies[(this.requests - 1) % LATENCIES_MAX] = durationMs;
    for (const { op, readyMs, startMs, processMs, postMs, endMs, outMs } of timings) {
      const stats = this.ops.get(op);
      if (stats === undefined) continue;
      stats.count++;
      stats.inMs += startMs - readyMs;
      stats.prepMs += processMs - startMs;
      stats.midpMs += postMs - processMs;
      stats.postpMs += endMs - postMs;
      stats.outMs += outMs - endMs;
    }
  }

  /** The last latencies, at most `count`, ascending. */
  latencies(count: number): number[] {
    const { length } = this.#latencies;
    const kept = Math.min(count, length);
    const end = this.requests % LATENCIES_MAX;
    const last = Array.from({ length: kept }, (_, index) => {
      return this.#latencies[(end - 1 - index + LATENCIES_MAX) % LATENCIES_MAX] ?? 0;
    });
    return last.sort((a, b) => a - b);
  }
}
