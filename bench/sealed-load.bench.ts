/**
 * How fast versions load: one layer of 512 MiB from the page cache into memory, clear and sealed,
 * in turns. Prints bytes per second and CPU time, and the ratio of sealed to clear.
 */
import { pathToFileURL } from 'node:url';
import { EncryptionKey, processKeys, setSealingKey } from '../lib/platform/encryption-keys.ts';
import { makeTemporaryFolder, removePath } from '../lib/platform/files.ts';
import { writeLayer } from '../lib/store/layer-file.ts';
import { ResidentStore } from '../lib/store/resident-store.ts';
import type { WrittenLayer } from '../lib/store/section-writer.ts';

const DIM = 128;
const ROWS = 1 << 20;
const ROUNDS = 5;
const KEY = new EncryptionKey(new Uint8Array(32).fill(1));

function write(folder: string): WrittenLayer {
  const keys = new Uint32Array(2 * ROWS);
  for (let i = 0; i < ROWS; i++) keys[2 * i] = i;
  const rows = new Uint8Array(ROWS * DIM * 4);
  new Float32Array(rows.buffer).forEach((_, i, all) => {
    all[i] = i % 1_000;
  });
  const layer = { table: 't', dtype: 'f32', dim: DIM, shardIndex: 0, shardNum: 1, keys, rows };
  return writeLayer({ ...layer, dtype: 'f32' }, (contentId) => `${folder}/${contentId}.cube`);
}

async function load(
  layer: WrittenLayer,
  isSealed: boolean,
): Promise<{ rate: number; cpuSeconds: number }> {
  const store = new ResidentStore({ budgetBytes: 2 ** 31 });
  const { contentId, kind, bytes, sha256, rows, path } = layer;
  const manifest = {
    bundle: 'b',
    version: '1',
    files: [],
    hash: { scheme: 'raw', seed: 0n, modulo: 0n } as const,
    slots: [],
    tables: [
      {
        name: 't',
        dim: DIM,
        dtype: 'f32' as const,
        rows,
        defaultRow: [],
        shardNum: 1,
        shards: [[{ contentId, kind, bytes, sha256, rows }]],
      },
    ],
    ...(isSealed && { encryption: { keyId: KEY.keyId } }),
  };
  const cpu = process.cpuUsage();
  const startMs = performance.now();
  await store.load({
    manifest,
    shardIndex: 0,
    layerPath: () => path,
    bytesPerSecond: Number.POSITIVE_INFINITY,
  });
  const seconds = (performance.now() - startMs) / 1_000;
  const { user, system } = process.cpuUsage(cpu);
  await store.close();
  return { rate: bytes / seconds, cpuSeconds: (user + system) / 1e6 };
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[values.length >> 1] ?? Number.NaN;
}

async function main(): Promise<void> {
  const folder = makeTemporaryFolder('hypercube-bench-');
  try {
    const clear = write(`${folder}/clear`);
    setSealingKey(KEY);
    const sealed = write(`${folder}/sealed`);
    setSealingKey(undefined);
    processKeys.use({ name: 'bench', stamp: () => undefined, read: () => [KEY] });
    await load(clear, false);
    await load(sealed, true);
    const rates = { clear: [] as number[], sealed: [] as number[] };
    const cpu = { clear: [] as number[], sealed: [] as number[] };
    for (let round = 0; round < ROUNDS; round++) {
      for (const [name, layer] of [
        ['clear', clear],
        ['sealed', sealed],
      ] as const) {
        const { rate, cpuSeconds } = await load(layer, name === 'sealed');
        rates[name].push(rate);
        cpu[name].push(cpuSeconds / layer.bytes);
      }
    }
    for (const name of ['clear', 'sealed'] as const) {
      const gigabytes = (median(rates[name]) / 1e9).toFixed(2);
      const perCpu = (1 / median(cpu[name]) / 1e9).toFixed(2);
      process.stdout.write(`${name}: ${gigabytes} GB/s, ${perCpu} GB per CPU second\n`);
    }
    const ratio = median(rates.sealed) / median(rates.clear);
    process.stdout.write(`sealed / clear: ${ratio.toFixed(2)}\n`);
  } finally {
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main();
