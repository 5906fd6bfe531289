/** The golden files of Cube's own formats: what they hold, and their bytes as Cube's tools write them. */
import { dictFiles, f32Bytes, sequenceFile } from './writers.ts';

const KEYS = [0n, 1n, 5n, 2n ** 32n, 2n ** 63n, 2n ** 64n - 1n];

const row = (key: bigint, version: number): Float32Array =>
  Float32Array.from({ length: 10 }, (_, j) => Number(key % 1000n) + j / 8 + version);

/** Six rows, a sync marker after each two; then a delta of two keys, one of them new. */
const BASE: [bigint, Uint8Array][] = KEYS.map((key) => [key, f32Bytes(row(key, 0))]);
const DELTA: [bigint, Uint8Array][] = [5n, 9n].map((key) => [key, f32Bytes(row(key, 1))]);

/** What the dict holds, in order: the last of a key is meant. */
export const GOLDEN_ROWS: readonly [bigint, Float32Array][] = [
  ...KEYS.map((key) => [key, row(key, 0)] as [bigint, Float32Array]),
  [5n, row(5n, 1)],
  [9n, row(9n, 1)],
];
export const GOLDEN_SEQUENCE_ROWS = 6;

/** By path below data/golden. */
export function goldenCubeFiles(): Map<string, Uint8Array> {
  const files = new Map<string, Uint8Array>([['cube.seq', sequenceFile(BASE, 96)]]);
  for (const [name, bytes] of dictFiles([BASE, DELTA], 100)) files.set(`cube-dict/${name}`, bytes);
  return files;
}
