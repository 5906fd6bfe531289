/**
 * Small models whose scores a test can compute by itself: a softmax over a linear graph on
 * embeddings and dense features, published with real layer files. Tables and weights differ from
 * version to version, so that a mix of two versions shows in the score.
 */
import { createHash } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import xxhash from 'xxhash-wasm';
import {
  formatManifest,
  type LayerRef,
  type Manifest,
  type TableRef,
} from '../../../lib/core/manifest.ts';
import {
  type DenseFeature,
  type HashSpec,
  type Slot,
  type SlotSpec,
  slotSpecToJson,
} from '../../../lib/core/slots.ts';
import type { Publication } from '../../../lib/repository/repository.ts';
import { writeLayer } from '../../../lib/store/layer-file.ts';
import {
  FLOAT,
  floats,
  ints,
  model,
  node,
  value,
} from '../../tools/prune-model/support/onnx-builder.ts';

const hasher = await xxhash();
const MODULO = 1_000n;

export const BUNDLE = 'toy';
const SLOTS: readonly Slot[] = [
  { name: 'C1', index: 14 },
  { name: 'C2', index: 15 },
  { name: 'C3', index: 16 },
];
const OWN_KEYS: readonly Slot[] = [
  { name: 'C1', index: 14, modulo: 977n, side: 'user' },
  { name: 'C2', index: 15, missing: 'none' },
  { name: 'C3', index: 16, modulo: 0n, missing: '7', side: 'item' },
];
const DENSE: readonly DenseFeature[] = [
  { name: 'I1', missing: 0, log: true, shift: 1.25, scale: 0.5 },
  { name: 'I2', missing: -1, log: false, shift: 0, scale: 0.125 },
];

/** Raw features of one row; NaN and '' are missing. */
export interface ToyRow {
  readonly dense: readonly number[];
  readonly categorical: readonly string[];
}

export interface ToyBundleOptions {
  readonly version: string;
  readonly seed: number;
  /** One input [batch, 3, dim], or one per slot ([batch, dim] and [batch, 1, dim] in turn). */
  readonly inputs?: 'one' | 'many';
  /** Another table of dim 1 for C1 and C3. */
  readonly wide?: boolean;
  readonly shardNum?: number;
  readonly golden?: boolean;
  /** Features are ids: the hash scheme is raw. */
  readonly raw?: boolean;
  /** Slots have a modulo and a value for missing ones of their own. */
  readonly ownKeys?: boolean;
  /** Positions of the slots of side user. */
  readonly userSlots?: readonly number[];
}

interface ToyTable {
  readonly name: string;
  readonly dim: number;
  readonly slots: readonly number[];
  readonly rows: ReadonlyMap<bigint, Float32Array>;
  readonly defaultRow: Float32Array;
}

/** Deterministic values in (-1, 1). */
function randomValues(seed: number): () => number {
  let state = (seed * 2_654_435_761) >>> 0 || 1;
  return () => {
    state ^= state << 13;
    state >>>= 0;
    state ^= state >>> 17;
    state ^= state << 5;
    state >>>= 0;
    return state / 2 ** 31 - 1;
  };
}

/** Keys that were asked for, by hashed text: tests score the same few features again and again. */
const hashedKeys = new Map<string, bigint>();

export function hashKey(slot: number, feature: string): bigint {
  const text = `${SLOTS[slot]!.index}${feature}`;
  const known = hashedKeys.get(text);
  if (known !== undefined) return known;
  const key = hasher.h64(text, 0n) % MODULO;
  hashedKeys.set(text, key);
  return key;
}

export class ToyBundle {
  readonly options: ToyBundleOptions;
  readonly tables: readonly ToyTable[];
  readonly #weights: Float32Array;
  readonly #bias: Float32Array;

  constructor(options: ToyBundleOptions) {
    this.options = options;
    const random = randomValues(options.seed);
    const table = (name: string, dim: number, slots: readonly number[]): ToyTable => {
      const rows = new Map<bigint, Float32Array>();
      for (let key = 0n; key < MODULO; key += 1n) {
        if (key % 5n !== 4n) rows.set(key, Float32Array.from({ length: dim }, random));
      }
      return { name, dim, slots, rows, defaultRow: Float32Array.from({ length: dim }, random) };
    };
    this.tables = [
      table('deep', 4, [0, 1, 2]),
      ...(options.wide ? [table('wide', 1, [0, 2])] : []),
    ];
    this.#weights = Float32Array.from({ length: 2 * this.#width }, random);
    this.#bias = Float32Array.from({ length: 2 }, random);
  }

