/** The scores of a run as tab-separated columns: row (from 1), label (empty where the rows have none), probability, version. */
import { dirname } from 'node:path';
import { CubeError } from '../../../lib/core/errors.ts';
import { isFolder, makeFolder, replaceFile } from '../../../lib/platform/files.ts';
import type { Tally } from '../load/tally.ts';
import type { RowsFile } from '../rows/rows-file.ts';

const PIECE_ROWS = 10_000;

/** Told before the rows are sent, not after. @throws CubeError when no file can be written there */
export function checkWritable(option: string, path: string): void {
  if (isFolder(path)) {
    throw new CubeError('CONFLICT', `${option} ${path} is a folder; name a file in it`);
  }
  makeFolder(dirname(path));
}

/** The file is there whole or not at all. */
export function writeScores(path: string, { labels }: RowsFile, tally: Tally): void {
  const { probabilities, versionOf } = tally;
  const pieces = ['row\tlabel\tprobability\tversion\n'];
  let piece = '';
  for (let row = 0; row < probabilities.length; row++) {
    const score = Number.isNaN(probabilities[row]) ? '' : probabilities[row];
    piece += `${row + 1}\t${labels?.[row] ?? ''}\t${score}\t${versionOf[row]}\n`;
    if (row % PIECE_ROWS !== PIECE_ROWS - 1) continue;
    pieces.push(piece);
    piece = '';
  }
  replaceFile(path, Buffer.concat([...pieces, piece].map((text) => Buffer.from(text))));
}
