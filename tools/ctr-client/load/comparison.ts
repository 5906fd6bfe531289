/**
 * Two endpoints asked the same: each batch of both, one right after the other and in turns who is first, so that whatever else the
 * machines do falls upon both alike.
 */
import { systemClock } from '../../../lib/platform/clock.ts';
import { LoadGenerator, type LoadResult, type Pace } from './load-generator.ts';
import { Tally } from './tally.ts';
import { type Request, sendCounted } from './traffic.ts';

export interface ComparisonOptions {
  /** Of the endpoint and of the one it is held against, batch by batch the same rows. */
  readonly requests: readonly [readonly Request[], readonly Request[]];
  readonly rowCount: number;
  readonly pace: Pace;
  readonly warmUpMs?: number;
  readonly stop: AbortSignal;
  readonly onRows?: (rowsDone: number) => void;
}

export interface ComparisonResult {
  readonly load: LoadResult;
  readonly tallies: readonly [Tally, Tally];
}

/** Of the scores of the rows that both have answered. */
export interface Differences {
  readonly rows: number;
  readonly max: number;
  /** From 0; -1 without rows. */
  readonly maxRow: number;
  readonly mean: number;
  readonly p99: number;
  /** Rows that differ by more than was allowed. */
  readonly beyond: number;
}

export async function compareEndpoints(options: ComparisonOptions): Promise<ComparisonResult> {
  const { requests, rowCount, pace, warmUpMs = 0, stop, onRows } = options;
  const pass = async (passPace: Pace, tallies: readonly [Tally, Tally]): Promise<LoadResult> => {
    const startMs = systemClock.nowMs();
    let turn = 0;
    let rowsDone = 0;
    const work = async (batch: number): Promise<boolean> => {
      const first = turn++ % 2;
      let isAnswered = true;
      for (const side of [first, 1 - first] as const) {
        const request = requests[side as 0 | 1][batch]!;
        const sentMs = systemClock.nowMs();
        const answered = await sendCounted(request, tallies[side as 0 | 1], sentMs, startMs);
        isAnswered &&= answered;
      }
      const { start, end } = requests[0][batch]!;
      rowsDone += end - start;
      onRows?.(rowsDone);
      return isAnswered;
    };
    return new LoadGenerator(passPace, requests[0].length, work, stop).run();
  };
  if (warmUpMs > 0) {
    await pass({ ...pace, durationMs: warmUpMs }, [new Tally(rowCount), new Tally(rowCount)]);
  }
  const tallies = [new Tally(rowCount), new Tally(rowCount)] as const;
  return { load: await pass(pace, tallies), tallies };
}

/** @param allowed a row that differs by more is counted */
export function differencesOf(
  one: Float64Array,
  other: Float64Array,
  allowed: number,
): Differences {
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
