/**
 * Stages of requests as events of a Chrome trace (chrome://tracing, Perfetto): one row for each
 * execution slot of an op, one span for each stage.
 */
import type { PipelineAnswer } from './pipeline-answer.ts';

/** A complete event; times are in microseconds since the start of the process. */
interface TraceEvent {
  readonly name: string;
  readonly ph: 'X';
  readonly ts: number;
  readonly dur: number;
  readonly pid: number;
  /** The row. */
  readonly tid: string;
  readonly args: { readonly data_id: number; readonly log_id: string };
}

/** @param endMs when the request was answered, on the scale of `performance.now()` */
export function toTraceEvents(answer: PipelineAnswer, endMs: number): TraceEvent[] {
  const { timings, durationMs, dataId, logId } = answer;
  const requestMs = endMs - durationMs;
  const args = { data_id: dataId, log_id: String(logId) };
  return timings.flatMap(({ op, slot, startMs, processMs, postMs, endMs: opEndMs, outMs }) => {
    const stages = [
      ['prep', startMs, processMs],
      ['midp', processMs, postMs],
      ['postp', postMs, opEndMs],
      ...(outMs > opEndMs ? ([['out', opEndMs, outMs]] as const) : []),
    ] as const;
    return stages.map(([stage, from, to]): TraceEvent => {
      const ts = Math.round(1_000 * (requestMs + from));
      const dur = Math.round(1_000 * (to - from));
      return {
        name: `${op}_${stage}`,
        ph: 'X',
        ts,
        dur,
        pid: process.pid,
        tid: `${op}/${slot}`,
        args,
      };
    });
  });
}
