/**
 * How a table is stored, and the norms of a sample of its rows, for the console. It reads header
 * pages and a few runs of rows of some shards in the repository; nothing of it is verified or kept.
 */
import { CubeError } from '../../lib/core/errors.ts';
import {
  getKeySegments,
  getRowSegments,
  HEADER_BYTES,
  type LayerHeader,
  type LayerSegment,
} from '../../lib/core/layer-format.ts';
import { decodeHeader } from '../../lib/core/layer-header.ts';
import { getTable, type LayerRef, type TableRef } from '../../lib/core/manifest.ts';
import { RowDecoder } from '../../lib/core/row-codec.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import { computeNorm } from './row-lookup.ts';

const SHARDS_MAX = 8;
const ROWS_MAX = 2_000;
/** Rows are read in this many runs of a layer. */
const RUNS = 4;
const RUN_BYTES_MAX = 256 << 10;
const BARS = 41;

interface StoredLayer {
  readonly layer: LayerRef;
  readonly header: LayerHeader;
}

/** One after the other: each reads up to some megabytes. */
let last: Promise<unknown> = Promise.resolve();
let waiting = 0;
const WAITING_MAX = 4;

/** @throws CubeError NOT_FOUND, OVERLOADED, and those of the repository */
export function sampleTable(bundle: LoadedBundle, name: string): Promise<object> {
  const table = getTable(bundle.manifest, name);
  if (waiting >= WAITING_MAX) {
    return Promise.reject(new CubeError('OVERLOADED', 'other tables are being read; try again'));
  }
  waiting++;
  const result = last
    .then(() => readTable(bundle, table))
    .finally(() => {
      waiting--;
    });
  last = result.catch(() => undefined);
  return result;
}

async function readTable(bundle: LoadedBundle, table: TableRef): Promise<object> {
  const shards = chooseShards(table.shardNum);
  const layers: StoredLayer[] = [];
  for (const shard of shards) {
    for (const layer of table.shards[shard] ?? []) {
      const page = await readPart(bundle, table, layer, 0, Math.min(HEADER_BYTES, layer.bytes));
      const header = decodeHeader(page, `${table.name}, layer ${layer.contentId}`);
      layers.push({ layer, header });
    }
  }
  const norms = table.dtype === 'bytes' ? [] : await sampleNorms(bundle, table, layers);
  return {
    model: bundle.name,
    version: bundle.version,
    table: table.name,
    shardsRead: shards.length,
    shardNum: table.shardNum,
    chain: Math.max(...table.shards.map((chain) => chain.length)),
    layouts: summarizeLayouts(layers),
    norms: norms.length === 0 ? null : summarizeNorms(norms),
  };
}

/** Evenly spaced. */
function chooseShards(shardNum: number): number[] {
  const count = Math.min(shardNum, SHARDS_MAX);
  return Array.from({ length: count }, (_, i) => Math.floor((i * shardNum) / count));
}

function readPart(
  { repository, name }: LoadedBundle,
  table: TableRef,
  layer: LayerRef,
  start: number,
  bytes: number,
): Promise<Uint8Array> {
  return repository.readLayerPart(name, table.name, layer, { start, bytes });
}

/** One entry for each kind and layout that occurs. */
function summarizeLayouts(layers: readonly StoredLayer[]): object[] {
  const groups = new Map<string, StoredLayer[]>();
  for (const one of layers) {
    const name = `${one.header.kind} ${one.header.layout}`;
    groups.set(name, [...(groups.get(name) ?? []), one]);
  }
  return [...groups.values()].map((group) => {
    const sum = (value: (of: StoredLayer) => number): number =>
      group.reduce((total, one) => total + value(one), 0);
    const { kind = 'base', layout = 'inline', rowBytes = 0 } = group[0]?.header ?? {};
    const slots = sum(({ header }) => getKeySegments(header).reduce((all, s) => all + s.slots, 0));
    const rows = sum(({ header }) => header.rowCount);
    return {
      kind,
      layout,
      layers: group.length,
      rows,
      deleted: sum(({ header }) => header.deletedCount),
      rowBytes,
      // A dense layer has no hash table.
      loadFactor: layout === 'dense' || slots === 0 ? null : rows / slots,
      bytes: sum(({ layer }) => layer.bytes),
    };
  });
}

/** Rows that a newer layer replaces are among them. */
async function sampleNorms(
  bundle: LoadedBundle,
  table: TableRef,
  layers: readonly StoredLayer[],
): Promise<number[]> {
  const total = layers.reduce((sum, { header }) => sum + header.rowCount, 0);
  const norms: number[] = [];
  for (const one of layers) {
    const share = Math.ceil((ROWS_MAX * one.header.rowCount) / Math.max(1, total));
    for (let run = 0; run < RUNS && share > 0; run++) {
      norms.push(...(await readRun(bundle, table, one, Math.ceil(share / RUNS))));
    }
  }
  return norms;
}

/** The norms of some rows that follow one another, from a random place. */
async function readRun(
  bundle: LoadedBundle,
  table: TableRef,
  { layer, header }: StoredLayer,
  count: number,
): Promise<number[]> {
  const isInline = header.layout === 'inline';
  const stride = header.layout === 'indexed' ? header.rowBytes : header.stride;
  if (table.dtype === 'bytes' || stride > RUN_BYTES_MAX) return [];
  const segments = header.layout === 'indexed' ? getRowSegments(header) : getKeySegments(header);
  const segment = chooseSegment(segments);
  if (segment === undefined) return [];
  // A hash table has empty slots.
  const wanted = isInline ? Math.ceil((count * segment.slots) / Math.max(1, segment.rows)) : count;
  const slots = Math.min(wanted, segment.slots, Math.floor(RUN_BYTES_MAX / stride));
  const first = Math.floor(Math.random() * (segment.slots - slots + 1));
  const start = segment.offset + first * stride;
  const bytes = await readPart(bundle, table, layer, start, slots * stride);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const row = new Float32Array(header.dim);
  const decoder = new RowDecoder(table.dtype, header.dim, row);
  const norms: number[] = [];
  for (let slot = 0; slot < slots; slot++) {
    const at = slot * stride;
    if (isInline && view.getBigUint64(at, true) === header.emptyKey) continue;
    decoder.decode(view, at + (isInline ? 8 : 0), 0);
    norms.push(computeNorm(row));
  }
  return norms;
}

/** By their numbers of rows. */
function chooseSegment(segments: readonly LayerSegment[]): LayerSegment | undefined {
  let at = Math.random() * segments.reduce((sum, { rows }) => sum + rows, 0);
  return segments.find(({ rows }) => {
    at -= rows;
    return at < 0;
  });
}

function summarizeNorms(norms: readonly number[]): object {
  const finite = norms.filter(Number.isFinite);
  const low = Math.min(...finite);
  const high = Math.max(...finite);
  const counts = new Array<number>(BARS).fill(0);
  for (const norm of finite) {
    const bar = high === low ? 0 : Math.floor(((norm - low) / (high - low)) * BARS);
    const at = Math.min(bar, BARS - 1);
    counts[at] = (counts[at] ?? 0) + 1;
  }
  return {
    rows: norms.length,
    notFinite: norms.length - finite.length,
    zero: finite.filter((norm) => norm === 0).length,
    mean: finite.reduce((sum, norm) => sum + norm, 0) / Math.max(1, finite.length),
    histogram: finite.length === 0 ? null : { low, high, counts: [counts] },
  };
}
