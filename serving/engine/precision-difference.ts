/** How far the outputs of a graph with fewer bits may be from those of the original. */
import type { Precision } from '../../lib/core/precisions.ts';

export type LowerPrecision = Exclude<Precision, 'fp32'>;

/** The largest differences with which a converted graph is served. */
export const PRECISION_TOLERANCES: Readonly<Record<LowerPrecision, number>> = {
  fp16: 0.001,
  bf16: 0.01,
  int8: 0.05,
};

/**
 * @returns the largest difference, divided by the largest expected value if that is above 1;
 *   infinite unless NaN and infinity are in the same places
 */
export function measureDifference(
  expected: ArrayLike<number>,
  actual: ArrayLike<number> | undefined,
): number {
  if (actual?.length !== expected.length) return Number.POSITIVE_INFINITY;
  let scale = 1;
  let largest = 0;
  for (let i = 0; i < expected.length; i++) {
    const value = expected[i]!;
    if (Number.isFinite(value)) scale = Math.max(scale, Math.abs(value));
    if (Object.is(value, actual[i])) continue;
    const difference = Math.abs(value - actual[i]!);
    if (!Number.isFinite(difference)) return Number.POSITIVE_INFINITY;
    largest = Math.max(largest, difference);
  }
  return largest / scale;
}
