/** Whole Paddle programs: what is cut, what stays byte for byte, what stands beside it. */
import assert from 'node:assert/strict';
import { existsSync, readdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { WireWriter } from '../../../../proto/wire.ts';
import { buildCtrDnn } from '../support/ctr-programs.ts';
import {
  FP32,
  feedOp,
  fetchOp,
  holders,
  INT64,
  type ModelFiles,
  op,
  program,
  stream,
  variable,
  wave,
} from '../support/paddle-builder.ts';
import { PaddleHarness } from '../support/paddle-harness.ts';

const official = { slots: 26, rows: 101, dim: 10, hidden: [40, 40], style: 1 } as const;

test('the official CTR network is cut as Cube expects: lookups removed, pools kept', async () => {
  const harness = new PaddleHarness();
  const model = harness.writeModel(buildCtrDnn(official));
  const { feeds, fetches, ops, report, spec, program: pruned } = await harness.pruneProgram(model);
  const cut = Array.from({ length: 26 }, (_, i) => `embedding_${i}.tmp_0`);
  assert.deepEqual(feeds, ['dense_input', ...cut]);
  assert.deepEqual(fetches, ['fc_2.tmp_2']);
  assert.equal(ops.filter((type) => type === 'sequence_pool').length, 26);
  assert.ok(!ops.includes('lookup_table'));
  const vars = pruned.blocks[0]!.vars;
  const named = vars.map(({ name }) => name);
  assert.ok(!named.includes('SparseFeatFactors') && !named.includes('C1'));
  assert.equal(vars.find(({ name }) => name === cut[0])?.lodLevel, 1);
  assert.deepEqual(report.tables[0], {
    name: 'SparseFeatFactors',
    source: 'SparseFeatFactors',
    rows: 101,
    dim: 10,
    bytes: 4040,
    lookups: 26,
    keptFor: [],
  });
  assert.equal(report.verify!.samples, 64);
  assert.equal(report.verify!.maxAbsDifference, 0);
  assert.deepEqual(spec.embeddings[3], {
    input: cut[3],
    table: 'SparseFeatFactors',
    dim: 10,
    dtype: 'f32',
    shape: [-1, 10],
    slots: [],
    ids: 'C4',
    columns: [0],
    lodLevel: 1,
  });
  const { shape, values } = harness.npy('SparseFeatFactors.npy');
  assert.deepEqual(shape, [101, 10]);
  assert.deepEqual(values, Array.from(wave(1010, 1)));
  assert.ok(!existsSync(join(harness.output, 'SparseFeatFactors')));
  assert.deepEqual(
    harness.file('fc_0.w_0'),
    Buffer.from(stream(buildCtrDnn(official).params['fc_0.w_0']!)),
  );
  assert.match(
    await harness.expectModelRefusal(join(harness.output, '__model__'), 2),
    /inside the output/,
  );
});

test('a pruned program has nothing to prune', async () => {
  const harness = new PaddleHarness();
  await harness.pruneTo(harness.writeModel(buildCtrDnn({ ...official, slots: 2 })));
  const again = await harness.run('--model', harness.output, '--output', harness.path('again'));
  assert.equal(again.status, 3, again.stderr);
  assert.ok(!existsSync(harness.path('again')));
});

test('a combined parameter file stays combined; --params names another file', async () => {
  const harness = new PaddleHarness();
  for (const style of [1, 2] as const) {
    const files = buildCtrDnn({ ...official, slots: 3, style });
    const layout = style === 1 ? 'combined' : 'pdmodel';
    const name = style === 1 ? '__params__' : 'ctr.pdiparams';
    await harness.pruneProgram(harness.writeModel(files, layout));
    const kept = Object.entries(files.params).filter(([param]) => param !== 'SparseFeatFactors');
    kept.sort(([a], [b]) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
    assert.deepEqual(harness.file(name), Buffer.concat(kept.map(([, options]) => stream(options))));
  }
  const files = buildCtrDnn({ ...official, slots: 3 });
  const all = Object.keys(files.params).sort();
  const params = harness.write(
    'weights.bin',
    Buffer.concat(all.map((n) => stream(files.params[n]!))),
  );
  const model = harness.write('renamed.bin', files.program);
  const report = await harness.pruneTo(model, { params });
  assert.deepEqual(report.files, ['renamed.bin', 'renamed.bin.prototxt', 'weights.bin']);
});

test('--force replaces an earlier output but never foreign files', async () => {
  const harness = new PaddleHarness();
  const model = harness.writeModel(buildCtrDnn({ ...official, slots: 2 }));
  await harness.pruneTo(model);
  assert.equal((await harness.run('--model', model, '--output', harness.output)).status, 2);
  assert.equal(
    (await harness.run('--model', model, '--output', harness.output, '--force')).status,
    0,
  );
  writeFileSync(join(harness.output, 'fc_9.w_0'), 'mine');
  assert.match(
    await harness.expectModelRefusal(model, 2),
    /contains fc_9.w_0, which prune-model did not write/,
  );
});

test('unchanged bytes are kept: unknown fields, versions, unusual variables', async () => {
  const odd = new WireWriter().uint(1000, 7).string(1001, 'kept').finish().slice();
  const files = smallProgram(odd);
  const harness = new PaddleHarness();
  const { bytes } = await harness.pruneProgram(harness.writeModel(files));
  assert.ok(Buffer.from(bytes).includes(Buffer.from(odd)));
  const weight = variable({ name: 'w', dims: [4, 2], persistable: true, extra: odd });
  assert.ok(Buffer.from(bytes).includes(Buffer.from(weight)));
  assert.deepEqual(bytes.subarray(-odd.length), odd);
  const unchanged = op('mul', { X: 'e', Y: 'w' }, { Out: 'y' }, { x_num_col_dims: 1 });
  assert.ok(Buffer.from(bytes).includes(Buffer.from(unchanged)));
});

function smallProgram(extra?: Uint8Array): ModelFiles {
  const vars = [
    ...holders,
    variable({ name: 'ids', dims: [-1, 1], type: INT64, isCheckedFeed: true }),
    variable({ name: 't', dims: [5, 4], persistable: true }),
    variable({ name: 'w', dims: [4, 2], persistable: true, ...(extra && { extra }) }),
    variable({ name: 'e', dims: [-1, 4], isCheckedFeed: false }),
    variable({ name: 'y', dims: [-1, 2], type: FP32 }),
  ];
  const ops = [
    feedOp('ids', 0),
    op('lookup_table', { W: 't', Ids: 'ids' }, { Out: 'e' }),
    op('mul', { X: 'e', Y: 'w' }, { Out: 'y' }, { x_num_col_dims: 1 }),
    fetchOp('y', 0),
  ];
  const params = {
    t: { dims: [5, 4], values: wave(20, 1) },
    w: { dims: [4, 2], values: wave(8, 2) },
  };
  return { program: program([{ vars, ops }], 0, extra), params };
}

test('the text form of the program is written next to it', async () => {
  const harness = new PaddleHarness();
  await harness.pruneProgram(harness.writeModel(smallProgram()));
  const text = String(harness.file('__model__.prototxt'));
  assert.match(text, /^blocks \{\n {2}idx: 0\n {2}parent_idx: -1\n {2}vars \{\n {4}name: "feed"\n/);
  assert.match(
    text,
    / type: LOD_TENSOR\n {6}lod_tensor \{\n {8}tensor \{\n {10}data_type: FP32\n {10}dims: -1\n/,
  );
  assert.match(text, /parameter: "X"\n {6}arguments: "feed"/);
  assert.match(text, /name: "x_num_col_dims"\n {6}type: INT\n {6}i: 1\n/);
  assert.match(
    text,
    / {4}name: "e"\n[^}]*\}[^}]*\}[^}]*\}\n {4}persistable: false\n {4}need_check_feed: true\n/,
  );
  assert.match(text, /\nversion \{\n {2}version: 0\n\}\n$/);
});

