/** One key in the tables of a version, for the console: feature → key → shard → row. */
import { CubeError } from '../../lib/core/errors.ts';
import { RowHasher } from '../../lib/core/hash.ts';
import { computeShard, keyToBigint, setKey } from '../../lib/core/keys.ts';
import { type LookupGroup, OUTCOME_HIT, OUTCOME_UNSEEN } from '../../lib/core/lookup-group.ts';
import { getShardNum, type TableRef } from '../../lib/core/manifest.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';

const TIMEOUT_MS = 2_000;
const FEATURE_CHARS_MAX = 4_096;
/** Longer rows are cut. */
const ELEMENTS_MAX = 4_096;
const KEY_PATTERN = /^(0|[1-9]\d{0,19}|0x[0-9a-f]{1,16})$/i;
const KEY_MAX = 2n ** 64n - 1n;

/** A slot with a feature, or a key; and the table, if not all that take the slot. */
export interface RowQuestion {
  readonly slot?: string | undefined;
  readonly feature?: string | undefined;
  readonly key?: string | undefined;
  readonly table?: string | undefined;
}

/** @throws CubeError INVALID_ARGUMENT, NOT_FOUND, and those of the store */
export async function lookUpRow(bundle: LoadedBundle, question: RowQuestion): Promise<object> {
  const { manifest } = bundle;
  const keys = readKey(bundle, question);
  const tables = findTables(bundle, question);
  const groups = tables.map(({ name, dim }): LookupGroup => {
    return {
      table: name,
      keys,
      count: 1,
      outcomes: new Uint8Array(1),
      rows: new Float32Array(dim),
    };
  });
  bundle.acquire();
  try {
    await bundle.lookUp(groups, TIMEOUT_MS);
  } finally {
    bundle.release();
  }
  const key = keyToBigint(keys, 0);
  const shardNum = getShardNum(manifest);
  return {
    model: manifest.bundle,
    version: manifest.version,
    key: String(key),
    hex: `0x${key.toString(16).padStart(16, '0')}`,
    shard: computeShard(keys[0] ?? 0, keys[1] ?? 0, shardNum),
    shardNum,
    rows: groups.map(({ table, outcomes, rows }) => ({
      table,
      outcome: nameOutcome(outcomes[0]),
      dim: rows.length,
      norm: computeNorm(rows),
      row: Array.from(rows.subarray(0, ELEMENTS_MAX)),
    })),
  };
}

function nameOutcome(outcome: number | undefined): string {
  if (outcome === OUTCOME_HIT) return 'hit';
  return outcome === OUTCOME_UNSEEN ? 'unseen' : 'unavailable';
}

export function computeNorm(row: Float32Array): number {
  let sum = 0;
  for (const value of row) sum += value * value;
  return Math.sqrt(sum);
}

function readKey({ manifest }: LoadedBundle, { slot, feature, key }: RowQuestion): Uint32Array {
  const keys = new Uint32Array(2);
  if (key !== undefined) {
    if (slot !== undefined || feature !== undefined) {
      throw new CubeError('INVALID_ARGUMENT', 'give a key, or a slot with a feature');
    }
    if (!KEY_PATTERN.test(key) || BigInt(key) > KEY_MAX) {
      const shown = JSON.stringify(key.slice(0, 30));
      throw new CubeError('INVALID_ARGUMENT', `key: expected 0 to 2^64-1, or 0x…, got ${shown}`);
    }
    setKey(keys, 0, BigInt(key));
    return keys;
  }
  if (slot === undefined || feature === undefined) {
    throw new CubeError('INVALID_ARGUMENT', 'give a key, or a slot with a feature');
  }
  if (feature.length > FEATURE_CHARS_MAX) {
    throw new CubeError('TOO_LARGE', `feature: more than ${FEATURE_CHARS_MAX} characters`);
  }
  const rule = manifest.slots.find(({ name }) => name === slot);
  if (rule === undefined) {
    const shown = JSON.stringify(slot.slice(0, 60));
    throw new CubeError('NOT_FOUND', `${manifest.bundle} ${manifest.version} has no slot ${shown}`);
  }
  new RowHasher(manifest.hash, [rule]).hashRows([feature], 1, keys);
  return keys;
}

/** Tables of dtype bytes have no rows of numbers. */
function findTables(
  { manifest, lookupSlots }: LoadedBundle,
  { slot, table: wanted }: RowQuestion,
): TableRef[] {
  const taking = lookupSlots.find(({ name }) => name === slot)?.tables;
  const found = manifest.tables.filter(
    ({ name, dtype }) =>
      dtype !== 'bytes' &&
      (wanted === undefined ? (taking?.includes(name) ?? true) : name === wanted),
  );
  if (found.length > 0) return found;
  const shown = wanted === undefined ? 'table of rows' : `table ${JSON.stringify(wanted)}`;
  throw new CubeError('NOT_FOUND', `${manifest.bundle} ${manifest.version} has no ${shown}`);
}
