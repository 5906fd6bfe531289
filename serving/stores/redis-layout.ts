/**
 * What the REDIS store keeps and under which names: docs/formats/redis.md. A layer is cut into partitions, each one hash: its
 * rows by key, and the marker, a field that is written last and in one step with counting the others. Rows and marker are
 * one key of Redis, so they are there, are evicted and are removed together: without the marker nothing is known about a key,
 * with it a field that is not there is a key that is not in the layer. Pure.
 */
import { JsonReader } from '../../lib/core/json.ts';
import { mixKey } from '../../lib/core/keys.ts';
import { type LayerRef, TABLE_DTYPES, type TableRef } from '../../lib/core/manifest.ts';
import { type RowDtype, rowBytesOf } from '../../lib/core/row-codec.ts';

const FORMAT = 1;

/** Bytes that Redis takes for a row beside the row itself: measured with 40-byte rows in a hash. */
const FIELD_OVERHEAD_BYTES = 64;
/** A hash of this size moves between nodes, or is freed, in tens of milliseconds. */
const PARTITION_BYTES_MAX = 64 << 20;
const PARTITIONS_MAX = 65_536;

/** A field that is no key, for keys have 8 bytes. Its value is how many others the partition has. */
export const MARKER = '*';

/** Of a layer, from the manifest alone: whoever reads and whoever writes must agree. */
export function partitionsOf({ dtype, dim }: TableRef, { rows }: LayerRef): number {
  const bytes = rows * (rowBytesOf(dtype as RowDtype, dim) + FIELD_OVERHEAD_BYTES);
  return Math.min(PARTITIONS_MAX, Math.max(1, Math.ceil(bytes / PARTITION_BYTES_MAX)));
}

const mixed = new Uint32Array(2);

/** Which partition a key is in: the high word of format 1's mix, so that consecutive ids spread. */
export function partitionOf(low: number, high: number, partitions: number): number {
  if (partitions === 1) return 0;
  mixKey(low, high, mixed, 0);
  return mixed[1]! % partitions;
}

/** The braces are a Cluster's: a partition is in one slot, those of a layer in many. */
export function partitionKey(bundle: string, contentId: string, partition: number): string {
  return `hc:{${bundle}/${contentId}/${partition}}`;
}

/** A hash: contentId → record, of every layer that was ever begun and not removed. */
export function catalogKey(bundle: string): string {
  return `hc:layers:${bundle}`;
}

/** What the catalog says of a layer. */
export interface LayerRecord {
  readonly table: string;
  readonly dtype: TableRef['dtype'];
  readonly partitions: number;
  /** Rows written so far in the file's order: where a load that was interrupted goes on. */
  readonly written: number;
  readonly complete: boolean;
}

export function formatRecord(record: LayerRecord): string {
  return JSON.stringify({ format: FORMAT, ...record });
}

/** @throws CubeError INVALID_ARGUMENT for a record of another format */
export function parseRecord(text: string, source: string): LayerRecord {
  const json = JsonReader.parse(text, source);
  json.field('format').integer(FORMAT, FORMAT);
  return {
    table: json.field('table').string(),
    dtype: json.field('dtype').oneOf(TABLE_DTYPES),
    partitions: json.field('partitions').integer(1, PARTITIONS_MAX),
    written: json.field('written').integer(0),
    complete: json.field('complete').boolean(),
  };
}