test('existing Paddle Serving configurations are rewritten for the pruned model', async () => {
  const harness = new PaddleHarness();
  const model = harness.writeModel(buildCtrDnn({ ...official, slots: 2 }));
  const conf = `# by hand
feed_var { name: "dense_input" alias_name: "dense" is_lod_tensor: false feed_type: 1 shape: 13 }
feed_var: {
  name: 'C1'
  alias_name: 'C1'
  is_lod_tensor: true
  feed_type: 0
  shape: -1
}
fetch_var { name: "fc_2.tmp_2", alias_name: "prob"; is_lod_tensor: false fetch_type: 1 shape: 2 }
`;
  const folder = dirname(model);
  writeFileSync(join(folder, 'serving_server_conf.prototxt'), conf);
  writeFileSync(join(folder, 'serving_server_conf.stream.prototxt'), 'old');
  await harness.pruneProgram(model);
  const written = String(harness.file('serving_server_conf.prototxt'));
  const rows = (i: number): string =>
    `feed_var {\n  name: "embedding_${i}.tmp_0"\n  alias_name: "embedding_${i}.tmp_0"\n` +
    '  is_lod_tensor: true\n  feed_type: 1\n  shape: -1\n}\n';
  assert.equal(
    written,
    'feed_var {\n  name: "dense_input"\n  alias_name: "dense"\n' +
      '  is_lod_tensor: false\n  feed_type: 1\n  shape: 13\n}\n' +
      rows(0) +
      rows(1) +
      'fetch_var {\n  name: "fc_2.tmp_2"\n  alias_name: "prob"\n' +
      '  is_lod_tensor: false\n  fetch_type: 1\n  shape: 2\n}\n',
  );
  const dense = new WireWriter().string(1, 'dense_input').string(2, 'dense').uint(3, 0).uint(4, 1);
  const first = new WireWriter().bytes(1, dense.uint(5, 13).finish()).finish();
  const binary = harness.file('serving_server_conf.stream.prototxt');
  assert.deepEqual(new Uint8Array(binary.subarray(0, first.length)), first);
  assert.ok(!readdirSync(harness.output).includes('serving_client_conf.prototxt'));
  writeFileSync(join(folder, 'serving_server_conf.prototxt'), 'feed_var { name: ');
  assert.match(
    await harness.expectModelRefusal(model, 5),
    /serving_server_conf.prototxt is not a Paddle Serving/,
  );
});

