/** The rows, options and results of CtrClient's calls. */
import type { CtrRequest, CtrResponse, Variants } from '../../proto/ctr.ts';
import { CubeError } from '../core/errors.ts';
import type { RequestProfile } from '../core/request-profile.ts';

/** The feature of a slot; null is missing. An array holds the features of a pooling slot. */
export type CtrFeature = string | null | readonly string[];

/** A row by position, in the order of the model's features. */
export interface CtrPositionalRow {
  readonly dense: readonly (number | null)[];
  readonly categorical: readonly CtrFeature[];
}

/** A row whose features are already hashed and scaled. */
export interface CtrKeyRow {
  readonly keys: readonly (bigint | readonly bigint[])[];
  readonly scaled: readonly number[];
}

/** A row by the names of the model's features; an absent name is a missing feature. */
export interface CtrNamedRow {
  readonly [feature: string]: number | CtrFeature;
}

export type CtrRow = CtrPositionalRow | CtrKeyRow | CtrNamedRow;

/** Rows, all of one kind, or lines of tab-separated columns. */
export type CtrRows = readonly CtrRow[] | string | Uint8Array;

export interface CtrCallOptions {
  /**
   * The model, and its version or label (a channel's name). Default: the model and version that are
   * served.
   */
  readonly model?: string;
  readonly version?: string;
  readonly label?: string;
  /** 0 is the most urgent, 2 the least. Default 1. */
  readonly priority?: number;
  /** Return outcome counts per slot. Default false. */
  readonly detail?: boolean;
  /** Return the durations of the steps. Default false. */
  readonly timings?: boolean;
  /** Return the steps of the call in the server with their times. Default false. */
  readonly profile?: boolean;
  /**
   * The user or session by which experiments choose a variant, at most 256 characters. Default: the
   * server draws a variant for each call.
   */
  readonly experimentKey?: string;
  /** For the whole call, retries included. Default: the client's. */
  readonly timeoutMs?: number;
}

export interface CtrPrediction extends CtrResponse {
  /** Present when the call was part of experiments. */
  readonly variants?: Variants;
  /** Present when the call asked for it, and the server sent it. */
  readonly profile?: RequestProfile;
}

/** A connection to a serving process. */
export interface CtrTransport {
  /** @throws CubeError with the server's own code, UNAVAILABLE or DEADLINE_EXCEEDED */
  predict(rows: CtrRows, call: CtrCallOptions, timeoutMs: number): Promise<CtrPrediction>;
  close(): void;
}

/** Encodes rows for hypercube.CtrService. @throws CubeError INVALID_ARGUMENT for rows by name */
export function createCtrRequest(rows: CtrRows, call: CtrCallOptions): CtrRequest {
  const { model = '', version = '', label = '', priority, detail = false, timings = false } = call;
  const empty = {
    model,
    version,
    label,
    priority,
    detail,
    timings,
    shared: undefined,
    rowCount: 0,
    dense: new Float64Array(0),
    features: [],
    keys: new Uint32Array(0),
    scaled: new Float32Array(0),
    ends: new Uint32Array(0),
    tsv: new Uint8Array(0),
  };
  if (typeof rows === 'string') return { ...empty, tsv: Buffer.from(rows) };
  if (rows instanceof Uint8Array) return { ...empty, tsv: rows };
  const list = rows as readonly CtrRow[];
  const rowCount = list.length;
  if (list.every(isPositional)) {
    const { values: features, ends } = flatten(
      list.map(({ categorical }) => categorical),
      (value) => value ?? '',
    );
    const dense = Float64Array.from(list.flatMap((row) => row.dense.map((x) => x ?? Number.NaN)));
    return { ...empty, rowCount, features, ends, dense };
  }
  if (list.every(isKeys)) {
    const { values, ends } = flatten<bigint>(
      list.map((row) => row.keys),
      (key) => key ?? 0n,
    );
    const keys = new Uint32Array(BigUint64Array.from(values).buffer);
    const scaled = Float32Array.from(list.flatMap((row) => row.scaled));
    return { ...empty, rowCount, keys, ends, scaled };
  }
  throw new CubeError(
    'INVALID_ARGUMENT',
    'over gRPC, give all rows by position or all as keys; rows by name need an http:// URL',
  );
}

function isPositional(row: CtrRow): row is CtrPositionalRow {
  return Array.isArray(row['dense' as never]) && Array.isArray(row['categorical' as never]);
}

function isKeys(row: CtrRow): row is CtrKeyRow {
  return Array.isArray(row['keys' as never]) && Array.isArray(row['scaled' as never]);
}

/** Concatenates all values. `ends` stays empty when every slot has exactly one value. */
function flatten<T extends string | bigint>(
  rows: readonly (readonly (T | null | readonly T[])[])[],
  single: (value: T | null) => T,
): { values: T[]; ends: Uint32Array } {
  const poolingSlots = new Set<number>();
  for (const row of rows) {
    row.forEach((value, slot) => {
      if (Array.isArray(value)) poolingSlots.add(slot);
    });
  }
  const values: T[] = [];
  const ends: number[] = [];
  for (const row of rows) {
    row.forEach((value, slot) => {
      if (!Array.isArray(value)) {
        if (value !== null || !poolingSlots.has(slot)) values.push(single(value as T | null));
      } else for (const item of value as readonly T[]) values.push(item);
      ends.push(values.length);
    });
  }
  return { values, ends: Uint32Array.from(poolingSlots.size === 0 ? [] : ends) };
}
