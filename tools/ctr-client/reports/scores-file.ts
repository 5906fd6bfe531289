/**
 * Writes the scores of a run as tab-separated columns: row (from 1), label (empty without labels),
 * probability, version.
 */
import { dirname } from 'node:path';
import { CubeError } from '../../../lib/core/errors.ts';
import { isFolder, makeFolder, replaceFile } from '../../../lib/platform/files.ts';
import type { ResponseRecorder } from '../load/response-recorder.ts';
import type { RowsFile } from '../rows/rows-file.ts';

const CHUNK_ROWS = 10_000;

/** Checked before rows are sent. @throws CubeError when no file can be written there */
export function checkWritable(option: string, path: string): void {
  if (isFolder(path)) {
    throw new CubeError('CONFLICT', `${option} ${path} is a folder; give a file name`);
  }
  makeFolder(dirname(path));
}

/** The file is written completely or not at all. */
export function writeScores(path: string, { labels }: RowsFile, recorder: ResponseRecorder): void {
  const { probabilities, rowVersions } = recorder;
  const chunks = ['row\tlabel\tprobability\tversion\n'];
  let chunk = '';
  for (let row = 0; row < probabilities.length; row++) {
    const score = Number.isNaN(probabilities[row]) ? '' : probabilities[row];
    chunk += `${row + 1}\t${labels?.[row] ?? ''}\t${score}\t${rowVersions[row]}\n`;
    if (row % CHUNK_ROWS !== CHUNK_ROWS - 1) continue;
    chunks.push(chunk);
    chunk = '';
  }
  replaceFile(path, Buffer.concat([...chunks, chunk].map((text) => Buffer.from(text))));
}