test('a PIR program of Paddle 3 in JSON is refused', async () => {
  const harness = new PaddleHarness();
  harness.write('inference.pdiparams', 'x');
  const json = harness.write('inference.json', { base_code: { magic: 'pir' } });
  for (const model of [json, harness.folder]) {
    assert.match(await harness.expectModelRefusal(model, 4), /a PIR program of Paddle 3 in JSON/);
  }
  const named = harness.write('ctr.pdmodel', '{"base_code":{}}');
  assert.match(await harness.expectModelRefusal(named, 4, { format: 'paddle' }), /PIR/);
});

test('another JSON file is not called a program', async () => {
  const harness = new PaddleHarness();
  const features = harness.write('features.json', { slots: [], hash: { scheme: 'raw' } });
  assert.match(
    await harness.expectModelRefusal(features, 5),
    /features\.json is JSON, not a Paddle program: give the file of the network/,
  );
});

test('--fetch keeps what a prediction needs and removes label, reader and loss', async () => {
  const values = { predict: [-1, 2], cost: [-1, 1], loss: [1], dropped: [-1, 4] };
  const vars = [
    ...holders,
    variable({ name: 'ids', dims: [-1, 1], type: INT64 }),
    variable({ name: 'label', dims: [-1, 1], type: INT64 }),
    variable({ name: 't', dims: [5, 4], persistable: true }),
    variable({ name: 'w', dims: [4, 2], persistable: true }),
    variable({ name: 'e', dims: [-1, 4] }),
    variable({ name: 'mask', dims: [-1, 4] }),
    // Not saved with the others: only training needs it.
    variable({ name: 'rate', dims: [1], persistable: true }),
    ...Object.entries(values).map(([name, dims]) => variable({ name, dims })),
  ];
  const ops = [
    op('read', { Reader: 'reader' }, { Out: ['ids', 'label'] }),
    op('lookup_table', { W: 't', Ids: 'ids' }, { Out: 'e' }),
    op(
      'dropout',
      { X: 'e' },
      { Out: 'dropped', Mask: 'mask' },
      {
        dropout_prob: { float: 0.25 },
        is_test: false,
      },
    ),
    op('mul', { X: 'dropped', Y: 'w' }, { Out: 'predict' }),
    op('cross_entropy', { X: 'predict', Label: 'label' }, { Y: 'cost' }),
    op('mean', { X: 'cost' }, { Out: 'loss' }),
    op('sgd', { Param: 'w', Grad: 'loss', LearningRate: 'rate' }, { ParamOut: 'w' }),
  ];
  const params = {
    t: { dims: [5, 4], values: wave(20, 1) },
    w: { dims: [4, 2], values: wave(8, 2) },
  };
  const files = { program: program([{ vars, ops }]), params };
  const harness = new PaddleHarness();
  const model = harness.writeModel(files);
  assert.match(
    await harness.expectModelRefusal(model, 4),
    /no fetch operator; name its outputs with --fetch/,
  );
  assert.match(
    await harness.expectModelRefusal(model, 1, { fetch: ['nothing'] }),
    /no such variable/,
  );
  const {
    feeds,
    fetches,
    ops: left,
    report,
  } = await harness.pruneProgram(model, { fetch: ['predict'] });
  assert.deepEqual([feeds, fetches], [['e'], ['predict']]);
  assert.deepEqual(left, ['feed', 'dropout', 'mul', 'fetch']);
  assert.deepEqual(report.inputs, { kept: [], removed: ['ids'] });
});
