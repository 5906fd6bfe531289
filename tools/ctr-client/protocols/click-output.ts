/** Which number of a model's outputs is the click probability. */
import type { FeatureSpec } from '../../../lib/core/slots.ts';
import { notServing } from './http-endpoint.ts';

export interface Output {
  readonly name: string;
  readonly data: ArrayLike<number>;
}

/**
 * As the slot spec says; without one the last column of the first output: P(click), or P(no click) and P(click).
 * @throws CubeError INTERNAL when the answer has no such numbers
 */
export function clickScores(
  outputs: readonly Output[],
  rowCount: number,
  source: string,
  spec: FeatureSpec | undefined,
): Float64Array {
  const name = spec?.click.output ?? outputs[0]?.name;
  const output = outputs.find((candidate) => candidate.name === name);
  if (output === undefined)
    throw notServing(`${source}: an answer without an output ${name ?? ''}`);
  const width = output.data.length / rowCount;
  const column = spec?.click.column ?? width - 1;
  if (!Number.isInteger(width) || column >= width || column < 0) {
    const got = `${output.data.length} numbers in output ${output.name}`;
    throw notServing(`${source}: ${got} for ${rowCount} rows`);
  }
  const scores = new Float64Array(rowCount);
  for (let row = 0; row < rowCount; row++) {
    const score = output.data[row * width + column]!;
    if (typeof score !== 'number' || !Number.isFinite(score)) {
      throw notServing(`${source}: output ${output.name}, row ${row + 1}: no number`);
    }
    scores[row] = score;
  }
  return scores;
}
