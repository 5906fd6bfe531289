/**
 * Damaged models: never a crash, never a half-written output; whatever is accepted has passed the
 * verification.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../../../lib/core/errors.ts';
import { WireWriter } from '../../../../proto/wire.ts';
import { GRAPH_DEPTH_MAX, readOnnxModel } from '../../../../tools/prune-model/onnx/onnx-reader.ts';
import { pruneModel } from '../../../../tools/prune-model/prune.ts';
import { graph, model, node, smallModel } from '../support/onnx-builder.ts';
import { PruneHarness } from '../support/prune-harness.ts';

const whole = smallModel();

/** In this process, so that many can be tried: the exit code that the command would have. */
async function expectExit(harness: PruneHarness, bytes: Uint8Array): Promise<number> {
  const request = {
    model: harness.write('model.onnx', bytes),
    output: harness.output,
    features: undefined,
    samples: 4,
    force: true,
    dryRun: false,
    inProcess: true,
  };
  try {
    const report = await pruneModel(request);
    if (report === undefined) return 3;
    assert.ok(report.verify !== undefined);
    return 0;
  } catch (error) {
    assert.ok(error instanceof CubeError, String(error));
    assert.ok(
      error.code === 'CORRUPT' || error.code === 'UNSUPPORTED',
      `${error.code}: ${error.message}`,
    );
    assert.doesNotMatch(error.message, /\n/);
    return error.code === 'CORRUPT' ? 5 : 4;
  }
}

test('every truncation of a model is not a valid model', async () => {
  const harness = new PruneHarness();
  for (let length = 0; length < whole.length; length++) {
    assert.equal(await expectExit(harness, whole.subarray(0, length)), 5, `${length} bytes`);
  }
  assert.deepEqual([...harness.snapshot().keys()], [harness.path('model.onnx')]);
});

test('a model with flipped bits is refused without output, or verified', async () => {
  const harness = new PruneHarness();
  for (let at = 0; at < whole.length; at++) {
    const bytes = whole.slice();
    bytes[at]! ^= 1 << (at % 8);
    const exit = await expectExit(harness, bytes);
    const hidden = [...harness.snapshot().keys()].filter((path) => path.includes('/.'));
    assert.deepEqual(hidden, [], `exit ${exit}`);
  }
});

test('randomly damaged programs are refused or verified', async () => {
  const harness = new PruneHarness();
  const edit = fc.record({
    at: fc.nat(whole.length - 1),
    drop: fc.nat(6),
    insert: fc.uint8Array({ maxLength: 6 }),
  });
  await fc.assert(
    fc.asyncProperty(fc.array(edit, { minLength: 1, maxLength: 3 }), async (edits) => {
      let bytes = whole;
      for (const { at, drop, insert } of edits) {
        const tail = bytes.subarray(at + drop);
        bytes = Uint8Array.from([...bytes.subarray(0, at), ...insert, ...tail]);
      }
      await expectExit(harness, bytes);
    }),
    { numRuns: 400 },
  );
});

test('lengths past the end and huge sizes are refused without large allocations', async () => {
  const claims: Uint8Array[] = [
    Uint8Array.of(0x3a, 0xff, 0xff, 0xff, 0xff, 0x0f),
    Uint8Array.of(0x3a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01),
    Uint8Array.of(0x3a, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80),
    new Uint8Array(1000).fill(0xff),
    new TextEncoder().encode('<!doctype html><html></html>'),
  ];
  const harness = new PruneHarness();
  for (const bytes of claims) {
    assert.match(await harness.expectRefusal(bytes, 5), /model.onnx is not a valid ONNX model: /);
  }
  assert.match(
    await harness.expectRefusal(new Uint8Array(0), 5),
    /model.onnx is empty, not an ONNX model/,
  );
});

test('deeply nested graphs and millions of empty fields are refused', () => {
  let body = graph({ inputs: [], outputs: [], nodes: [] });
  for (let depth = 0; depth <= GRAPH_DEPTH_MAX; depth++) {
    const nested = node('If', ['c'], ['y'], { attributes: { then_branch: { graph: body } } });
    body = graph({ inputs: [], outputs: [], nodes: [nested] });
  }
  const deep = new WireWriter().uint(1, 8).bytes(7, body).finish();
  assert.throws(() => readOnnxModel(deep, 'deep.onnx'), /deep.onnx is not.*nest deeper than 32/);
  const parts = new Uint8Array(24_000_000);
  for (let at = 0; at < parts.length; at += 2) parts[at] = 0x1a;
  const many = model({ inputs: [], outputs: [], nodes: [parts] });
  assert.throws(
    () => readOnnxModel(many, 'many.onnx'),
    /many.onnx is not.*more than 10000000 fields and numbers/,
  );
});

test('a name that is not UTF-8 is refused: it could not be written back', () => {
  const name = whole.slice();
  const at = Buffer.from(whole).indexOf('embedding.weight');
  name[at] = 0xff;
  assert.throws(
    () => readOnnxModel(name, 'm.onnx'),
    /m.onnx is not a valid ONNX model: a name is not UTF-8/,
  );
});
