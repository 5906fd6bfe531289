import assert from 'node:assert/strict';
import {
  chmodSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { decodeNpy } from '../../../lib/core/npy.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import {
  FLOAT,
  floats,
  INT64,
  model,
  node,
  ramp,
  smallModel,
  value,
} from './support/onnx-builder.ts';
import { PruneHarness } from './support/prune-harness.ts';

test('the output contains exactly its files, and the report is a short table', async () => {
  const harness = new PruneHarness();
  const path = harness.write('ctr.onnx', smallModel());
  const { status, stdout } = await harness.run('--model', path, '--output', harness.output);
  assert.equal(status, 0);
  assert.deepEqual(readdirSync(harness.output).sort(), [
    'model.onnx',
    'report.json',
    'slots.json',
    'tables',
  ]);
  assert.deepEqual(readdirSync(join(harness.output, 'tables')), ['embedding.weight.npy']);
  assert.deepEqual(readdirSync(harness.folder).sort(), ['ctr.onnx', 'out']);
  assert.match(stdout, /^pruned .*ctr.onnx -> .*out$/m);
  assert.match(stdout, /^embedding.weight +7 x 4 +112 B +1$/m);
  assert.match(stdout, /^rows +embedding.weight +ids \[0, 1, 2\] +none$/m);
  assert.match(stdout, /^graph {4}\d+ B -> \d+ B \(\d+ % less\), 5 -> 4 nodes$/m);
  assert.match(stdout, /^verified 64 samples, largest difference 0.0e\+0$/m);
});

test('an existing output is replaced only with --force, and then completely', async () => {
  const harness = new PruneHarness();
  const { output } = harness;
  const path = harness.write('ctr.onnx', smallModel(3, 7, 4));
  mkdirSync(output);
  assert.equal(
    (await harness.run('--model', path, '--output', output)).status,
    0,
    'an empty folder is free',
  );
  const before = harness.snapshot();
  const again = await harness.run('--model', path, '--output', output);
  assert.equal(again.status, 2);
  assert.match(again.stderr, /out is not empty; use --force to replace its content/);
  assert.deepEqual(harness.snapshot(), before);

  writeFileSync(join(output, 'tables', 'old.npy'), 'left over');
  const other = harness.write('other.onnx', smallModel(2, 9, 4));
  assert.equal((await harness.run('--model', other, '--output', output, '--force')).status, 0);
  const tables = join(output, 'tables');
  assert.deepEqual(readdirSync(tables), ['embedding.weight.npy']);
  const table = decodeNpy(readFileSync(join(tables, 'embedding.weight.npy')), 'table');
  assert.deepEqual(table.shape, [9, 4]);
  assert.deepEqual(readdirSync(harness.folder).sort(), ['ctr.onnx', 'other.onnx', 'out']);
});

test('--force never removes files that prune-model did not write', async () => {
  const harness = new PruneHarness();
  const path = harness.write('ctr.onnx', smallModel());
  const refused = async (output: string): Promise<string> => {
    const before = harness.snapshot();
    const outcome = await harness.run('--model', path, '--output', output, '--force');
    assert.equal(outcome.status, 2, outcome.stderr);
    assert.deepEqual(harness.snapshot(), before);
    return outcome.stderr;
  };
  assert.match(await refused(harness.folder), /ctr.onnx is inside the output/);
  assert.match(await refused(path), /is inside the output|is a file/);
  mkdirSync(harness.output);
  writeFileSync(join(harness.output, 'thesis.txt'), 'mine');
  assert.match(
    await refused(harness.output),
    /out contains thesis.txt, which prune-model did not write/,
  );
  assert.match(await refused(harness.write('plain', 'file')), /plain is a file/);
});

