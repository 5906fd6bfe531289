/**
 * A golden row: a JSON row as requests have it, with the score that the trained model gives it as
 * an additional field `score`. In a model with a feature of that name the field is the feature.
 */
import type { FeatureSpec } from './feature-spec.ts';
import { JsonReader } from './json.ts';

/** The file of a version with its golden rows, one JSON row in each line. */
export const GOLDEN_FILE = 'golden.jsonl';
export const SCORE_FIELD = 'score';

/** Whether the field `score` of a row by name is a feature of the model. */
export function hasScoreFeature({ slots, dense }: Pick<FeatureSpec, 'slots' | 'dense'>): boolean {
  const features = dense?.features ?? [];
  return [...slots, ...features].some(({ name }) => name === SCORE_FIELD);
}

/**
 * @param source place of the row in errors
 * @returns the row as a request has it, and its expected score; NaN without one
 * @throws CubeError INVALID_ARGUMENT when the score is not a number
 */
export function splitGoldenRow(value: unknown, source: string): { row: unknown; score: number } {
  if (typeof value !== 'object' || value === null || !Object.hasOwn(value, SCORE_FIELD)) {
    return { row: value, score: Number.NaN };
  }
  const { [SCORE_FIELD]: expected, ...row } = value as Readonly<Record<string, unknown>>;
  return { row, score: JsonReader.of({ score: expected }, source).field(SCORE_FIELD).number() };
}
