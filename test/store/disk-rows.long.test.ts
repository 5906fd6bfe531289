import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import { ResidentStore } from '../../lib/store/resident-store.ts';
import {
  type AnyChain,
  arbitraryChain,
  computeExpected,
  lookUpChain,
  writeChain,
} from './support/arbitrary-chain.ts';
import { createLayerPath, getLoadedTable, temporaryFolder } from './support/layers.ts';

/** One layer of this dtype whose rows can stay on disk. */
function createChain(dtype: string, count: number, indexed = true, dim = 6): AnyChain {
  const keys = Array.from({ length: count }, (_, i) => BigInt(indexed ? i * i : i + 5));
  const table = { dtype, dim: dtype === 'bytes' ? 0 : dim, shardIndex: 0, shardNum: 1 };
  const layer = { keys, deleted: [], indexed, segmentBytesMax: undefined, salt: 3 };
  const probes = [...keys, 2n, 3n];
  return { table: table as AnyChain['table'], layers: [layer], defaultRow: [], probes };
}

const findLayer = (manifest: ReturnType<typeof writeChain>): string =>
  manifest.tables[0]!.shards[0]![0]!.contentId;

/** Bytes from one that is flipped to the next: every one for one chain, as many parts of others. */
const cases: readonly (readonly [AnyChain, number])[] = [
  [createChain('f16', 40), 3],
  [createChain('bytes', 40), 3],
  [createChain('f32', 40, false), 1],
];

for (const [chain, step] of cases) {
  const { dtype } = chain.table;
  test(`rows on disk, ${dtype}: no flipped byte gives a wrong row`, async (context) => {
    const folder = temporaryFolder(context);
    const manifest = writeChain(folder, chain);
    const bytes = readFileSync(createLayerPath(folder)('t', findLayer(manifest)));
    const right = computeExpected(chain, chain.probes, false);
    const store = new ResidentStore({ budgetBytes: 16 << 20, rowsOnDisk: true });
    context.after(() => store.close());
    let refusedLater = 0;
    // The padding of the header page is uniform: testing a part of it is enough.
    for (let at = 0; at < bytes.length; at += at >= 600 && at < 4000 ? 61 : step) {
      const damaged = Uint8Array.from(bytes);
      damaged[at]! ^= 1 << (at % 8);
      const path = join(folder, randomUUID());
      writeFileSync(path, damaged);
      try {
        await store.load({ manifest, shardIndex: 0, layerPath: () => path });
        const table = getLoadedTable(store, '1', 't');
        assert.ok(table.onDisk);
        const answer = await lookUpChain(table, chain.probes, false).catch((error: CubeError) => {
          assert.equal(error.code, 'CORRUPT');
          refusedLater++;
        });
        if (answer !== undefined) assert.deepEqual(answer, right, `byte ${at}`);
      } catch (error) {
        assert.ok(error instanceof CubeError && /CORRUPT|UNSUPPORTED/.test(error.code), `${error}`);
      } finally {
        store.unload('test', '1');
        rmSync(path);
      }
    }
    if (dtype === 'f32') assert.ok(refusedLater > 500);
  });
}

test('a damaged block fails only its reads and is reported once', async (context) => {
  const folder = temporaryFolder(context);
  const chain = createChain('f32', 4_500, false, 120);
  const manifest = writeChain(folder, chain);
  const path = createLayerPath(folder)('t', findLayer(manifest));
  const bytes = readFileSync(path);
  bytes[4096 + (1 << 20) + 5000]! ^= 1;
  writeFileSync(path, bytes);
  const damages: string[] = [];
  const onDamage = (error: CubeError): void => void damages.push(error.message);
  const store = new ResidentStore({ budgetBytes: 16 << 20, rowsOnDisk: true, onDamage });
  context.after(() => store.close());
  await store.load({ manifest, shardIndex: 0, layerPath: () => path });
  const table = getLoadedTable(store, '1', 't');
  const { keys } = chain.layers[0]!;
  const [before, inside, after] = [
    keys.slice(0, 2_000),
    keys.slice(3_000, 3_005),
    keys.slice(4_400),
  ];
  for (let round = 0; round < 2; round++) {
    const refused = Promise.all(
      [1, 2].map(() => assert.rejects(lookUpChain(table, inside, false), { code: 'CORRUPT' })),
    );
    assert.deepEqual(await lookUpChain(table, before, true), computeExpected(chain, before, true));
    assert.deepEqual(await lookUpChain(table, after, true), computeExpected(chain, after, true));
    await refused;
  }
  assert.equal(damages.length, 1);
  assert.match(damages[0]!, /block of 1 MiB at byte 1052672 is damaged/);
  assert.equal(store.getMemoryUsage().damagedBlocks, 1);
});

test('a file stays readable after its path is replaced or removed', async (context) => {
  const folder = temporaryFolder(context);
  const chain = createChain('i8', 5000);
  const manifest = writeChain(folder, chain);
  const path = createLayerPath(folder)('t', findLayer(manifest));
  const store = new ResidentStore({ budgetBytes: 16 << 20, rowsOnDisk: true });
  context.after(() => store.close());
  await store.load({ manifest, shardIndex: 0, layerPath: () => path });
  const table = getLoadedTable(store, '1', 't');
  writeFileSync(`${path}.new`, 'something else');
  renameSync(`${path}.new`, path);
  assert.deepEqual(
    await lookUpChain(table, chain.probes, true),
    computeExpected(chain, chain.probes, true),
  );
  rmSync(path);
  const first = lookUpChain(table, chain.probes, false);
  store.unload('test', '1');
  const answer = await first.catch((error: CubeError) => error.code);
  if (answer !== 'VERSION_ABSENT')
    assert.deepEqual(answer, computeExpected(chain, chain.probes, false));
  await assert.rejects(lookUpChain(table, chain.probes, false), { code: 'VERSION_ABSENT' });
});

test('many concurrent lookups on disk during loads and unloads', async (context) => {
  const folder = temporaryFolder(context);
  const chains = fc.sample(arbitraryChain(2), { numRuns: 12, seed: 3 });
  const store = new ResidentStore({ budgetBytes: 128 << 20, rowsOnDisk: true });
  context.after(() => store.close());
  const layerPath = createLayerPath(folder);
  const load = async (i: number): Promise<void> => {
    const manifest = writeChain(folder, chains[i]!, String(i));
    await store.load({ manifest, shardIndex: chains[i]!.table.shardIndex, layerPath });
  };
  await load(0);
  for (let i = 0; i + 1 < chains.length; i++) {
    const chain = chains[i]!;
    const table = getLoadedTable(store, String(i), 't');
    const loading = load(i + 1);
    const answers = await Promise.all(
      Array.from({ length: 30 }, () => lookUpChain(table, chain.probes, true)),
    );
    const right = computeExpected(chain, chain.probes, true);
    for (const answer of answers) assert.deepEqual(answer, right);
    await loading;
    store.unload('test', String(i));
  }
});