  #getKey(slot: number, feature: string): bigint {
    if (this.options.raw) return BigInt(feature);
    if (!this.options.ownKeys) return hashKey(slot, feature);
    const { index, modulo = MODULO, missing = '' } = OWN_KEYS[slot]!;
    const hash = hasher.h64(`${index}${feature === '' ? missing : feature}`, 0n);
    return modulo === 0n ? hash : hash % modulo;
  }

  get #slots(): readonly Slot[] {
    const { ownKeys, userSlots } = this.options;
    const slots = ownKeys ? OWN_KEYS : SLOTS;
    if (userSlots === undefined) return slots;
    return slots.map((slot, i) => (userSlots.includes(i) ? { ...slot, side: 'user' } : slot));
  }

  get #hash(): HashSpec {
    if (this.options.raw) return { scheme: 'raw', seed: 0n, modulo: 0n };
    return { scheme: 'xxh64-concat', seed: 0n, modulo: MODULO };
  }

  get #width(): number {
    const embedded = this.tables.reduce((sum, { slots, dim }) => sum + slots.length * dim, 0);
    return embedded + DENSE.length;
  }

  /** The expected output for a row, computed in double precision. */
  score({ dense, categorical }: ToyRow): [number, number] {
    const x: number[] = [];
    for (const { slots, rows, defaultRow } of this.tables) {
      for (const slot of slots)
        x.push(...(rows.get(this.#getKey(slot, categorical[slot]!)) ?? defaultRow));
    }
    DENSE.forEach(({ missing, log, shift, scale }, i) => {
      let v = Number.isNaN(dense[i]!) ? missing : dense[i]!;
      if (log) v = Math.log(1 + Math.max(v, 0));
      x.push(Math.fround((v - shift) * scale));
    });
    const logits = [0, 1].map((column) =>
      x.reduce((sum, v, i) => sum + v * this.#weights[2 * i + column]!, this.#bias[column]!),
    );
    const [a, b] = logits.map(Math.exp) as [number, number];
    return [a / (a + b), b / (a + b)];
  }

  /** The number of lookups of the row whose key is not in the table. */
  unseen({ categorical }: ToyRow): number {
    let count = 0;
    for (const { slots, rows } of this.tables) {
      for (const slot of slots) if (!rows.has(this.#getKey(slot, categorical[slot]!))) count++;
    }
    return count;
  }

  get slotSpec(): SlotSpec {
    const many = this.options.inputs === 'many';
    return {
      embeddings: this.tables.flatMap(({ name, dim, slots }) => {
        const names = slots.map((slot) => SLOTS[slot]!.name);
        const common = { table: name, dim, dtype: 'f32' as const, ids: 'ids' };
        if (!many) {
          return [{ ...common, input: name, shape: [-1, slots.length, dim], slots: names }];
        }
        return names.map((slot, i) => ({
          ...common,
          input: `${name}_${slot}`,
          shape: i % 2 === 0 ? [-1, dim] : [-1, 1, dim],
          slots: [slot],
        }));
      }),
      tables: this.tables.map(({ name, dim, rows }) => {
        return { name, dim, rows: rows.size, dtype: 'f32' as const };
      }),
      features: {
        hash: this.#hash,
        slots: this.#slots,
        dense: { input: 'dense', features: DENSE },
        click: { output: 'prob', column: 1 },
      },
    };
  }

  get graph(): Uint8Array {
    const { embeddings } = this.slotSpec;
    const flat = embeddings.map(({ input, dim, slots }) => ({ input, width: dim * slots.length }));
    return model({
      inputs: [
        ...embeddings.map(({ input, shape }) => value(input, FLOAT, ['batch', ...shape.slice(1)])),
        value('dense', FLOAT, ['batch', DENSE.length]),
      ],
      outputs: [value('prob', FLOAT, ['batch', 2])],
      initializers: [
        ...flat.map(({ input, width }) => ints(`${input}_shape`, [2], [-1, width])),
        floats('w', [this.#width, 2], this.#weights),
        floats('b', [2], this.#bias),
      ],
      nodes: [
        ...flat.map(({ input }) => node('Reshape', [input, `${input}_shape`], [`${input}_flat`])),
        node('Concat', [...flat.map(({ input }) => `${input}_flat`), 'dense'], ['x'], {
          attributes: { axis: 1 },
        }),
        node('Gemm', ['x', 'w', 'b'], ['logits']),
        node('Softmax', ['logits'], ['prob'], { attributes: { axis: 1 } }),
      ],
    });
  }

  /**
   * Writes the layers under `folder`, ready to publish. @param files replaces files of the version
   */
  publication(folder: string, files: Readonly<Record<string, Uint8Array>> = {}): Publication {
    const text = (content: unknown): Uint8Array =>
      new TextEncoder().encode(JSON.stringify(content));
    const all = new Map<string, Uint8Array>([
      ['model.onnx', this.graph],
      ['slots.json', text(slotSpecToJson(this.slotSpec))],
      ...(this.options.golden
        ? [['golden.jsonl', text({ dense: [1, null], categorical: ['a', 'b', null] })] as const]
        : []),
      ...Object.entries(files),
    ]);
    const written = this.tables.map((table) =>
      writeTable(table, this.options.shardNum ?? 2, folder),
    );
    const manifest: Manifest = {
      bundle: BUNDLE,
      version: this.options.version,
      files: [...all].map(([path, bytes]) => ({
        path,
        bytes: bytes.length,
        sha256: sha256(bytes),
      })),
      hash: this.#hash,
      slots: this.#slots,
      tables: written.map(({ table }) => table),
    };
    return { manifest, files: all, layers: written.flatMap(({ layers }) => layers) };
  }
}

/** Exports a version to a folder. @param layers the folder of its layers, relative to `folder` */
export function exportBundle(
  toy: ToyBundle,
  folder: string,
  layers: string,
  bundle: string = BUNDLE,
): void {
  for (const made of [folder, join(folder, layers)]) mkdirSync(made, { recursive: true });
  const { manifest, files } = toy.publication(join(folder, layers));
  for (const [path, bytes] of files) writeFileSync(join(folder, path), bytes);
  writeFileSync(join(folder, 'manifest.json'), formatManifest({ ...manifest, bundle }));
}

function writeTable(
  { name, dim, rows, defaultRow }: ToyTable,
  shardNum: number,
  folder: string,
): { table: TableRef; layers: { table: string; contentId: string; path: string }[] } {
  const layers: { table: string; contentId: string; path: string }[] = [];
  const shards: LayerRef[][] = [];
  for (let shard = 0; shard < shardNum; shard++) {
    const entries = [...rows].filter(([key]) => key % BigInt(shardNum) === BigInt(shard));
    const keys = new Uint32Array(2 * entries.length);
    const values = new Float32Array(dim * entries.length);
    entries.forEach(([key, row], i) => {
      keys[2 * i] = Number(key);
      values.set(row, dim * i);
    });
    const layer = writeLayer(
      {
        table: name,
        dtype: 'f32',
        dim,
        shardIndex: shard,
        shardNum,
        keys,
        rows: new Uint8Array(values.buffer),
      },
      (contentId) => join(folder, `${contentId}.cube`),
    );
    const { contentId, bytes, path } = layer;
    layers.push({ table: name, contentId, path });
    shards.push([{ contentId, kind: 'base', bytes, sha256: layer.sha256, rows: layer.rows }]);
  }
  const table: TableRef = {
    name,
    dim,
    dtype: 'f32',
    rows: rows.size,
    defaultRow: [...defaultRow],
    shardNum,
    shards,
  };
  return { table, layers };
}

function sha256(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

/** Rows that include missing values and unseen features; deterministic by seed. */
export function toyRows(count: number, seed = 7): ToyRow[] {
  const random = randomValues(seed);
  return Array.from({ length: count }, () => ({
    dense: DENSE.map(() => (random() > 0.6 ? Number.NaN : Math.round(random() * 50))),
    categorical: SLOTS.map(() => (random() > 0.8 ? '' : `f${Math.round(random() * 40)}`)),
  }));
}

export function toTsv(rows: readonly ToyRow[], labels?: readonly number[]): string {
  return rows
    .map(({ dense, categorical }, i) => {
      const numbers = dense.map((v) => (Number.isNaN(v) ? '' : String(v)));
      const label = labels === undefined ? [] : [String(labels[i])];
      return `${[...label, ...numbers, ...categorical].join('\t')}\n`;
    })
    .join('');
}
