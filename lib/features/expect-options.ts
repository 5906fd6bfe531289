/** The options --expect and --expect-tolerance, which prune-model and cube-builder share. */
import { type Command, InvalidArgumentError } from '../platform/cli.ts';
import { SCORE_TOLERANCE } from './expected-scores.ts';

export interface ExpectOptions {
  readonly expect?: string;
  /** Default: SCORE_TOLERANCE. */
  readonly expectTolerance?: number;
}

export function addExpectOptions(command: Command): Command {
  return command
    .option(
      '--expect <rows:scores>',
      'Raw rows and the scores that the trained model gives them, such as ' +
        'rows.tsv:scores.csv, or JSON lines with a field "score" in each row. Hashing, scaling, ' +
        'lookups and graph must reproduce the scores (default: none)',
    )
    .option(
      '--expect-tolerance <number>',
      'Largest absolute difference from an expected score; quantized tables need more ' +
        `(default: ${SCORE_TOLERANCE})`,
      parseTolerance,
    );
}

function parseTolerance(text: string): number {
  const value = Number(text);
  if (text.trim() !== '' && value >= 0 && Number.isFinite(value)) return value;
  throw new InvalidArgumentError('Expected a number of at least 0, such as 1e-4.');
}
