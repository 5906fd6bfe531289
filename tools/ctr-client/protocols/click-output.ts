/** Selects the click probability among a model's outputs. */
import type { FeatureSpec } from '../../../lib/core/slots.ts';
import { invalidResponseError } from './http-endpoint.ts';

export interface Output {
  readonly name: string;
  readonly data: ArrayLike<number>;
}

/** @throws CubeError INTERNAL when the response has no such numbers */
export function selectClickScores(
  outputs: readonly Output[],
  rowCount: number,
  source: string,
  { click: { output: name, column } }: FeatureSpec,
): Float64Array {
  const output = outputs.find((candidate) => candidate.name === name);
  if (output === undefined)
    throw invalidResponseError(`${source}: the response has no output ${name}`);
  const width = output.data.length / rowCount;
  if (!Number.isInteger(width) || column >= width) {
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
