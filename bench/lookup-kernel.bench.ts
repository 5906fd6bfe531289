/**
 * Nanoseconds per key of a lookup in a resident table of 40-byte rows: the wasm kernel against the
 * portable kernel, a plain Map, and C with prefetch (where gcc is installed). Cold keys are drawn
 * uniformly from the whole table; hot keys are the same 10,000 again and again. All keys are hits,
 * on one thread. Then the speed of loading and checking the layer, into fresh and into reused
 * memory. At last, what the number of segments costs: a few rows that stay in the cache, in layers
 * of more and more segments, as a table of more and more times 2 GiB has them.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { KernelKind } from '../lib/core/kernels/kernels.ts';
import type { Manifest } from '../lib/core/manifest.ts';
import { type WrittenLayer, writeLayer } from '../lib/store/layer-file.ts';
import { LayerReader } from '../lib/store/layer-reader.ts';
import { LookupBatch } from '../lib/store/lookup-batch.ts';
import { ResidentStore } from '../lib/store/resident-store.ts';
import type { ResidentTable } from '../lib/store/resident-table.ts';
import { CLookup } from './support/c-lookup.ts';

const DIM = 10;
const ROW_BYTES = 4 * DIM;
const BATCHES: readonly number[] = [26, 260, 2600];
const COLD_KEYS = 2_000_000;
const HOT_KEYS = 10_000;
const PASSES = 5;
const SEGMENT_ROWS = 2_000;
/** For 1, 3, 16 and about 30 segments. */
const SEGMENT_BYTES: readonly number[] = [2 ** 20, 42_000, 8_200, 4_400];

/** Nanoseconds per key for each batch size. */
type Timings = readonly number[];

function print(line: string): void {
  process.stdout.write(`${line}\n`);
}

function randomKeys(count: number): Uint32Array {
  const keys = new Uint32Array(2 * count);
  for (let i = 0; i < keys.length; i++) keys[i] = Math.random() * 2 ** 32;
  return keys;
}

/** Draws `count` keys uniformly from the first `from` of `keys`. */
function drawKeys(keys: Uint32Array, from: number, count: number): Uint32Array {
  const drawn = new Uint32Array(2 * count);
  for (let i = 0; i < count; i++) {
    const pick = Math.floor(Math.random() * from);
    drawn[2 * i] = keys[2 * pick]!;
    drawn[2 * i + 1] = keys[2 * pick + 1]!;
  }
  return drawn;
}

/** Times several passes over all keys. @returns the best, in nanoseconds per key */
function measure(keyCount: number, batch: number, lookup: (first: number) => number): number {
  let best = Number.POSITIVE_INFINITY;
  const counted = keyCount - (keyCount % batch);
  for (let pass = 0; pass < PASSES; pass++) {
    const start = performance.now();
    let hits = 0;
    for (let first = 0; first < counted; first += batch) hits += lookup(first);
    best = Math.min(best, ((performance.now() - start) * 1e6) / counted);
    if (hits !== counted) throw new Error(`${hits} hits of ${counted} keys`);
  }
  return best;
}

function measureTable(table: ResidentTable, keys: Uint32Array): Timings {
  const bytes = new Uint8Array(keys.buffer);
  return BATCHES.map((batch) => {
    const lookupBatch = new LookupBatch({
      keys: bytes,
      count: batch,
      rows: new Uint8Array(batch * ROW_BYTES),
      found: new Uint8Array(Math.ceil(batch / 8)),
    });
    return measure(keys.length / 2, batch, (first) => {
      lookupBatch.keysAt = 8 * first;
      return table.lookup(lookupBatch);
    });
  });
}

/** The simplest lookup: a Map from key to row number, and rows copied with subarray. */
function measureMap(tableKeys: Uint32Array, keys: Uint32Array): Timings {
  const bigints = new BigUint64Array(tableKeys.buffer);
  const rowOfKey = new Map<bigint, number>();
  bigints.forEach((key, i) => {
    rowOfKey.set(key, i);
  });
  const rows = new Float32Array(bigints.length * DIM);
  const drawn = new BigUint64Array(keys.buffer);
  return BATCHES.map((batch) => {
    const out = new Float32Array(batch * DIM);
    return measure(drawn.length, batch, (first) => {
      let hits = 0;
      for (let i = 0; i < batch; i++) {
        const row = rowOfKey.get(drawn[first + i]!);
        if (row === undefined) continue;
        out.set(rows.subarray(row * DIM, (row + 1) * DIM), i * DIM);
        hits += 1;
      }
      return hits;
    });
  });
}

/** @param segmentBytesMax smaller segments than the format allows */
function writeRows(keys: Uint32Array, folder: string, segmentBytesMax?: number): WrittenLayer {
  const rows = new Float32Array((keys.length / 2) * DIM).map(Math.random);
  const input = {
    table: 't',
    dtype: 'f32' as const,
    dim: DIM,
    shardIndex: 0,
    shardNum: 1,
    keys,
    rows: new Uint8Array(rows.buffer),
  };
  return writeLayer(input, (contentId) => join(folder, `${contentId}.cube`), segmentBytesMax);
}

