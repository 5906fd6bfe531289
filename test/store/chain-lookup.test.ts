import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import type { KernelKind } from '../../lib/core/kernels/kernels.ts';
import { ResidentStore } from '../../lib/store/resident-store.ts';
import { anyChain, ask, expected, writeChain } from './chains.ts';
import { layerPathIn, temporaryFolder } from './layers.ts';

const KINDS: readonly KernelKind[] = ['wasm', 'twin'];

test('any chain of layers, of any dtype and layout, in memory or on disk, answers what a Map answers', async (context) => {
  const folder = temporaryFolder(context);
  const layerPath = layerPathIn(folder);
  const stores = KINDS.map(
    (kernelKind, i) => new ResidentStore({ budgetBytes: 64 << 20, kernelKind, threads: 1 + 2 * i }),
  );
  const ways = fc.record({
    chain: anyChain(4),
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
        const table = store.version('test', '1')!.table('t')!;
        if (table.onDisk) onDisk++;
        assert.deepEqual(
          await ask(table, chain.probes, asF32, offset),
          expected(chain, chain.probes, asF32),
        );
        assert.deepEqual(await ask(table, [], asF32), []);
      } finally {
        store.unload('test', '1');
      }
      const { usedBytes, bytesOnDisk } = store.memory();
      assert.deepEqual([usedBytes, bytesOnDisk], [0, 0]);
    }),
    { numRuns: 120 },
  );
  for (const store of stores) await store.close();
  assert.ok(onDisk > 10);
});
