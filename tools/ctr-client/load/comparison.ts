/**
 * Sends each batch to two endpoints, one right after the other, in alternating order, so that other
 * load on the machine affects both alike.
 */
import { requireDefined } from '../../../lib/core/errors.ts';
import { systemClock } from '../../../lib/platform/clock.ts';
import { LoadGenerator, type LoadResult, type LoadSchedule } from './load-generator.ts';
import { type PreparedRequest, sendAndRecord } from './load-run.ts';
import { ResponseRecorder } from './response-recorder.ts';

export interface ComparisonOptions {
  /** Requests for both endpoints; batch by batch the same rows. */
  readonly requests: readonly [readonly PreparedRequest[], readonly PreparedRequest[]];
  readonly rowCount: number;
  readonly schedule: LoadSchedule;
  readonly warmUpMs?: number;
  readonly stop: AbortSignal;
  readonly onRows?: (rowsDone: number) => void;
}

export interface ComparisonResult {
  readonly load: LoadResult;
  readonly recorders: readonly [ResponseRecorder, ResponseRecorder];
}

/** Differences between the scores of rows that both endpoints answered. */
export interface ScoreDifferences {
  readonly rows: number;
  readonly max: number;
  /** Index from 0; -1 without rows. */
  readonly maxRow: number;
  readonly mean: number;
  readonly p99: number;
  /** Rows that differ by more than allowed. */
  readonly beyond: number;
}

export async function compareEndpoints(options: ComparisonOptions): Promise<ComparisonResult> {
  const { requests, rowCount, schedule, warmUpMs = 0, stop, onRows } = options;
  const pass = async (
    passSchedule: LoadSchedule,
    recorders: readonly [ResponseRecorder, ResponseRecorder],
  ): Promise<LoadResult> => {
    const startMs = systemClock.nowMs();
    let turn = 0;
    let rowsDone = 0;
    const work = async (batch: number): Promise<boolean> => {
      const first = turn++ % 2;
      let isAnswered = true;
      for (const side of [first, 1 - first] as const) {
        const request = requireDefined(requests[side as 0 | 1][batch], 'a request');
        const sentMs = systemClock.nowMs();
        const answered = await sendAndRecord(request, recorders[side as 0 | 1], sentMs, startMs);
        isAnswered &&= answered;
      }
      const { start, end } = requireDefined(requests[0][batch], 'a request');
      rowsDone += end - start;
      onRows?.(rowsDone);
      return isAnswered;
    };
    return new LoadGenerator(passSchedule, requests[0].length, work, stop).run();
  };
  if (warmUpMs > 0) {
    await pass({ ...schedule, durationMs: warmUpMs }, [
      new ResponseRecorder(rowCount),
      new ResponseRecorder(rowCount),
    ]);
  }
  const recorders = [new ResponseRecorder(rowCount), new ResponseRecorder(rowCount)] as const;
  return { load: await pass(schedule, recorders), recorders: recorders };
}

/** @param allowed largest difference that is not counted in `beyond` */
export function computeDifferences(
  one: Float64Array,
  other: Float64Array,
  allowed: number,
): ScoreDifferences {
  const differences: number[] = [];
  let max = 0;
  let maxRow = -1;
  for (let row = 0; row < one.length; row++) {
    const difference = Math.abs(one[row]! - other[row]!);
    if (Number.isNaN(difference)) continue;
    differences.push(difference);
    if (difference <= max && maxRow >= 0) continue;
    max = difference;
    maxRow = row;
  }
  const sorted = Float64Array.from(differences).sort();
  const rows = sorted.length;
  return {
    rows,
    max,
    maxRow,
    mean: rows === 0 ? 0 : sorted.reduce((sum, value) => sum + value, 0) / rows,
    p99: sorted[Math.max(Math.ceil(0.99 * rows) - 1, 0)] ?? 0,
    beyond: sorted.filter((value) => value > allowed).length,
  };
}
