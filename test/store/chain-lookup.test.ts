import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import type { KernelKind } from '../../lib/core/kernels/kernels.ts';
import { ResidentStore } from '../../lib/store/resident-store.ts';
import {
  arbitraryChain,
  computeExpected,
  lookUpChain,
  writeChain,
} from './support/arbitrary-chain.ts';
import { createLayerPath, getLoadedTable, temporaryFolder } from './support/layers.ts';

const KINDS: readonly KernelKind[] = ['wasm', 'portable'];

test('any chain, in memory or on disk, answers like a Map', async (context) => {
  const folder = temporaryFolder(context);
  const layerPath = createLayerPath(folder);
  const stores = KINDS.map(
    (kernelKind, i) => new ResidentStore({ budgetBytes: 64 << 20, kernelKind, threads: 1 + 2 * i }),
  );
  const ways = fc.record({
    chain: arbitraryChain(4),
    store: fc.constantFrom(...stores),
    rowsOnDisk: fc.boolean(),
    asF32: fc.boolean(),
    offset: fc.constantFrom(0, 0, 1, 3, 8),
  });
  let onDisk = 0;
  await fc.assert(
    fc.asyncProperty(ways, async ({ chain, store, rowsOnDisk, asF32, offset }) => {
      const manifest = writeChain(folder, chain);
      const { shardIndex } = chain.table;
      await store.load({ manifest, shardIndex, layerPath, rowsOnDisk });
      try {
        const table = getLoadedTable(store, '1', 't');
        if (table.onDisk) onDisk++;
        assert.deepEqual(
          await lookUpChain(table, chain.probes, asF32, offset),
          computeExpected(chain, chain.probes, asF32),
        );
        assert.deepEqual(await lookUpChain(table, [], asF32), []);
      } finally {
        store.unload('test', '1');
      }
      const { usedBytes, bytesOnDisk } = store.getMemoryUsage();
      assert.deepEqual([usedBytes, bytesOnDisk], [0, 0]);
    }),
    { numRuns: 120 },
  );
  for (const store of stores) await store.close();
  assert.ok(onDisk > 10);
});

// The portable kernel skips keys whose bits are set, and a second memory kept the bits of the
// previous lookup.
test('an index over rows in several memories answers every lookup', async (context) => {
  const folder = temporaryFolder(context);
  const layerPath = createLayerPath(folder);
  const keys = Array.from({ length: 93 }, (_, i) => BigInt(3 * i * i));
  const layer = { deleted: [], indexed: true, segmentBytesMax: 1012, salt: 1 };
  const table = { dtype: 'f32', dim: 39, shardNum: 3, shardIndex: 0 } as const;
  const base = { ...layer, keys };
  const chain = { table, layers: [base], defaultRow: [], probes: keys };
  const manifest = writeChain(folder, chain);
  for (const kernelKind of KINDS) {
    const store = new ResidentStore({ budgetBytes: 64 << 20, kernelKind });
    await store.load({ manifest, shardIndex: 0, layerPath });
    const loaded = getLoadedTable(store, '1', 't');
    for (const probes of [keys, keys.toReversed(), keys.slice(10)]) {
      assert.deepEqual(
        await lookUpChain(loaded, probes, false),
        computeExpected(chain, probes, false),
      );
    }
    await store.close();
  }
});
