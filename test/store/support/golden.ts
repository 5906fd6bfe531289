/**
 * The golden layer files of format version 1 in data/golden/: every layout with every dtype, deltas
 * and an empty shard. `node dist/test/store/support/make-golden-process.js` wrote them.
 * They must stay readable, and the builder must reproduce them byte for byte.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { LayerLayout } from '../../../lib/core/layer-format.ts';
import { decodeHeader } from '../../../lib/core/layer-header.ts';
import type { LayerInput } from '../../../lib/core/layer-input.ts';
import { type AnyLayer, type AnyTable, createLayerInput } from './arbitrary-layer.ts';
import type { TestTable } from './layers.ts';

export const GOLDEN_FOLDER: string = fileURLToPath(
  new URL('../../../../data/golden/', import.meta.url),
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

/** A golden layer of any kind, as the property tests make them. */
export interface GoldenKind {
  readonly file: string;
  readonly layout: LayerLayout;
  readonly table: AnyTable;
  readonly layer: AnyLayer;
  /** Golden file of a delta's parent layer. */
  readonly parent?: string;
}

const SCATTERED = [1n, 3n, 5n, 11n, 2n ** 32n + 1n, 2n ** 63n + 7n, 2n ** 64n - 1n, 2n ** 64n - 3n];
const PROGRESSION = [7n, 13n, 1n, 19n, 25n];
const PLAIN = { deleted: [], indexed: false, segmentBytesMax: undefined, salt: 3 } as const;

const kinds: GoldenKind[] = [];
for (const dtype of ['f32', 'f16', 'bf16', 'i8', 'bytes'] as const) {
  const table = { dtype, dim: dtype === 'bytes' ? 0 : 5, shardIndex: 1, shardNum: 2 };
  const base = { ...PLAIN, keys: SCATTERED };
  if (dtype !== 'bytes' && dtype !== 'f32') {
    kinds.push({ file: `inline-${dtype}.cube`, layout: 'inline', table, layer: base });
    const dense = { ...PLAIN, keys: PROGRESSION };
    kinds.push({ file: `dense-${dtype}.cube`, layout: 'dense', table, layer: dense });
  }
  const indexed = { ...base, indexed: true };
  kinds.push({ file: `indexed-${dtype}.cube`, layout: 'indexed', table, layer: indexed });
  const delta = { ...PLAIN, keys: [3n, 9n], deleted: [5n, 2n ** 64n - 1n, 77n], salt: 4 };
  const layout = dtype === 'bytes' ? 'indexed' : 'inline';
  const parent = `indexed-${dtype}.cube`;
  kinds.push({ file: `delta-${dtype}.cube`, layout, table, layer: delta, parent });
}
const f16 = { dtype: 'f16', dim: 5, shardIndex: 1, shardNum: 2 } as const;
kinds.push({
  file: 'delta-deletes-only.cube',
  layout: 'inline',
  table: f16,
  parent: 'delta-f16.cube',
  layer: { ...PLAIN, keys: [], deleted: [1n, 9n] },
});

export const GOLDEN_KINDS: readonly GoldenKind[] = kinds;

export function createGoldenInput({ table, layer, parent }: GoldenKind): LayerInput {
  if (parent === undefined) return createLayerInput(table, layer);
  const page = readFileSync(join(GOLDEN_FOLDER, parent)).subarray(0, 4096);
  return createLayerInput(table, layer, decodeHeader(page, parent).contentId);
}
