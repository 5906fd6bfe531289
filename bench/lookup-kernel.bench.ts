/**
 * Lookups in a resident table of 40-byte rows, ns per key: the kernel, its TypeScript twin, a plain Map, and C with
 * prefetch where gcc is there. Cold: keys drawn uniformly from the whole table. Hot: the same 10,000 keys again and
 * again. All keys are hits, one thread. Then the load of the layer, checked, into fresh and into reused memory.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { KernelKind } from '../lib/core/kernels/kernels.ts';
import type { Manifest } from '../lib/core/manifest.ts';
import { type WrittenLayer, writeLayer } from '../lib/store/layer-file.ts';
import { LookupBatch } from '../lib/store/lookup-batch.ts';
import { ResidentStore } from '../lib/store/resident-store.ts';
import type { ResidentTable } from '../lib/store/resident-table.ts';

const DIM = 10;
const ROW_BYTES = 4 * DIM;
const BATCHES: readonly number[] = [26, 260, 2600];
const COLD_KEYS = 2_000_000;
const HOT_KEYS = 10_000;
const PASSES = 5;

/** ns per key for each batch size. */
type Figures = readonly number[];

function print(line: string): void {
  process.stdout.write(`${line}\n`);
}

function randomKeys(count: number): Uint32Array {
  const keys = new Uint32Array(2 * count);
  for (let i = 0; i < keys.length; i++) keys[i] = Math.random() * 2 ** 32;
  return keys;
}

/** `count` keys drawn uniformly from the first `from` of `keys`. */
function draw(keys: Uint32Array, from: number, count: number): Uint32Array {
  const drawn = new Uint32Array(2 * count);
  for (let i = 0; i < count; i++) {
    const pick = Math.floor(Math.random() * from);
    drawn[2 * i] = keys[2 * pick]!;
    drawn[2 * i + 1] = keys[2 * pick + 1]!;
  }
  return drawn;
}

/** The best of several passes over all keys. */
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

function measureTable(table: ResidentTable, keys: Uint32Array): Figures {
  const bytes = new Uint8Array(keys.buffer);
  return BATCHES.map((batch) => {
    const asked = new LookupBatch({
      ...{ keys: bytes, count: batch, rows: new Uint8Array(batch * ROW_BYTES) },
      found: new Uint8Array(Math.ceil(batch / 8)),
    });
    return measure(keys.length / 2, batch, (first) => {
      asked.keysAt = 8 * first;
      return table.lookup(asked);
    });
  });
}

/** What one would write first: a Map from key to row number, and a row copied by subarray. */
function measureMap(tableKeys: Uint32Array, keys: Uint32Array): Figures {
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

function compileBaseline(folder: string): string | undefined {
  const source = join(import.meta.dirname, '..', '..', 'bench', 'baseline', 'lookup.c');
  const program = join(folder, 'lookup');
  const gcc = spawnSync('gcc', ['-O3', '-march=native', '-o', program, source]);
  if (gcc.status === 0) return program;
  print('C with prefetch: skipped, gcc is not there or fails\n');
  return undefined;
}

function measureC(
  program: string,
  layer: WrittenLayer,
  keys: Uint32Array,
  folder: string,
): Figures {
  const file = join(folder, 'keys.bin');
  writeFileSync(file, keys);
  const output = execFileSync(program, [layer.path, file, ...BATCHES.map(String)], {
    encoding: 'utf8',
  });
  return output
    .trim()
    .split('\n')
    .map((line) => Number(line.split(' ')[1]));
}

function manifestOf(layer: WrittenLayer): Manifest {
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

async function load(store: ResidentStore, layer: WrittenLayer): Promise<string> {
  const manifest = manifestOf(layer);
  const report = await store.load({ manifest, shardIndex: 0, layerPath: () => layer.path });
  return `${(report.bytes / report.durationMs / 1e6).toFixed(1)} GB/s`;
}

function printRow(name: string, figures: Figures, kernel: Figures): void {
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
  await load(store, layer);
  await store.close();
  return store.version('bench', '1')!.table('t')!;
}

async function benchLoad(layer: WrittenLayer): Promise<void> {
  const store = new ResidentStore({
    bytesPerSecond: Number.POSITIVE_INFINITY,
    budgetBytes: 2 ** 32,
  });
  const fresh = await load(store, layer);
  let reused = '';
  for (let i = 0; i < 3; i++) {
    store.unload('bench', '1');
    reused = await load(store, layer);
  }
  await store.close();
  print(
    `  load from page cache, checked: ${fresh} into fresh memory, ${reused} into reused memory\n`,
  );
}

async function benchTable(
  rowCount: number,
  folder: string,
  program: string | undefined,
): Promise<void> {
  const keys = randomKeys(rowCount);
  const rows = new Float32Array(rowCount * DIM).map(Math.random);
  const started = performance.now();
  const input = {
    ...{ table: 't', dtype: 'f32' as const, dim: DIM, shardIndex: 0, shardNum: 1, keys },
    rows: new Uint8Array(rows.buffer),
  };
  const layer = writeLayer(input, (contentId) => join(folder, `${contentId}.cube`));
  const seconds = ((performance.now() - started) / 1000).toFixed(1);
  print(`${rowCount / 1e6} M rows × ${ROW_BYTES} B (built and written in ${seconds} s)`);
  print(
    `  ${'ns/key (ratio to the kernel)'.padEnd(34)}${BATCHES.map((b) => `batch ${b}`.padStart(16)).join('  ')}`,
  );
  const cold = draw(keys, rowCount, COLD_KEYS);
  const hot = draw(draw(keys, rowCount, HOT_KEYS), HOT_KEYS, COLD_KEYS);
  const kernel = await openTable(layer, 'wasm');
  const coldKernel = measureTable(kernel, cold);
  const hotKernel = measureTable(kernel, hot);
  printRow('kernel, cold', coldKernel, coldKernel);
  if (program !== undefined) {
    printRow('C with prefetch, cold', measureC(program, layer, cold, folder), coldKernel);
  }
  const twin = await openTable(layer, 'twin');
  printRow('TypeScript twin, cold', measureTable(twin, cold), coldKernel);
  if (rowCount <= 1_000_000) printRow('Map<bigint>, cold', measureMap(keys, cold), coldKernel);
  printRow('kernel, hot', hotKernel, hotKernel);
  if (program !== undefined) {
    printRow('C with prefetch, hot', measureC(program, layer, hot, folder), hotKernel);
  }
  printRow('TypeScript twin, hot', measureTable(twin, hot), hotKernel);
  await benchLoad(layer);
  rmSync(layer.path);
}

const folder = mkdtempSync(join(tmpdir(), 'hypercube-bench-'));
try {
  const program = compileBaseline(folder);
  await benchTable(1_000_000, folder, program);
  await benchTable(10_000_000, folder, program);
} finally {
  rmSync(folder, { recursive: true, force: true });
}