function makeManifest(layer: WrittenLayer): Manifest {
  const { contentId, bytes, sha256, rows } = layer;
  const shards = [[{ contentId, kind: 'base', bytes, sha256, rows }]] as const;
  const table = {
    name: 't',
    dim: DIM,
    dtype: 'f32',
    rows,
    defaultRow: [],
    shardNum: 1,
    shards,
  } as const;
  const hash = { scheme: 'raw', seed: 0n, modulo: 0n } as const;
  return { bundle: 'bench', version: '1', files: [], hash, slots: [], tables: [table] };
}

async function measureLoad(store: ResidentStore, layer: WrittenLayer): Promise<string> {
  const manifest = makeManifest(layer);
  const report = await store.load({ manifest, shardIndex: 0, layerPath: () => layer.path });
  return `${(report.bytes / report.durationMs / 1e6).toFixed(1)} GB/s`;
}

function printRow(name: string, figures: Timings, kernel: Timings): void {
  const cells = figures.map((ns, i) => {
    const ratio = `× ${(ns / kernel[i]!).toFixed(2)}`;
    return `${ns.toFixed(1).padStart(7)} ${ratio.padStart(8)}`;
  });
  print(`  ${name.padEnd(34)}${cells.join('  ')}`);
}

async function openTable(layer: WrittenLayer, kind: KernelKind): Promise<ResidentTable> {
  const store = new ResidentStore({
    bytesPerSecond: Number.POSITIVE_INFINITY,
    budgetBytes: 2 ** 32,
    kernelKind: kind,
  });
  await measureLoad(store, layer);
  await store.close();
  const table = store.version('bench', '1')?.table('t');
  if (table === undefined) throw new Error('the table was not loaded');
  return table;
}

async function benchLoad(layer: WrittenLayer): Promise<void> {
  const store = new ResidentStore({
    bytesPerSecond: Number.POSITIVE_INFINITY,
    budgetBytes: 2 ** 32,
  });
  const fresh = await measureLoad(store, layer);
  let reused = '';
  for (let i = 0; i < 3; i++) {
    store.unload('bench', '1');
    reused = await measureLoad(store, layer);
  }
  await store.close();
  print(
    `  load with checksums, file in the page cache: ` +
      `${fresh} into fresh memory, ${reused} into reused memory\n`,
  );
}

function countSegments(path: string): number {
  const reader = new LayerReader(path);
  try {
    return reader.header.segments.length;
  } finally {
    reader.close();
  }
}

/** Prints the time per key in layers of more and more segments. */
async function benchSegments(folder: string): Promise<void> {
  print(`${SEGMENT_ROWS.toLocaleString('en')} rows × ${ROW_BYTES} B, hot, by number of segments`);
  const keys = randomKeys(SEGMENT_ROWS);
  const hot = drawKeys(keys, SEGMENT_ROWS, COLD_KEYS);
  let one: Timings | undefined;
  for (const bytesMax of SEGMENT_BYTES) {
    const layer = writeRows(keys, folder, bytesMax);
    const table = await openTable(layer, 'wasm');
    const timings = measureTable(table, hot);
    one ??= timings;
    printRow(`segments: ${countSegments(layer.path)}`, timings, one);
    rmSync(layer.path);
  }
}

async function benchTable(
  rowCount: number,
  folder: string,
  program: CLookup | undefined,
): Promise<void> {
  const keys = randomKeys(rowCount);
  const started = performance.now();
  const layer = writeRows(keys, folder);
  const seconds = ((performance.now() - started) / 1000).toFixed(1);
  print(`${rowCount / 1e6} M rows × ${ROW_BYTES} B (built and written in ${seconds} s)`);
  print(
    `  ${'ns/key (ratio to the wasm kernel)'.padEnd(34)}` +
      BATCHES.map((batch) => `batch ${batch}`.padStart(16)).join('  '),
  );
  const cold = drawKeys(keys, rowCount, COLD_KEYS);
  const hot = drawKeys(drawKeys(keys, rowCount, HOT_KEYS), HOT_KEYS, COLD_KEYS);
  const kernel = await openTable(layer, 'wasm');
  const coldKernel = measureTable(kernel, cold);
  const hotKernel = measureTable(kernel, hot);
  printRow('wasm kernel, cold', coldKernel, coldKernel);
  if (program !== undefined) {
    printRow('C with prefetch, cold', program.measure(layer.path, cold, BATCHES), coldKernel);
  }
  const portable = await openTable(layer, 'portable');
  printRow('portable kernel, cold', measureTable(portable, cold), coldKernel);
  if (rowCount <= 1_000_000) printRow('Map<bigint>, cold', measureMap(keys, cold), coldKernel);
  printRow('wasm kernel, hot', hotKernel, hotKernel);
  if (program !== undefined) {
    printRow('C with prefetch, hot', program.measure(layer.path, hot, BATCHES), hotKernel);
  }
  printRow('portable kernel, hot', measureTable(portable, hot), hotKernel);
  await benchLoad(layer);
  rmSync(layer.path);
}

const folder = mkdtempSync(join(tmpdir(), 'hypercube-bench-'));
try {
  print(
    'Time per key of a lookup in a resident table: the wasm kernel against other implementations.',
  );
  const program = CLookup.compile(folder);
  if (program === undefined) print('C with prefetch: skipped, because gcc is missing or fails\n');
  await benchTable(1_000_000, folder, program);
  await benchTable(10_000_000, folder, program);
  await benchSegments(folder);
} finally {
  rmSync(folder, { recursive: true, force: true });
}
