/**
 * The golden layer files of format version 1, under data/golden/: one inline, one dense, one empty. They were made by
 * `node dist/test/store/make-golden-process.js` and must be read, and come out of the builder byte for byte, forever.
 */
import { fileURLToPath } from 'node:url';
import type { TestTable } from './layers.ts';

export const GOLDEN_FOLDER: string = fileURLToPath(
  new URL('../../../data/golden/', import.meta.url),
);

export interface GoldenLayer {
  readonly file: string;
  readonly layout: 'inline' | 'dense';
  readonly table: TestTable;
}

const inlineKeys = [0n, 2n ** 64n - 1n, 2n ** 64n - 4n, 3n, 2n ** 32n - 1n, 2n ** 53n + 1n];

export const GOLDEN_LAYERS: readonly GoldenLayer[] = [
  {
    file: 'inline.cube',
    layout: 'inline',
    table: {
      name: 'golden.inline',
      dim: 3,
      shardIndex: 0,
      shardNum: 3,
      keys: inlineKeys.filter((key) => key % 3n === 0n),
    },
  },
  {
    file: 'dense.cube',
    layout: 'dense',
    table: {
      name: 'golden.dense',
      dim: 2,
      shardIndex: 1,
      shardNum: 4,
      keys: [1n, 5n, 9n, 13n, 17n],
    },
  },
  {
    file: 'empty.cube',
    layout: 'inline',
    table: { name: 'golden.empty', dim: 8, shardIndex: 7, shardNum: 8, keys: [] },
  },
];
