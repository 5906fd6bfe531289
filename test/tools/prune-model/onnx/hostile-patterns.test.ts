/**
 * Damage to models of many patterns: an answer in bounded time, never a crash, never half an
 * output.
 */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../../../lib/core/errors.ts';
import { pruneModel } from '../../../../tools/prune-model/prune.ts';
import { FLOAT, floats, INT64, ints, model, node, ramp, value } from '../support/onnx-builder.ts';
import { PruneHarness } from '../support/prune-harness.ts';

const folder = join(import.meta.dirname, '..', '..', '..', '..', '..', 'data', 'golden', 'models');
const models = readdirSync(folder)
  .filter((name) => name.endsWith('.onnx'))
  .map((name) => readFileSync(join(folder, name)));

/** The graph is not run: what is wanted is that finding and cutting hold. */
async function expectExit(harness: PruneHarness, bytes: Uint8Array, samples = 0): Promise<number> {
  const path = harness.write('model.onnx', bytes);
  const request = { features: undefined, samples, force: true, dryRun: false, inProcess: true };
  try {
    const report = await pruneModel({ ...request, model: path, output: harness.output });
    return report === undefined ? 3 : 0;
  } catch (error) {
    assert.ok(error instanceof CubeError, String((error as Error).stack));
    assert.doesNotMatch(error.message, /\n/);
    assert.ok(['CORRUPT', 'UNSUPPORTED'].includes(error.code), `${error.code}: ${error.message}`);
    return error.code === 'CORRUPT' ? 5 : 4;
  }
}

test('exported models with damaged bytes are refused or verified', async () => {
  const harness = new PruneHarness();
  const edit = fc.record({
    at: fc.nat(4000),
    drop: fc.nat(4),
    insert: fc.uint8Array({ maxLength: 4 }),
  });
  await fc.assert(
    fc.asyncProperty(
      fc.nat(models.length - 1),
      fc.array(edit, { minLength: 1, maxLength: 3 }),
      async (m, edits) => {
        let bytes: Uint8Array = models[m]!;
        for (const { at, drop, insert } of edits) {
          const place = at % bytes.length;
          bytes = Uint8Array.from([
            ...bytes.subarray(0, place),
            ...insert,
            ...bytes.subarray(place + drop),
          ]);
        }
        await expectExit(harness, bytes);
      },
    ),
    { numRuns: 250 },
  );
  const hidden = [...harness.snapshot().keys()].filter((path) => path.includes('/.'));
  assert.deepEqual(hidden, []);
});

test('truncated exported models are not valid', async () => {
  const harness = new PruneHarness();
  for (const [m, bytes] of models.entries()) {
    for (let length = m; length < bytes.length - 40; length += 41) {
      assert.equal(await expectExit(harness, bytes.subarray(0, length)), 5, `${length} bytes`);
    }
  }
  assert.deepEqual([...harness.snapshot().keys()], [harness.path('model.onnx')]);
});

test('graphs with exponential growth or cycles are refused in bounded time', async () => {
  const harness = new PruneHarness();
  const table = floats('t', [8, 3], ramp(24));
  const inputs = [value('ids', INT64, ['n', 2])];
  const outputs = [value('y', FLOAT, [])];
  const doubled = Array.from({ length: 40 }, (_, i) =>
    node('Concat', [`k${i}`, `k${i}`], [`k${i + 1}`], { attributes: { axis: 1 } }),
  );
  const nodes = [
    node('Identity', ['ids'], ['k0']),
    ...doubled,
    node('Gather', ['t', 'k40'], ['y']),
  ];
  const wide = model({ inputs, outputs, initializers: [table], nodes });
  assert.equal(await expectExit(harness, wide), 4);
  const long = Array.from({ length: 20_000 }, (_, i) =>
    node('Add', [`k${i}`, 'one'], [`k${i + 1}`]),
  );
  const chain = [
    node('Identity', ['ids'], ['k0']),
    ...long,
    node('Gather', ['t', 'k20000'], ['y']),
  ];
  const one = ints('one', [], [1]);
  assert.equal(
    await expectExit(harness, model({ inputs, outputs, initializers: [table, one], nodes: chain })),
    4,
  );
  const doubling = [
    node('Identity', ['ids'], ['k0']),
    ...Array.from({ length: 60 }, (_, i) => node('Add', [`k${i}`, `k${i}`], [`k${i + 1}`])),
    node('Gather', ['t', 'k60'], ['y']),
  ];
  assert.equal(
    await expectExit(harness, model({ inputs, outputs, initializers: [table], nodes: doubling })),
    4,
  );
  const circle = [
    node('Add', ['b', 'ids'], ['a']),
    node('Neg', ['a'], ['b']),
    node('Gather', ['t', 'b'], ['y']),
  ];
  assert.equal(
    await expectExit(harness, model({ inputs, outputs, initializers: [table], nodes: circle })),
    5,
  );
});
