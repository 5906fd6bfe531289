/** A store that several models share keeps what one of them still uses. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import type { Manifest } from '../../../lib/core/manifest.ts';
import { SharedStore } from '../../../serving/stores/shared-store.ts';
import { FakeStore } from '../support/fake-store.ts';

const MANIFESTS: readonly Manifest[] = ['1', '2'].map((version) => ({
  bundle: 'toy',
  version,
  files: [],
  hash: { scheme: 'raw', seed: 0n, modulo: 0n },
  slots: [],
  tables: [],
}));

const steps = fc.array(
  fc.record({
    model: fc.nat({ max: 2 }),
    manifest: fc.constantFrom(...MANIFESTS),
    act: fc.constantFrom('prepare', 'fail', 'retire'),
  }),
  { maxLength: 40 },
);

test('a version is retired when the last model that prepared it has retired it', async () => {
  await fc.assert(
    fc.asyncProperty(steps, async (taken) => {
      const store = new FakeStore([]);
      const shared = new SharedStore(store);
      const models = [0, 1, 2].map(() => shared.openForModel());
      const users = new Map(MANIFESTS.map(({ version }) => [version, new Set<number>()]));
      const retired: string[] = [];
      for (const { model, manifest, act } of taken) {
        const { version } = manifest;
        const used = users.get(version)!;
        if (act === 'retire') {
          await models[model]!.retire(manifest);
          if (used.delete(model) && used.size === 0) retired.push(version);
        } else if (act === 'prepare') {
          await models[model]!.prepare(manifest);
          used.add(model);
        } else {
          store.missingVersions.add(version);
          await assert.rejects(models[model]!.prepare(manifest));
          store.missingVersions.clear();
        }
        assert.deepEqual(store.retired, retired);
      }
    }),
  );
});
