/** The golden files of Cube's formats: their rows, and their bytes as Cube's tools write them. */
import { createDictFiles, encodeFloats, encodeSequenceFile } from './writers.ts';

const KEYS = [0n, 1n, 5n, 2n ** 32n, 2n ** 63n, 2n ** 64n - 1n];

const row = (key: bigint, version: number): Float32Array =>
  Float32Array.from({ length: 10 }, (_, j) => Number(key % 1000n) + j / 8 + version);

/** Six rows, a sync marker after each two; then a delta of two keys, one of them new. */
const BASE: [bigint, Uint8Array][] = KEYS.map((key) => [key, encodeFloats(row(key, 0))]);
const DELTA: [bigint, Uint8Array][] = [5n, 9n].map((key) => [key, encodeFloats(row(key, 1))]);

/** The rows of the dict, in order; the last row of a key wins. */
export const GOLDEN_ROWS: readonly [bigint, Float32Array][] = [
  ...KEYS.map((key) => [key, row(key, 0)] as [bigint, Float32Array]),
  [5n, row(5n, 1)],
  [9n, row(9n, 1)],
];
export const GOLDEN_SEQUENCE_ROWS = 6;

/** By path below data/golden. */
export function createGoldenCubeFiles(): Map<string, Uint8Array> {
  const files = new Map<string, Uint8Array>([['cube.seq', encodeSequenceFile(BASE, 96)]]);
  for (const [name, bytes] of createDictFiles([BASE, DELTA], 100))
    files.set(`cube-dict/${name}`, bytes);
  return files;
}
