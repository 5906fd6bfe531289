/** A version as plain Maps: the reference for every lookup. */
import assert from 'node:assert/strict';
import { setKey } from '../../../lib/core/keys.ts';
import {
  type LookupGroup,
  type LookupSummary,
  OUTCOME_HIT,
  OUTCOME_UNAVAILABLE,
  OUTCOME_UNSEEN,
} from '../../../lib/core/lookup-group.ts';
import type { Manifest } from '../../../lib/core/manifest.ts';

export const KEY_MAX: bigint = (1n << 64n) - 1n;

/** The keys from `from` up to, but not including, `to`. */
export function range(from: number, to: number): bigint[] {
  return Array.from({ length: to - from }, (_, i) => BigInt(from + i));
}

export interface OracleTable {
  readonly name: string;
  readonly dim: number;
  readonly rows: ReadonlyMap<bigint, Float32Array>;
  /** Empty: zeros. */
  readonly defaultRow: readonly number[];
  /** The stored rows when they are not f32: bytes that the client returns unchanged. */
  readonly stored?: {
    readonly dtype: 'f16' | 'i8';
    readonly rows: ReadonlyMap<bigint, Uint8Array>;
  };
  /** The values of a table of dtype bytes, which has no rows. */
  readonly values?: ReadonlyMap<bigint, Uint8Array>;
}

export interface OracleVersion {
  readonly bundle: string;
  readonly version: string;
  readonly shardNum: number;
  readonly tables: readonly OracleTable[];
}

/** Creates a table whose values differ by key, element and salt. */
export function createOracleTable(
  name: string,
  dim: number,
  keys: Iterable<bigint>,
  options: { salt?: number; defaultRow?: readonly number[] } = {},
): OracleTable {
  const { salt = 1, defaultRow = [] } = options;
  const rows = new Map<bigint, Float32Array>();
  for (const key of keys) {
    const row = Float32Array.from(
      { length: dim },
      (_, d) => salt * 1000 + d + Number(key % 997n) / 997,
    );
    rows.set(key, row);
  }
  return { name, dim, rows, defaultRow };
}

/** Creates the manifest of a version that only test servers serve: its layers have no files. */
export function createManifest(version: OracleVersion): Manifest {
  return {
    bundle: version.bundle,
    version: version.version,
    files: [],
    hash: { scheme: 'raw', seed: 0n, modulo: 0n },
    slots: [],
    tables: version.tables.map(({ name, dim, rows, defaultRow, stored, values }) => ({
      name,
      dim,
      dtype: values === undefined ? (stored?.dtype ?? 'f32') : 'bytes',
      rows: rows.size,
      defaultRow,
      shardNum: version.shardNum,
      shards: Array.from({ length: version.shardNum }, (_, shard) => [
        {
          contentId: shard.toString(16).padStart(32, '0'),
          kind: 'base',
          bytes: 0,
          sha256: '0'.repeat(64),
          rows: 0,
        },
      ]),
    })),
  };
}

/**
 * Creates a group whose outputs are filled with garbage, so that unwritten elements are detected.
 */
export function createGroup(table: OracleTable, keys: readonly bigint[]): LookupGroup {
  const words = new Uint32Array(2 * keys.length);
  keys.forEach((key, i) => {
    setKey(words, i, key);
  });
  return {
    table: table.name,
    keys: words,
    count: keys.length,
    rows: new Float32Array(keys.length * table.dim).fill(Number.NaN),
    outcomes: new Uint8Array(keys.length).fill(77),
  };
}

/** Whether a row has exactly these values; false also if one is NaN, whose bytes may differ. */
function hasValues(rows: Float32Array, from: number, expected: Float32Array): boolean {
  for (let d = 0; d < expected.length; d++) {
    const value = rows[from + d];
    if (!Object.is(value, expected[d]) || Number.isNaN(value)) return false;
  }
  return true;
}

/**
 * Asserts that every key has the table's row and outcome; keys for which `isDown` returns true are
 * unavailable.
 */
export function assertLookup(
  version: OracleVersion,
  groups: readonly { table: OracleTable; keys: readonly bigint[]; group: LookupGroup }[],
  summary: LookupSummary,
  isDown: (shard: number, outcome: number) => boolean = () => false,
): void {
  let unseen = 0;
  let unavailable = 0;
  for (const { table, keys, group } of groups) {
    const defaultRow = Float32Array.from({ length: table.dim }, (_, d) => table.defaultRow[d] ?? 0);
    keys.forEach((key, i) => {
      const shard = Number(key % BigInt(version.shardNum));
      const row = table.rows.get(key);
      let outcome = row === undefined ? OUTCOME_UNSEEN : OUTCOME_HIT;
      if (isDown(shard, group.outcomes[i]!)) outcome = OUTCOME_UNAVAILABLE;
      const expected = outcome === OUTCOME_HIT ? row! : defaultRow;
      const isRight =
        group.outcomes[i] === outcome &&
        expected.length === table.dim &&
        hasValues(group.rows, i * table.dim, expected);
      // Assertions and their texts take long, and there is one for each of many keys.
      if (!isRight) {
        const location = `${version.version} ${table.name} key ${key} (shard ${shard})`;
        const context = summary.reason === undefined ? location : `${location}; ${summary.reason}`;
        assert.equal(group.outcomes[i], outcome, context);
        const actual = group.rows.subarray(i * table.dim, (i + 1) * table.dim);
        assert.deepEqual(actual, expected, context);
      }
      if (outcome === OUTCOME_UNSEEN) unseen++;
      if (outcome === OUTCOME_UNAVAILABLE) unavailable++;
    });
  }
  assert.equal(summary.version, version.version);
  assert.equal(summary.unseen, unseen);
  assert.equal(summary.unavailable, unavailable);
  assert.equal(summary.reason === undefined, unavailable === 0);
}