test('old folders of killed runs are removed; those of running ones are kept', async () => {
  const harness = new PruneHarness();
  const path = harness.write('ctr.onnx', smallModel());
  for (const name of ['.out.11.new', '.out.12.new', '.outer.13.new', '.out.14.new.mine']) {
    mkdirSync(join(harness.folder, name));
    if (name !== '.out.12.new') utimesSync(join(harness.folder, name), 1e9, 1e9);
  }
  assert.equal((await harness.run('--model', path, '--output', harness.output)).status, 0);
  const left = ['.out.12.new', '.out.14.new.mine', '.outer.13.new', 'ctr.onnx', 'out'];
  assert.deepEqual(readdirSync(harness.folder).sort(), left);
});

test('a dry run reports and writes nothing', async () => {
  const harness = new PruneHarness();
  const path = harness.write('ctr.onnx', smallModel());
  const before = harness.snapshot();
  const args = ['--model', path, '--output', harness.output, '--dry-run'];
  const { status, stdout } = await harness.run(...args);
  assert.equal(status, 0);
  assert.match(stdout, /^would prune .*ctr.onnx/);
  assert.match(stdout, /a dry run writes nothing/);
  const report = JSON.parse((await harness.run(...args, '--json')).stdout);
  assert.equal(report.verify, undefined);
  assert.equal(report.tables[0].rows, 7);
  assert.deepEqual(harness.snapshot(), before);
});

test('wrong usage exits 2 and file errors exit 1, each with a one-line message', async (t) => {
  const harness = new PruneHarness();
  const path = harness.write('ctr.onnx', smallModel());
  const cases: [string[], number, RegExp][] = [
    [[], 2, /required option '--model <path>'/],
    [['--model', path], 2, /required option '--output <folder>'/],
    [['--model', path, '--output', 'x', '--verify', '-1'], 2, /integer from 0 to 100000/],
    [['--model', path, '--output', 'x', '--verify', '1e3'], 2, /integer from 0 to 100000/],
    [['--model', path, '--output', 'x', '--what'], 2, /unknown option '--what'/],
    [['--model', path, '--output', 'x', 'more'], 2, /too many arguments/],
    [
      ['--model', harness.path('no.onnx'), '--output', harness.output],
      1,
      /cannot read .*no.onnx: no such file/,
    ],
    [['--model', temporaryFolder(t), '--output', harness.output], 1, /holds no model/],
    [['--model', path, '--output', '/proc/x'], 1, /cannot make the folder/],
    [['--model', path, '--output', join(path, 'out')], 1, /ctr.onnx/],
  ];
  for (const [args, status, pattern] of cases) {
    const outcome = await harness.run(...args);
    assert.equal(outcome.status, status, `${args.join(' ')}: ${outcome.stderr}`);
    assert.match(outcome.stderr, pattern);
    assert.doesNotMatch(outcome.stderr, /\n {4}at /);
  }
  assert.deepEqual(readdirSync(harness.folder), ['ctr.onnx']);
  if (process.getuid?.() !== 0) {
    chmodSync(harness.folder, 0o500);
    const outcome = await harness.run('--model', path, '--output', harness.output);
    chmodSync(harness.folder, 0o700);
    assert.equal(outcome.status, 1);
    assert.match(outcome.stderr, /permission denied/);
  }
});

test('a model with random outputs fails the verification, and nothing is written', async () => {
  const harness = new PruneHarness();
  const random = model({
    inputs: [value('ids', INT64, ['n'])],
    outputs: [value('y', FLOAT, ['n', 2])],
    initializers: [floats('t', [8, 2], ramp(16))],
    nodes: [
      node('Gather', ['t', 'ids'], ['e']),
      node('RandomNormalLike', ['e'], ['noise']),
      node('Add', ['e', 'noise'], ['y']),
    ],
  });
  assert.match(
    await harness.expectRefusal(random, 1),
    /the verification failed: .*output "y": -?[\d.]+ instead of/,
  );
});

test('--help lists the exit codes and examples', async () => {
  const { status, stdout } = await new PruneHarness().run('--help');
  assert.equal(status, 0);
  for (const code of [0, 1, 2, 3, 4, 5])
    assert.match(stdout, new RegExp(`^ {2}${code} {2}\\w`, 'm'));
  assert.match(stdout, /prune-model --model data\/demo\/model.onnx/);
});
