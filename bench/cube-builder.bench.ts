/**
 * How fast cube-builder builds a version from a .npy file on two threads: in memory and by sorting
 * on disk, for consecutive ids (dense layers) and for spread keys (inline layers). The file is in
 * the page cache.
 *
 *     node dist/bench/cube-builder.bench.js
 */
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { encodeNpyHeader } from '../lib/core/npy.ts';
import { getFileBytes, makeTemporaryFolder, removePath } from '../lib/platform/files.ts';
import { AppendWriter } from '../lib/platform/spill-file.ts';

const ROWS = 10_000_000;
const DIM = 10;
const SHARDS = 8;
const PIECE_ROWS = 100_000;
const BUILDER = join(import.meta.dirname, '..', 'tools', 'cube-builder', 'main.js');

function writeRows(path: string): void {
  const file = new AppendWriter(path, 0);
  file.write(encodeNpyHeader('f4', [ROWS, DIM]));
  const piece = new Float32Array(PIECE_ROWS * DIM).map(() => Math.random());
  for (let row = 0; row < ROWS; row += PIECE_ROWS) file.write(new Uint8Array(piece.buffer));
  file.close();
}

function writeKeys(path: string): void {
  const file = new AppendWriter(path, 0);
  file.write(encodeNpyHeader('i8', [ROWS]));
  const piece = new BigUint64Array(PIECE_ROWS);
  for (let row = 0; row < ROWS; row += PIECE_ROWS) {
    for (let i = 0; i < PIECE_ROWS; i++) {
      piece[i] = BigInt.asUintN(64, BigInt(row + i + 1) * 0x9e37_79b9_7f4a_7c15n);
    }
    file.write(new Uint8Array(piece.buffer));
  }
  file.close();
}

function measure(folder: string, inputs: readonly string[], memory: string, name: string): void {
  const repository = join(folder, 'repository');
  const target = ['--output-path', repository, '--bundle', 'b', '--cur-version', '1'];
  const flags = ['--shard-num', String(SHARDS), '--memory', memory, '--threads', '2', '--json'];
  const args = [BUILDER, '--input', ...inputs, ...target, ...flags];
  const { stdout, stderr, status } = spawnSync(process.execPath, args, { encoding: 'utf8' });
  if (status !== 0) throw new Error(stderr);
  const { seconds, bytes } = JSON.parse(stdout) as { seconds: number; bytes: number };
  const rate = (ROWS / seconds / 1e6).toFixed(2);
  const megabytes = (bytes / seconds / 1e6).toFixed(0);
  process.stdout.write(
    `${name.padEnd(36)} ${memory.padEnd(8)} ${rate} M rows/s, ${megabytes} MB/s written\n`,
  );
  removePath(repository);
}

const folder = makeTemporaryFolder('hypercube-bench-');
try {
  const rows = join(folder, 't.npy');
  const keys = join(folder, 't.keys.npy');
  writeRows(rows);
  process.stdout.write(
    'How fast cube-builder builds a version: in memory against sorting on disk, ' +
      `for consecutive and spread keys.\n` +
      `${ROWS} rows × ${4 * DIM} bytes (${getFileBytes(rows)}), ${SHARDS} shards\n`,
  );
  measure(folder, [rows], '2GiB', 'consecutive ids, in memory');
  measure(folder, [rows], '256MiB', 'consecutive ids, sorted on disk');
  writeKeys(keys);
  measure(folder, [rows, keys], '2GiB', 'spread keys, in memory');
  measure(folder, [rows, keys], '256MiB', 'spread keys, sorted on disk');
} finally {
  removePath(folder);
}
