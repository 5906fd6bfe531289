/**
 * hypercube features: the draft of a model is accepted by prune-model as it is, and `check` prints
 * the keys and tensors that a row becomes.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { xxh64 } from '../../../lib/core/hash.ts';
import { runCommand } from '../../support/commands.ts';
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

const harness = new PruneHarness();

function features(...args: string[]): ReturnType<typeof runCommand> {
  return runCommand('tools/hypercube/main.js', 'features', ...args);
}

/** Two tables, one per ids input, and two values in a row of the output. */
const TWO_TABLES = model({
  inputs: [value('user', INT64, ['n']), value('ad', INT64, ['n'])],
  outputs: [value('prob', FLOAT, ['n', 2])],
  initializers: [floats('users', [9, 2], ramp(18)), floats('ads', [5, 2], ramp(10))],
  nodes: [
    node('Gather', ['users', 'user'], ['u']),
    node('Gather', ['ads', 'ad'], ['a']),
    node('Add', ['u', 'a'], ['x']),
    node('Softmax', ['x'], ['prob']),
  ],
});

test('a draft has what the graph says, and prune-model accepts it', async () => {
  const path = harness.path('features.json');
  for (const [bytes, slots, click] of [
    [smallModel(), ['ids_1', 'ids_2', 'ids_3'], { output: 'prob', column: 0 }],
    [TWO_TABLES, ['user', 'ad'], { output: 'prob', column: 1 }],
  ] as const) {
    const file = harness.write('draft.onnx', bytes);
    const { code, stdout, stderr } = await features('init', file, '--output', path, '--force');
    assert.equal(code, 0, stderr);
    assert.match(stdout, /^wrote .*\nThe model does not say:\n {2}- table /);
    assert.match(stdout, /^Check it: hypercube features check --features .* --row '\{".*\}'$/m);
    const draft = JSON.parse(readFileSync(path, 'utf8'));
    assert.deepEqual(draft.click, click);
    assert.deepEqual(
      draft.slots.map(({ name }: { name: string }) => name),
      slots,
    );
    const { spec } = await harness.prune(bytes, '--features', path);
    assert.deepEqual(
      spec.features?.slots.map(({ name }) => name),
      slots,
    );
  }
  const file = harness.path('draft.onnx');
  const again = await features('init', file, '--output', path);
  assert.match(again.stderr, /features\.json exists; --force replaces it/);
  const shown = await features('init', file, '--output', path, '--dry-run', '--json');
  assert.deepEqual(JSON.parse(shown.stdout).$comment.slice(0, 2), [
    'table users: 9 rows of 2 numbers, for user',
    'table ads: 5 rows of 2 numbers, for ad',
  ]);
});

test('check prints the keys and the tensors of a row', async () => {
  const path = harness.write('checked.json', {
    format: 1,
    hash: { scheme: 'xxh64-concat', modulo: '7' },
    slots: [
      { name: 'user', index: 3 },
      { name: 'tags', index: 4, pooling: 'mean' },
      { name: 'ad', index: 5 },
    ],
    dense: { input: 'dense', features: [{ name: 'age', scale: 0.5 }, { name: 'price' }] },
    click: { output: 'prob', column: 0 },
    ids: [
      { input: 'ids', slots: ['ad', 'user'] },
      { input: 'list', slots: ['tags'] },
    ],
  });
  const row = JSON.stringify({ user: 'u1', tags: ['a', 'b'], age: 30 });
  const options = ['--features', path, '--row', row, '--json'];
  const doubtful = await features('check', ...options);
  assert.match(doubtful.stderr, /looks wrong: ids input "ids" lists ad before user, .* --accept/);
  const { stdout, code, stderr } = await features('check', '--accept', ...options);
  assert.equal(code, 0, stderr);
  const hash = (text: string): string => String(xxh64(new TextEncoder().encode(text)) % 7n);
  const [user, ad, tags] = [hash('3u1'), hash('5'), [hash('4a'), hash('4b')]];
  const { row: report, warnings } = JSON.parse(stdout);
  assert.equal(warnings.length, 1);
  assert.deepEqual(report.tensors, [
    { input: 'ids', dtype: 'int64', values: [ad, user] },
    { input: 'list', dtype: 'int64', values: tags },
    { input: 'dense', dtype: 'float32', values: [15, 0] },
  ]);
  assert.deepEqual(report.slots[1], { name: 'tags', index: 4, features: ['a', 'b'], keys: tags });
  const wrong = await features('check', '--accept', ...options.slice(0, 3), '{"usr": "u1"}');
  assert.equal(wrong.code, 1);
  assert.match(wrong.stderr, /--row: \[0\]: unknown field "usr" \(did you mean "user"\?\)/);
  const model = harness.write('other.onnx', smallModel());
  const other = await features('check', '--features', path, '--model', model);
  assert.match(other.stderr, /features\.json does not match the model/);
});
