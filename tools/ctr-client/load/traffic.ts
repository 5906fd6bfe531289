/** The requests of a run: all batches of the rows, made before the clock starts, and what came of sending them. */
import { CubeError } from '../../../lib/core/errors.ts';
import { systemClock } from '../../../lib/platform/clock.ts';
import type { Caller, Send } from '../protocols/caller.ts';
import { LoadGenerator, type LoadResult, type Pace } from './load-generator.ts';
import { Tally } from './tally.ts';

/** A batch of rows start … end, ready to be sent. */
export interface Request {
  readonly start: number;
  readonly end: number;
  readonly send: Send;
}

export function prepareRequests(caller: Caller, rowCount: number, batchRows: number): Request[] {
  return Array.from({ length: Math.ceil(rowCount / batchRows) }, (_, batch) => {
    const start = batch * batchRows;
    const end = Math.min(start + batchRows, rowCount);
    return { start, end, send: caller.prepare(start, end) };
  });
}

/** Sends a request once; a failure is counted, never sent again. @returns whether it was answered */
export async function sendCounted(
  { start, end, send }: Request,
  tally: Tally,
  dueMs: number,
  startMs: number,
): Promise<boolean> {
  try {
    const answer = await send();
    const nowMs = systemClock.nowMs();
    tally.addAnswer(start, answer, nowMs - dueMs, nowMs - startMs);
    return true;
  } catch (error) {
    tally.addFailure(CubeError.from(error), start, end);
    return false;
  }
}

export interface TrafficOptions {
  readonly requests: readonly Request[];
  readonly rowCount: number;
  readonly pace: Pace;
  /** Before the run, not counted. */
  readonly warmUpMs?: number;
  readonly stop: AbortSignal;
  readonly onRows?: (rowsDone: number) => void;
}

export interface TrafficResult {
  readonly load: LoadResult;
  readonly tally: Tally;
}

export async function runTraffic(options: TrafficOptions): Promise<TrafficResult> {
  const { requests, rowCount, pace, warmUpMs = 0, stop, onRows } = options;
  const pass = async (passPace: Pace, tally: Tally): Promise<LoadResult> => {
    const startMs = systemClock.nowMs();
    let rowsDone = 0;
    const work = async (batch: number, dueMs: number): Promise<boolean> => {
      const request = requests[batch]!;
      const isAnswered = await sendCounted(request, tally, dueMs, startMs);
      rowsDone += request.end - request.start;
      onRows?.(rowsDone);
      return isAnswered;
    };
    return new LoadGenerator(passPace, requests.length, work, stop).run();
  };
  if (warmUpMs > 0) await pass({ ...pace, durationMs: warmUpMs }, new Tally(rowCount));
  const tally = new Tally(rowCount);
  return { load: await pass(pace, tally), tally };
}
