/** Tables in files beside the model: read where they are, in pieces, or refused. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import {
  closeSync,
  ftruncateSync,
  openSync,
  readdirSync,
  readFileSync,
  statSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { WireWriter } from '../../../../proto/wire.ts';
import { readOnnxModel } from '../../../../tools/prune-model/onnx/onnx-reader.ts';
import { FLOAT, INT64, model, node, ramp, value } from '../support/onnx-builder.ts';
import { PruneHarness } from '../support/prune-harness.ts';

const harness = new PruneHarness();
const at = (op: string, inputs: string[], output: string): Uint8Array => node(op, inputs, [output]);

function tableModel(nodes: readonly Uint8Array[], initializers: readonly Uint8Array[]): Uint8Array {
  return model({
    nodes,
    initializers,
    opset: 13,
    inputs: [value('ids', INT64, ['n', 2])],
    outputs: [value('y', FLOAT, [])],
  });
}

/** A tensor whose data is in another file. */
function external(
  name: string,
  dims: readonly number[],
  entries: Record<string, string>,
  elemType = FLOAT,
): Uint8Array {
  const writer = new WireWriter();
  for (const dim of dims) writer.uint(1, dim);
  writer.uint(2, elemType).string(8, name);
  for (const [key, text] of Object.entries(entries))
    writer.message(13, (entry) => entry.string(1, key).string(2, text));
  return writer.uint(14, 1).finish();
}

const inFile = (
  offset: number,
  length: number,
  location = 'weights.bin',
): Record<string, string> => ({
  location,
  offset: String(offset),
  length: String(length),
});

function externalModel(table: Record<string, string>, rows = 8): Uint8Array {
  return tableModel(
    [at('Gather', ['t', 'k'], 'e'), at('MatMul', ['e', 'w'], 'y')].toSpliced(
      0,
      0,
      at('Add', ['ids', 'off'], 'k'),
    ),
    [
      external('t', [rows, 3], table),
      external('w', [3, 5], inFile(4096, 60)),
      external('off', [1, 2], inFile(5000, 16), INT64),
    ],
  );
}

test('external data: tables are read in place, kept tensors move to model.onnx.data', async () => {
  const data = new Uint8Array(8192);
  data.set(new Uint8Array(Float32Array.from(ramp(24)).buffer), 0);
  data.set(new Uint8Array(Float32Array.from(ramp(15, 2)).buffer), 4096);
  new DataView(data.buffer).setBigInt64(5008, 4n, true);
  harness.write('weights.bin', data);
  const path = harness.write('external.onnx', externalModel(inFile(0, 96)));
  const outcome = await harness.run('--model', path, '--output', harness.output, '--force');
  assert.equal(outcome.status, 0, outcome.stderr);
  assert.deepEqual(readdirSync(harness.output).sort(), [
    'model.onnx',
    'model.onnx.data',
    'report.json',
    'slots.json',
    'tables',
  ]);
  assert.deepEqual(
    new Uint8Array(readFileSync(join(harness.output, 'model.onnx.data'))),
    data.subarray(4096, 4156),
  );
  const { initializers } = readOnnxModel(
    readFileSync(join(harness.output, 'model.onnx')),
    'pruned',
  ).graph;
  assert.deepEqual(
    initializers.map(({ name }) => name),
    ['w'],
  );
});

test('external data that is missing, short, misplaced or of wrong size is refused', async () => {
  harness.write('weights.bin', new Uint8Array(8192));
  const cases: [Record<string, string>, number, RegExp][] = [
    [inFile(0, 96, 'lost.bin'), 5, /"lost.bin", which is missing/],
    [inFile(8192, 96), 5, /at bytes 8192 to 8288 of .*which has 8192/],
    [inFile(0, 92), 5, /needs 96 bytes, it has 92/],
    [inFile(0, 96, '../weights.bin'), 4, /outside the model's folder/],
    [inFile(0, 96, '/etc/passwd'), 4, /outside the model's folder/],
    [{ location: 'weights.bin', offset: '-1' }, 5, /the offset of tensor "t" is "-1"/],
    [{}, 5, /which is missing/],
  ];
  for (const [entries, status, message] of cases) {
    assert.match(await harness.expectRefusal(externalModel(entries), status), message);
  }
});

test('a table in external data is never read into memory as a whole', () => {
  const rows = 4_000_000;
  const file = openSync(harness.path('large.bin'), 'w');
  ftruncateSync(file, rows * 4 * 16);
  writeSync(file, new Uint8Array(Float32Array.from(ramp(16)).buffer), 0, 64, (rows - 1) * 64);
  closeSync(file);
  const bytes = tableModel(
    [at('Gather', ['t', 'ids'], 'e'), at('Sigmoid', ['e'], 'y')],
    [external('t', [rows, 16], { location: 'large.bin' })],
  );
  const path = harness.write('large.onnx', bytes);
  const main = join(import.meta.dirname, '..', '..', '..', '..', 'tools', 'prune-model', 'main.js');
  const probe = harness.write(
    'probe.mjs',
    `import { readFileSync } from 'node:fs';
const readPeak = () => readFileSync('/proc/self/status', 'utf8').match(/VmHWM:\\s+(\\d+)/)[1];
process.on('exit', () => console.error(readPeak()));
process.argv = [process.argv[0], 'prune-model', ...process.argv.slice(2)];
await import(${JSON.stringify(main)});`,
  );
  const { status, stderr } = spawnSync(
    process.execPath,
    [probe, '--model', path, '--output', harness.output, '--force'],
    { encoding: 'utf8' },
  );
  assert.equal(status, 0, stderr);
  assert.ok(Number(stderr) < 180_000, `${stderr.trim()} KiB for a table of 250,000`);
  assert.equal(statSync(join(harness.output, 'tables', 't.npy')).size, rows * 64 + 128);
});
