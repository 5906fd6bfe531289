/**
 * A model that computes keys from ids, pruned, built, and served LOCAL and REMOTE, has the scores
 * of the full model.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { formatFleet } from '../../lib/core/fleet.ts';
import { toArguments } from '../../lib/platform/arguments.ts';
import { OnnxModel } from '../../lib/platform/onnx.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { runCommand } from '../support/commands.ts';
import {
  FLOAT,
  floats,
  INT64,
  ints,
  model,
  node,
  ramp,
  value,
} from '../tools/prune-model/support/onnx-builder.ts';
import { CubeServers } from './stores/support/cube-servers.ts';
import { ServingProcess } from './support/serving-process.ts';

/**
 * One table with an offset for each field, a second table with hashed ids, and a mask that needs
 * the ids themselves.
 */
const FULL = model({
  inputs: [value('ids', INT64, ['n', 3])],
  outputs: [value('prob', FLOAT, ['n', 1])],
  initializers: [
    floats('t', [30, 4], ramp(120)),
    floats('u', [7, 4], ramp(28, 2)),
    ints('ten', [], [10]),
    ints('seven', [], [7]),
    ints('offsets', [1, 3], [0, 10, 20]),
    ints('zero', [], [0]),
    ints('two', [1], [2]),
    ints('flat', [2], [0, 12]),
    floats('w', [12, 1], ramp(12)),
  ],
  nodes: [
    node('Mod', ['ids', 'ten'], ['m']),
    node('Add', ['m', 'offsets'], ['k']),
    node('Gather', ['t', 'k'], ['a']),
    node('Mod', ['ids', 'seven'], ['h']),
    node('Gather', ['u', 'h'], ['b']),
    node('Add', ['a', 'b'], ['e']),
    node('Equal', ['ids', 'zero'], ['empty']),
    node('Not', ['empty'], ['there']),
    node('Cast', ['there'], ['mask'], { attributes: { to: FLOAT } }),
    node('Unsqueeze', ['mask', 'two'], ['mask3']),
    node('Mul', ['e', 'mask3'], ['masked']),
    node('Reshape', ['masked', 'flat'], ['wide']),
    node('MatMul', ['wide', 'w'], ['logit']),
    node('Sigmoid', ['logit'], ['prob']),
  ],
});

const SLOTS = ['C1', 'C2', 'C3'];
const FEATURES = {
  format: 1,
  hash: { scheme: 'raw' },
  slots: SLOTS.map((name, i) => ({ name, index: i })),
  click: { output: 'prob', column: 0 },
  ids: [{ input: 'ids', slots: SLOTS }],
};

async function run(script: string, ...args: string[]): Promise<void> {
  const { code, stderr } = await runCommand(script, ...args);
  assert.equal(code, 0, stderr);
}

test("LOCAL and REMOTE serve the full model's scores with computed keys and ids", async (t) => {
  const folder = temporaryFolder(t);
  const path = (name: string): string => join(folder, name);
  writeFileSync(path('model.onnx'), FULL);
  writeFileSync(path('features.json'), JSON.stringify(FEATURES));
  await run(
    'tools/prune-model/main.js',
    ...toArguments({
      model: path('model.onnx'),
      features: path('features.json'),
      output: path('out'),
    }),
  );
  const target = ['--output-path', path('repo'), '--shard-num', '2', '--cur-version', '1'];
  await run('tools/cube-builder/main.js', '--input', path('out'), '--dict-name', 'ctr', ...target);
  const repository = openRepository(path('repo'));
  await repository.activate('ctr', 'stable', { version: '1', by: 'test', reason: 'test' });
  const servers = new CubeServers('ctr', path('repo'));
  t.after(() => servers.stop());
  await servers.load(await repository.readManifest('ctr', '1'));
  writeFileSync(path('fleet.json'), formatFleet(servers.fleet));

  const rowCount = 150;
  const ids = Array.from(
    { length: 3 * rowCount },
    (_, i) => (i % 7 === 0 ? 0 : (i * 7919) % 1_000_003) - (i % 11 === 0 ? 500 : 0),
  );
  const full = await OnnxModel.load(FULL);
  const { prob } = await full.run({
    ids: { dtype: 'int64', data: BigInt64Array.from(ids, BigInt), dims: [rowCount, 3] },
  });
  assert.ok(prob);
  await full.release();
  const inputs = [{ name: 'keys', datatype: 'INT64', shape: [rowCount, 3], data: ids }];
  for (const store of [
    ['--store', 'local', '--data-dir', path('data')],
    ['--store', 'remote', '--fleet', path('fleet.json')],
  ]) {
    const serving = await ServingProcess.start(t, [
      ...toArguments({ repository: path('repo'), bundle: 'ctr', instances: 1 }),
      ...store,
    ]);
    await serving.waitUntilReady();
    const { status, body } = await serving.post(
      '/v2/models/ctr/infer',
      JSON.stringify({ inputs }),
      { 'content-type': 'application/json' },
    );
    assert.equal(status, 200, JSON.stringify(body));
    body.outputs[0].data.forEach((score: number, i: number) => {
      assert.ok(
        Math.abs(score - Number(prob.data[i])) < 1e-6,
        `row ${i}: ${score} instead of ${prob.data[i]}`,
      );
    });
    assert.equal(body.parameters.unseen, 0);
    assert.equal(await serving.stop(), 0);
  }
});
