/**
 * How fast versions load: one layer of 512 MiB from the page cache, clear and sealed, in turns,
 * into memory that the system gives for the first time, and into that of an unloaded version.
 * Prints bytes per second and CPU time, the rate of AES-256-GCM alone on a core, and how much of
 * the machine other processes used meanwhile.
 */
import { createDecipheriv } from 'node:crypto';
import { cpus } from 'node:os';
import { pathToFileURL } from 'node:url';
import { requireDefined } from '../lib/core/errors.ts';
import { EncryptionKey, processKeys, setSealingKey } from '../lib/platform/encryption-keys.ts';
import { makeTemporaryFolder, removePath } from '../lib/platform/files.ts';
import { writeLayer } from '../lib/store/layer-file.ts';
import { ResidentStore } from '../lib/store/resident-store.ts';
import type { WrittenLayer } from '../lib/store/section-writer.ts';

const DIM = 128;
const ROWS = 1 << 20;
const ROUNDS = 5;
/** Decrypted from the processor's cache, for AES alone. */
const AES_PIECE_BYTES = 128 << 10;
const AES_PIECES = 8_192;
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

interface Measured {
  readonly rate: number;
  readonly cpuSeconds: number;
}

/** Loads into new memory, then again into the memory of the unloaded version. */
async function load(
  layer: WrittenLayer,
  isSealed: boolean,
): Promise<{ fresh: Measured; pooled: Measured }> {
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
  const measure = async (): Promise<Measured> => {
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
    store.unload('b', '1');
    return { rate: bytes / seconds, cpuSeconds: (user + system) / 1e6 };
  };
  const fresh = await measure();
  const pooled = await measure();
  await store.close();
  return { fresh, pooled };
}

/** Bytes per CPU second of AES-256-GCM alone: no file, and no copy of what was decrypted. */
function measureAes(): number {
  const piece = new Uint8Array(AES_PIECE_BYTES);
  const cpu = process.cpuUsage();
  const decipher = createDecipheriv('aes-256-gcm', new Uint8Array(32), new Uint8Array(12));
  for (let i = 0; i < AES_PIECES; i++) decipher.update(piece);
  const { user } = process.cpuUsage(cpu);
  return (AES_PIECES * AES_PIECE_BYTES) / (user / 1e6);
}

/** CPU seconds of all processes of this machine so far. */
function readMachineSeconds(): number {
  const busyMs = cpus().map(({ times }) => times.user + times.nice + times.sys + times.irq);
  return busyMs.reduce((sum, ms) => sum + ms, 0) / 1_000;
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
    const runs = new Map<string, Measured[]>();
    const [ownBefore, allBefore] = [process.cpuUsage(), readMachineSeconds()];
    const startMs = performance.now();
    for (let round = 0; round < ROUNDS; round++) {
      for (const [name, layer] of Object.entries({ clear, sealed })) {
        const { fresh, pooled } = await load(layer, name === 'sealed');
        for (const [memory, measured] of Object.entries({ new: fresh, used: pooled })) {
          const key = `${name}, ${memory} memory`;
          runs.set(key, [...(runs.get(key) ?? []), measured]);
        }
      }
    }
    const { user, system } = process.cpuUsage(ownBefore);
    const otherSeconds = readMachineSeconds() - allBefore - (user + system) / 1e6;
    const otherCores = (1_000 * otherSeconds) / (performance.now() - startMs);
    const { model } = requireDefined(cpus()[0], 'a core');
    process.stdout.write(
      `${model}, ${cpus().length} cores, Node ${process.versions.node}; other processes used ` +
        `${Math.max(0, otherCores).toFixed(2)} cores\n` +
        `AES-256-GCM alone: ${(measureAes() / 1e9).toFixed(2)} GB per CPU second\n`,
    );
    for (const [name, measured] of runs) {
      const gigabytes = (median(measured.map(({ rate }) => rate)) / 1e9).toFixed(2);
      const seconds = median(measured.map(({ cpuSeconds }) => cpuSeconds));
      const perCpu = (clear.bytes / seconds / 1e9).toFixed(2);
      process.stdout.write(`${name}: ${gigabytes} GB/s, ${perCpu} GB per CPU second\n`);
    }
  } finally {
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main();
