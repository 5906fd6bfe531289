/** Scores files as users find them. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import type { ToyBundle, ToyRow } from '../../serving/support/toy-bundle.ts';

export const TOLERANCE = 1e-6;

/** The columns of a scores file. */
export function readScores(
  path: string,
): { label: string; probability: string; version: string }[] {
  const [header, ...lines] = readFileSync(path, 'utf8').trimEnd().split('\n');
  assert.equal(header, 'row\tlabel\tprobability\tversion');
  return lines.map((line, i) => {
    const [row, label, probability, version] = line.split('\t');
    assert.equal(row, String(i + 1));
    return { label: label!, probability: probability!, version: version! };
  });
}

export function assertScores(path: string, toy: ToyBundle, rows: readonly ToyRow[]): void {
  const scores = readScores(path);
  assert.equal(scores.length, rows.length);
  rows.forEach((row, i) => {
    const difference = Math.abs(Number(scores[i]!.probability) - toy.score(row)[1]);
    assert.ok(difference < TOLERANCE, `row ${i}: off by ${difference}`);
  });
}
