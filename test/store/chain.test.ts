import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { DTYPE_NUMBERS } from '../../lib/core/kernels/contract.ts';
import { createKernels, createMemory } from '../../lib/core/kernels/kernels.ts';
import {
  computeRowBytes,
  decodeRows,
  encodeRows,
  type RowDtype,
} from '../../lib/core/row-codec.ts';
import { writeLayer } from '../../lib/store/layer-file.ts';
import {
  type AnyLayer,
  type AnyTable,
  arbitraryKey,
  arbitraryLayer,
  arbitraryTable,
  createLayerInput,
  moveKeyToShard,
  storedBytes,
} from './support/arbitrary-layer.ts';
import { type Answers, ChainModel } from './support/chain-memory.ts';
import { temporaryFolder } from './support/layers.ts';

const KINDS = ['wasm', 'portable'] as const;

interface Chain {
  readonly table: AnyTable;
  readonly layers: readonly AnyLayer[];
  readonly probes: readonly bigint[];
}

/** Makes deltas overwrite, delete and restore keys of the layers below. */
function entangle(layers: readonly AnyLayer[], turns: readonly number[]): AnyLayer[] {
  return layers.map((layer, depth) => {
    const below = layers.slice(0, depth).flatMap((one) => [...one.keys, ...one.deleted]);
    const picked = (turn: number): bigint[] =>
      below.filter((_, i) => turns[i % turns.length] === turn);
    const keys = new Set([...layer.keys, ...picked(1)]);
    const deleted = new Set([...layer.deleted, ...picked(2)].filter((key) => !keys.has(key)));
    return { ...layer, keys: [...keys], deleted: [...deleted] };
  });
}

const anyChain: fc.Arbitrary<Chain> = arbitraryTable.chain((table) =>
  fc
    .record({
      base: arbitraryLayer(table, false),
      deltas: fc.array(arbitraryLayer(table, true), { maxLength: 3 }),
      turns: fc.array(fc.nat({ max: 4 }), { minLength: 7, maxLength: 7 }),
      probes: fc.array(arbitraryKey, { maxLength: 60 }),
    })
    .map(({ base, deltas, turns, probes }) => {
      const layers = entangle([base, ...deltas], turns);
      const known = layers.flatMap(({ keys, deleted }) => [...keys, ...deleted]);
      return {
        table,
        layers,
        probes: [...probes.map((key) => moveKeyToShard(key, table)), ...known].slice(0, 1000),
      };
    }),
);

function expected({ table, layers, probes }: Chain): Answers {
  const rows = new Map<bigint, string>();
  for (const { keys, deleted, salt } of layers) {
    for (const key of deleted) rows.delete(key);
    for (const key of keys) {
      rows.set(key, Buffer.from(storedBytes(table, key, salt)).toString('hex'));
    }
  }
  return probes.map((key) => rows.get(key));
}

function writeChain(folder: string, { table, layers }: Chain): string[] {
  let parent = '';
  return layers.map((layer) => {
    const input = createLayerInput(table, layer, parent);
    const written = writeLayer(input, (id) => join(folder, `${id}.cube`), layer.segmentBytesMax);
    parent = written.contentId;
    return written.path;
  });
}

test('a chain answers like a Map after all upserts and deletes, with both kernels', (context) => {
  const folder = temporaryFolder(context);
  fc.assert(
    fc.property(anyChain, (chain) => {
      const paths = writeChain(folder, chain);
      const answers = expected(chain);
      for (const kind of KINDS) {
        assert.deepEqual(new ChainModel(paths, kind).lookup(chain.probes), answers, kind);
      }
      const [base] = chain.layers;
      assert.ok(base);
      // A single-layer lookup of an index returns locations instead of rows.
      if (new ChainModel(paths.slice(0, 1), 'portable').isIndexed) return;
      const alone = expected({ ...chain, layers: [base] });
      for (const kind of KINDS) {
        const memory = new ChainModel(paths.slice(0, 1), kind);
        assert.deepEqual(memory.lookupAlone(chain.probes), alone, `${kind}, base alone`);
      }
    }),
    { numRuns: 150 },
  );
});

const SOURCE_AT = 64;
const TARGET_AT = 65_536;

/** Rows of a dtype expanded by one set of kernels, as bits. */
function expand(
  kind: 'wasm' | 'portable',
  dtype: RowDtype,
  stored: Uint8Array,
  dim: number,
): Uint32Array {
  const memory = createMemory(TARGET_AT * 4);
  const bytes = new Uint8Array(memory.buffer).fill(0xee);
  bytes.set(stored, SOURCE_AT);
  const rowBytes = computeRowBytes(dtype, dim);
  const count = stored.length / rowBytes;
  const number = DTYPE_NUMBERS[dtype];
  createKernels(memory, kind).expandRows(number, dim, rowBytes, SOURCE_AT, TARGET_AT, count);
  const end = TARGET_AT + 4 * dim * count;
  assert.ok(
    bytes.subarray(end, end + 64).every((byte) => byte === 0xee),
    'wrote beyond',
  );
  return new Uint32Array(bytes.slice(TARGET_AT, end).buffer);
}

test('stored rows expand to the exact f32 that the codec decodes, with both kernels', () => {
  for (const dtype of ['f32', 'f16', 'bf16', 'i8'] as const) {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 33 }),
        fc.nat({ max: 9 }),
        fc.nat(),
        (dim, count, seed) => {
          // Any bits, except for i8, whose NaN and infinite scales no encoder produces.
          const random = new Uint32Array(dim * count).map((_, i) =>
            Math.imul(seed + i * 7919, 0x9e37_79b1),
          );
          const stored =
            dtype === 'i8'
              ? encodeRows(
                  'i8',
                  Float32Array.from(random, (word) => (word % 4001) / 64 - 30),
                  dim,
                ).rows
              : new Uint8Array(random.buffer).slice(0, count * computeRowBytes(dtype, dim));
          if (stored.length < count * computeRowBytes(dtype, dim)) return;
          const decoded = new Uint32Array(decodeRows(dtype, stored, dim, count).buffer);
          for (const kind of KINDS)
            assert.deepEqual(expand(kind, dtype, stored, dim), decoded, kind);
        },
      ),
      { numRuns: 60 },
    );
  }
});

test('every f16 expands to its f32, infinities and NaN included', () => {
  const halves = Uint16Array.from({ length: 65_536 }, (_, i) => i);
  for (let start = 0; start < halves.length; start += 4096) {
    const stored = new Uint8Array(halves.slice(start, start + 4096).buffer);
    const decoded = new Uint32Array(decodeRows('f16', stored, 4096, 1).buffer);
    for (const kind of KINDS) assert.deepEqual(expand(kind, 'f16', stored, 4096), decoded);
  }
});
