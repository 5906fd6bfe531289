/**
 * The keys and values of the REDIS store (docs/formats/redis.md). A layer is divided into
 * partitions. Each is one hash with its rows by key, and with a marker, which is written last and
 * in the same step that counts the other fields. Rows and marker are one key of Redis, so they are
 * evicted and removed together. Without the marker nothing is known about a key; with it, a missing
 * field is a key that is not in the layer. Pure.
 */
import { JsonReader } from '../../lib/core/json.ts';
import { mixKey } from '../../lib/core/keys.ts';
import { type LayerRef, TABLE_DTYPES, type TableRef } from '../../lib/core/manifest.ts';
import { computeRowBytes, type RowDtype } from '../../lib/core/row-codec.ts';

const FORMAT = 1;

/**
 * Memory that Redis takes for a row in addition to its bytes: measured with 40-byte rows in a hash.
 */
const FIELD_OVERHEAD_BYTES = 64;
/** A hash of this size moves between nodes, or is freed, in tens of milliseconds. */
const PARTITION_BYTES_MAX = 64 << 20;
const PARTITIONS_MAX = 65_536;

/**
 * Field name of the marker: keys have 8 bytes, so it is not a key. Its value is the number of the
 * other fields.
 */
export const MARKER = '*';

/**
 * The number of partitions of a layer, from its manifest alone, so that readers and writers agree.
 */
export function countPartitions({ dtype, dim }: TableRef, { rows }: LayerRef): number {
  const bytes = rows * (computeRowBytes(dtype as RowDtype, dim) + FIELD_OVERHEAD_BYTES);
  return Math.min(PARTITIONS_MAX, Math.max(1, Math.ceil(bytes / PARTITION_BYTES_MAX)));
}

const mixed = new Uint32Array(2);

/** The partition of a key: the high word of format 1's mix, so that consecutive ids spread. */
export function findPartition(low: number, high: number, partitions: number): number {
  if (partitions === 1) return 0;
  mixKey(low, high, mixed, 0);
  return mixed[1]! % partitions;
}

/**
 * The braces are for Redis Cluster: a partition is in one hash slot, the partitions of a layer are
 * in many.
 */
export function makePartitionKey(bundle: string, contentId: string, partition: number): string {
  return `hc:{${bundle}/${contentId}/${partition}}`;
}

/** The hash slot of a partition's key in a Redis Cluster: CRC-16/XMODEM of what is in braces. */
export function computeHashSlot(partitionKey: string): number {
  const end = partitionKey.lastIndexOf('}');
  let crc = 0;
  for (let i = partitionKey.indexOf('{') + 1; i < end; i++) {
    crc ^= partitionKey.charCodeAt(i) << 8;
    for (let bit = 0; bit < 8; bit++) crc = (crc << 1) ^ (crc & 0x8000 ? 0x1021 : 0);
  }
  return crc & 0x3fff;
}

/** A hash from contentId to record, of every layer whose load began and that was not removed. */
export function makeCatalogKey(bundle: string): string {
  return `hc:layers:${bundle}`;
}

/** A layer in the catalog. */
export interface LayerRecord {
  readonly table: string;
  readonly dtype: TableRef['dtype'];
  readonly partitions: number;
  /** Rows written so far, in the order of the file: an interrupted load continues here. */
  readonly written: number;
  readonly complete: boolean;
}

export function formatLayerRecord(record: LayerRecord): string {
  return JSON.stringify({ format: FORMAT, ...record });
}

/** @throws CubeError INVALID_ARGUMENT for a record of another format */
export function parseLayerRecord(text: string, source: string): LayerRecord {
  const json = JsonReader.parse(text, source);
  json.field('format').integer(FORMAT, FORMAT);
  return {
    table: json.field('table').string(),
    dtype: json.field('dtype').choice(TABLE_DTYPES),
    partitions: json.field('partitions').integer(1, PARTITIONS_MAX),
    written: json.field('written').integer(0),
    complete: json.field('complete').boolean(),
  };
}
