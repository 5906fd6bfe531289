/** Selects the click probability among a model's outputs. */
import type { FeatureSpec } from '../../../lib/core/slots.ts';
import { invalidResponseError } from './http-endpoint.ts';

export interface Output {
  readonly name: string;
  readonly data: ArrayLike<number>;
}

/**
 * Uses the slot spec, or without one the last column of the first output: P(click), or P(no click)
 * and P(click).
 * @throws CubeError INTERNAL when the response has no such numbers
 */
export function selectClickScores(
  outputs: readonly Output[],
  rowCount: number,
  source: string,
  spec: FeatureSpec | undefined,
): Float64Array {
  const name = spec?.click.output ?? outputs[0]?.name;
  const output = outputs.find((candidate) => candidate.name === name);
  if (output === undefined)
    throw invalidResponseError(`${source}: the response has no output ${name ?? ''}`);
  const width = output.data.length / rowCount;
  const column = spec?.click.column ?? width - 1;
  if (!Number.isInteger(width) || column >= width || column < 0) {
    const got = `${output.data.length} numbers in output ${output.name}`;
    throw invalidResponseError(`${source}: ${got} for ${rowCount} rows`);
  }
  const scores = new Float64Array(rowCount);
  for (let row = 0; row < rowCount; row++) {
    const score = output.data[row * width + column];
    if (typeof score !== 'number' || !Number.isFinite(score)) {
      throw invalidResponseError(`${source}: output ${output.name}, row ${row + 1}: not a number`);
    }
    scores[row] = score;
  }
  return scores;
}
