/** Rows as callers of CtrClient have them, and what a call asks for beside them. */

import type { CtrRequest, CtrResponse } from '../../proto/ctr.ts';
import { CubeError } from '../core/errors.ts';

/** The features of a slot: null is missing; several for a slot that pools. */
export type CtrFeature = string | null | readonly string[];

/** By position, in the order of the model's features. */
export interface CtrPositionalRow {
  readonly dense: readonly (number | null)[];
  readonly categorical: readonly CtrFeature[];
}

/** Hashed and scaled already. */
export interface CtrKeyRow {
  readonly keys: readonly (bigint | readonly bigint[])[];
  readonly scaled: readonly number[];
}

/** By the names of the model's features; a name left out is missing. */
export interface CtrNamedRow {
  readonly [feature: string]: number | CtrFeature;
}

export type CtrRow = CtrPositionalRow | CtrKeyRow | CtrNamedRow;

/** Rows of one kind, or lines of tab-separated columns. */
export type CtrRows = readonly CtrRow[] | string | Uint8Array;

export interface CtrCall {
  /** A model, a version of it, or a channel's name for one; left out: what is served. */
  readonly model?: string;
  readonly version?: string;
  readonly label?: string;
  /** 0 goes first, 2 last; usually 1. */
  readonly priority?: number;
  /** Asks for outcomes slot by slot. */
  readonly detail?: boolean;
  /** Asks for how long the steps took. */
  readonly timings?: boolean;
  /** For all of the call, retries included. */
  readonly timeoutMs?: number;
}

export type CtrPrediction = CtrResponse;

/** One way to a serving process. */
export interface CtrTransport {
  /** @throws CubeError: the server's, UNAVAILABLE, DEADLINE_EXCEEDED */
  predict(rows: CtrRows, call: CtrCall, timeoutMs: number): Promise<CtrPrediction>;
  close(): void;
}

/** The same rows as hypercube.CtrService takes them. @throws CubeError INVALID_ARGUMENT for rows by name */
export function ctrRequestOf(rows: CtrRows, call: CtrCall): CtrRequest {
  const { model = '', version = '', label = '', priority, detail = false, timings = false } = call;
  const asked = { model, version, label, priority, detail, timings, shared: undefined };
  const none = {
    rowCount: rows.length,
    dense: new Float64Array(0),
    features: [],
    keys: new Uint32Array(0),
    scaled: new Float32Array(0),
    ends: new Uint32Array(0),
    tsv: new Uint8Array(0),
  };
  if (typeof rows === 'string') return { ...asked, ...none, rowCount: 0, tsv: Buffer.from(rows) };
  if (rows instanceof Uint8Array) return { ...asked, ...none, rowCount: 0, tsv: rows };
  const list = rows as readonly CtrRow[];
  if (list.every(isPositional)) {
    const { values: features, ends } = flatten(
      list.map(({ categorical }) => categorical),
      (value) => value ?? '',
    );
    const dense = Float64Array.from(list.flatMap((row) => row.dense.map((x) => x ?? Number.NaN)));
    return { ...asked, ...none, features, ends, dense };
  }
  if (list.every(isKeys)) {
    const { values, ends } = flatten(
      list.map((row) => row.keys),
      (key) => key!,
    );
    const keys = new Uint32Array(BigUint64Array.from(values as bigint[]).buffer);
    const scaled = Float32Array.from(list.flatMap((row) => row.scaled));
    return { ...asked, ...none, keys, ends, scaled };
  }
  throw new CubeError(
    'INVALID_ARGUMENT',
    'over gRPC rows are given by position, or all as keys; rows by name need an http:// address',
  );
}

function isPositional(row: CtrRow): row is CtrPositionalRow {
  return Array.isArray(row['dense' as never]) && Array.isArray(row['categorical' as never]);
}

function isKeys(row: CtrRow): row is CtrKeyRow {
  return Array.isArray(row['keys' as never]) && Array.isArray(row['scaled' as never]);
}

/** All values side by side; `ends` stays empty where every slot has exactly one. */
function flatten<T extends string | bigint>(
  rows: readonly (readonly (T | null | readonly T[])[])[],
  single: (value: T | null) => T,
): { values: T[]; ends: Uint32Array } {
  const pools = new Set<number>();
  for (const row of rows) {
    row.forEach((value, slot) => {
      if (Array.isArray(value)) pools.add(slot);
    });
  }
  const values: T[] = [];
  const ends: number[] = [];
  for (const row of rows) {
    row.forEach((value, slot) => {
      if (!Array.isArray(value)) {
        if (value !== null || !pools.has(slot)) values.push(single(value as T | null));
      } else for (const one of value as readonly T[]) values.push(one);
      ends.push(values.length);
    });
  }
  return { values, ends: Uint32Array.from(pools.size === 0 ? [] : ends) };
}
