/**
 * Random damage to layer files of every layout and dtype, in memory and on disk. Each trial loads a
 * version with one damaged file, or damages the file after loading, and looks up its keys. A load
 * or lookup may be refused or right; a wrong row must never be returned.
 */
import assert from 'node:assert/strict';
import { closeSync, openSync, readFileSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { CubeError } from '../../../lib/core/errors.ts';
import { getKeySegments, getRowSegments, HEADER_BYTES } from '../../../lib/core/layer-format.ts';
import { decodeHeader } from '../../../lib/core/layer-header.ts';
import type { Manifest, TableDtype } from '../../../lib/core/manifest.ts';
import { ResidentStore } from '../../../lib/store/resident-store.ts';
import type { ResidentTable } from '../../../lib/store/resident-table.ts';
import { SeededRandom } from '../../rpc/support/fuzz.ts';
import { type AnyChain, computeExpected, lookUpChain, writeChain } from './arbitrary-chain.ts';
import type { AnyLayer } from './arbitrary-layer.ts';
import { createLayerPath, getLoadedTable } from './layers.ts';
import { sealLayer } from './seal.ts';

export interface DamageCounts {
  trials: number;
  refused: number;
  right: number;
  wrong: number;
}

const ROW_DTYPES: readonly TableDtype[] = ['f32', 'f16', 'bf16', 'i8'];
const DTYPES: readonly TableDtype[] = [...ROW_DTYPES, 'bytes'];
const SMALL_ROWS = 150;
/** Their files have several blocks of 1 MiB. */
const LARGE_ROWS = 60_000;
const SMALL_DIM = 7;
const LARGE_DIM = 10;
const PROBES_MAX = 1_500;
const PROBES_PER_LOOKUP = 50;
const SECTOR_BYTES = 512;
const PAGE_BYTES = 4096;
const BUDGET_BYTES = 256 << 20;
/** Odd: makes keys distinct and spread. */
const FACTOR = 0x9e37_79b9_7f4a_7c15n;
/** How a load or lookup of a damaged file may fail. */
const REFUSALS: readonly string[] = ['CORRUPT', 'UNSUPPORTED', 'IO'];

type Layout = 'inline' | 'dense' | 'indexed' | 'delta';
type Storage = 'memory' | 'disk';

/** A version whose layers are on disk, and the answers for its keys. */
interface Subject {
  readonly name: string;
  readonly manifest: Manifest;
  readonly files: ReadonlyMap<string, Buffer>;
  readonly lookups: readonly ExpectedLookup[];
}

interface ExpectedLookup {
  readonly keys: readonly bigint[];
  /** The answer as JSON. */
  readonly expected: string;
}

function createChain(layout: Layout, dtype: TableDtype, rows: number): AnyChain {
  const dim = dtype === 'bytes' ? 0 : rows === SMALL_ROWS ? SMALL_DIM : LARGE_DIM;
  const table = { dtype, dim, shardIndex: 1, shardNum: 3 };
  const spread = (i: number): bigint => BigInt.asUintN(62, BigInt(i) * FACTOR) * 3n + 1n;
  const toKey = layout === 'dense' ? (i: number): bigint => BigInt(3 * i + 1) : spread;
  const keys = Array.from({ length: rows }, (_, i) => toKey(i));
  // A delta is inline, where rows are small, or indexed, which can stay on disk.
  const indexed = layout === 'indexed' || (layout === 'delta' && rows !== SMALL_ROWS);
  const base: AnyLayer = { keys, deleted: [], indexed, segmentBytesMax: undefined, salt: 1 };
  const delta: AnyLayer = {
    ...base,
    keys: keys.filter((_, i) => i % 3 === 0),
    deleted: keys.filter((_, i) => i % 3 === 1 && i % 2 === 0),
    salt: 2,
  };
  const every = Math.ceil(rows / PROBES_MAX);
  const absent = Array.from({ length: 20 }, (_, i) => BigInt(i) * 3n + 1n + 2n ** 62n * 3n);
  const probes = [...keys.filter((_, i) => i % every === 0), ...absent];
  return { table, layers: layout === 'delta' ? [base, delta] : [base], defaultRow: [], probes };
}

function createSubject(folder: string, layout: Layout, dtype: TableDtype, rows: number): Subject {
  const chain = createChain(layout, dtype, rows);
  const name = `${layout} ${dtype}`;
  const manifest = writeChain(folder, chain);
  const files = new Map<string, Buffer>();
  for (const { contentId } of manifest.tables[0]!.shards[1]!) {
    files.set(contentId, readFileSync(createLayerPath(folder)('t', contentId)));
  }
  const answers = computeExpected(chain, chain.probes, false);
  assert.ok(Array.isArray(answers), 'a probe belongs to another shard');
  const lookups: ExpectedLookup[] = [];
  for (let at = 0; at < chain.probes.length; at += PROBES_PER_LOOKUP) {
    const end = at + PROBES_PER_LOOKUP;
    lookups.push({
      keys: chain.probes.slice(at, end),
      expected: JSON.stringify(answers.slice(at, end)),
    });
  }
  return { name, manifest, files, lookups };
}

export class DamageTrials {
  readonly counts: Map<string, DamageCounts> = new Map();
  /** What was done in trials with a wrong row or another error than a refusal. */
  readonly problems: string[] = [];
  readonly #random: SeededRandom;
  readonly #folder: string;
  readonly #subjects: readonly Subject[];
  readonly #stores: Readonly<Record<Storage, ResidentStore>>;
  #trial = 0;

  /** @param sizes rows of the tables; large ones have several blocks */
  constructor(folder: string, seed: number, sizes: 'small' | 'all' = 'all') {
    this.#random = new SeededRandom(seed);
    this.#folder = folder;
    const rows = sizes === 'small' ? [SMALL_ROWS] : [SMALL_ROWS, LARGE_ROWS];
    const shapes = [
      ...ROW_DTYPES.flatMap((dtype) => [['inline', dtype] as const, ['dense', dtype] as const]),
      ...DTYPES.flatMap((dtype) => [['indexed', dtype] as const, ['delta', dtype] as const]),
    ];
    this.#subjects = rows.flatMap((count) =>
      shapes.map(([layout, dtype]) => createSubject(folder, layout, dtype, count)),
    );
    const budgetBytes = BUDGET_BYTES;
    this.#stores = {
      memory: new ResidentStore({ budgetBytes }),
      disk: new ResidentStore({ budgetBytes, rowsOnDisk: true }),
    };
  }

  async close(): Promise<void> {
    await Promise.all(Object.values(this.#stores).map((store) => store.close()));
  }

  /** One trial with random damage, of a random version. */
  async run(): Promise<void> {
    const subject = this.#random.pick(this.#subjects);
    const [contentId, bytes] = this.#random.pick([...subject.files]);
    const [kind, damaged] = this.#damage(bytes);
    await this.#try(subject, contentId, kind, damaged, this.#random.below(2) === 0);
  }

  /** A trial whose damage has correct checksums: it must be counted as wrong. */
  async runCanary(storage: Storage): Promise<void> {
    const subject = this.#subjects.find(({ name }) => name === 'indexed f32');
    const [contentId, bytes] = [...(subject?.files ?? [])][0] ?? [];
    if (subject === undefined || contentId === undefined || bytes === undefined) return;
    const header = decodeHeader(bytes, 'canary');
    const damaged = Buffer.from(bytes);
    const { offset } = getRowSegments(header)[0] ?? getKeySegments(header)[0]!;
    damaged[offset + 1]! ^= 1;
    await this.#tryStorage(subject, contentId, 'canary', sealLayer(damaged), storage, true);
  }

  /** @param before the damage is there when the version is loaded */
  async #try(
    subject: Subject,
    contentId: string,
    kind: string,
    damaged: Uint8Array,
    before: boolean,
  ): Promise<void> {
    for (const storage of ['memory', 'disk'] as const) {
      await this.#tryStorage(subject, contentId, kind, damaged, storage, before);
    }
  }

  async #tryStorage(
    subject: Subject,
    contentId: string,
    kind: string,
    damaged: Uint8Array,
    storage: Storage,
    before: boolean,
  ): Promise<void> {
    const { name, manifest, files } = subject;
    const store = this.#stores[storage];
    const path = join(this.#folder, `damaged-${this.#trial++}`);
    writeFileSync(path, before ? damaged : files.get(contentId)!);
    const find = createLayerPath(this.#folder);
    const layerPath = (table: string, id: string): string =>
      id === contentId ? path : find(table, id);
    const what = `${name}, ${storage}, ${kind} ${before ? 'before' : 'after'} the load`;
    let outcome: keyof DamageCounts = 'right';
    try {
      await store.load({ manifest, shardIndex: 1, layerPath });
      if (!before) overwrite(path, damaged);
      outcome = await this.#lookUp(subject, getLoadedTable(store, '1', 't'), what);
    } catch (error) {
      outcome = this.#toOutcome(error, what);
    } finally {
      store.unload('test', '1');
      rmSync(path);
    }
    this.#count(`${name}, ${storage}`, outcome);
  }

  async #lookUp(
    { lookups }: Subject,
    table: ResidentTable,
    what: string,
  ): Promise<'refused' | 'right' | 'wrong'> {
    let outcome: 'refused' | 'right' | 'wrong' = 'right';
    for (const { keys, expected } of lookups) {
      try {
        const answer = await lookUpChain(table, keys, false);
        if (JSON.stringify(answer) === expected) continue;
        this.problems.push(`${what}: a wrong row`);
        return 'wrong';
      } catch (error) {
        outcome = this.#toOutcome(error, what);
        if (outcome === 'wrong') return outcome;
      }
    }
    return outcome;
  }

  #toOutcome(error: unknown, what: string): 'refused' | 'wrong' {
    if (error instanceof CubeError && REFUSALS.includes(error.code)) return 'refused';
    this.problems.push(`${what}: ${error}`);
    return 'wrong';
  }

  #count(name: string, outcome: keyof DamageCounts): void {
    const counts = this.counts.get(name) ?? { trials: 0, refused: 0, right: 0, wrong: 0 };
    counts.trials += 1;
    counts[outcome] += 1;
    this.counts.set(name, counts);
  }

  /** @returns the kind of damage and the damaged bytes */
  #damage(intact: Buffer): [string, Uint8Array] {
    const random = this.#random;
    const bytes = Buffer.from(intact);
    const at = random.below(bytes.length);
    const unit = random.pick([SECTOR_BYTES, PAGE_BYTES]);
    const start = at - (at % unit);
    const other = random.below(Math.ceil(bytes.length / unit)) * unit;
    switch (random.below(8)) {
      case 0:
        return [`${bytes.length - at} bytes cut off`, bytes.subarray(0, at)];
      case 1:
        return ['bytes appended', Buffer.concat([bytes, random.bytes(1 + random.below(600))])];
      case 2:
        bytes.fill(0, start, start + unit);
        return [`${unit} zeros at ${start}`, bytes];
      case 3:
        intact.copy(bytes, start, other, other + unit);
        return [`${unit} bytes of ${other} at ${start}`, bytes];
      case 4:
        bytes.set(random.bytes(Math.min(1 + random.below(64), bytes.length - at)), at);
        return [`random bytes at ${at}`, bytes];
      case 5:
        bytes[random.below(HEADER_BYTES)]! ^= 1 << random.below(8);
        return ['a flipped bit of the header', bytes];
      default:
        bytes[at]! ^= 1 << random.below(8);
        return [`a flipped bit of byte ${at}`, bytes];
    }
  }
}

/** Replaces the content of an open file, as a failing disk does. */
function overwrite(path: string, bytes: Uint8Array): void {
  const descriptor = openSync(path, 'w');
  try {
    writeSync(descriptor, bytes);
  } finally {
    closeSync(descriptor);
  }
}
