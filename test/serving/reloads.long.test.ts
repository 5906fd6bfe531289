/**
 * One process with a model for each store that needs no fleet (memory, Redis, none), and a second
 * bundle. Versions switch under load; a version that cannot be loaded affects only its own bundle.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { stringify } from 'yaml';
import { runCommand } from '../support/commands.ts';
import {
  FLOAT,
  floats,
  INT64,
  ints,
  model,
  node,
  value,
} from '../tools/prune-model/support/onnx-builder.ts';
import { RedisServers, redisMissing } from './stores/support/redis-servers.ts';
import { ServingProcess } from './support/serving-process.ts';
import { ToyBundle } from './support/toy-bundle.ts';
import { LoadRunner, ToyRepository } from './support/toy-service.ts';

const one = new ToyBundle({ version: '1', seed: 401 });
const two = new ToyBundle({ version: '2', seed: 402, shardNum: 3, inputs: 'many', wide: true });
const otherOne = new ToyBundle({ version: '1', seed: 403, wide: true });
const LANES = 2;

/** A graph with its embeddings inside: sigmoid of the sum of two rows. */
const WHOLE = 'whole';
const ROWS = [1, 2, 3, 4, 5, 6, 7, 8];
const getFactor = (version: string): number => (version === '1' ? 0.25 : -0.125);
const ids = [
  [0, 7],
  [3, 3],
  [5, 1],
];

function wholeGraph(factor: number): Uint8Array {
  return model({
    inputs: [value('ids', INT64, ['n', 2])],
    outputs: [value('prob', FLOAT, ['n', 1])],
    initializers: [
      floats(
        't',
        [ROWS.length, 1],
        Float32Array.from(ROWS, (row) => row * factor),
      ),
      floats('w', [2, 1], Float32Array.of(1, 1)),
      ints('pairs', [2], [-1, 2]),
    ],
    nodes: [
      node('Gather', ['t', 'ids'], ['rows']),
      node('Reshape', ['rows', 'pairs'], ['x']),
      node('MatMul', ['x', 'w'], ['logit']),
      node('Sigmoid', ['logit'], ['prob']),
    ],
  });
}

async function publishWhole(toys: ToyRepository, version: string): Promise<void> {
  const path = join(toys.folder, `whole-${version}.onnx`);
  writeFileSync(path, wholeGraph(getFactor(version)));
  const target = ['--output-path', toys.location, '--bundle', WHOLE, '--cur-version', version];
  const { code, stderr } = await runCommand(
    'tools/cube-builder/main.js',
    'graph',
    '--model',
    path,
    ...target,
  );
  assert.equal(code, 0, stderr);
}

/** Sends requests until stopped and checks each response. @returns the versions seen */
async function askWhole(serving: ServingProcess, isOver: () => boolean): Promise<Set<string>> {
  const seen = new Set<string>();
  const inputs = [{ name: 'ids', datatype: 'INT64', shape: [ids.length, 2], data: ids.flat() }];
  while (!isOver()) {
    const { status, body } = await serving.post(
      `/v2/models/${WHOLE}/infer`,
      JSON.stringify({ inputs }),
    );
    assert.equal(status, 200, JSON.stringify(body));
    const factor = getFactor(body.model_version);
    for (const [row, [a, b]] of ids.entries()) {
      const expected = 1 / (1 + Math.exp(-(ROWS[a!]! + ROWS[b!]!) * factor));
      const difference = Math.abs(body.outputs[0].data[row] - expected);
      assert.ok(difference < 1e-6, `version ${body.model_version}: off by ${difference}`);
    }
    seen.add(body.model_version);
  }
  return seen;
}

async function start(t: TestContext, toys: ToyRepository, urls: string[]): Promise<ServingProcess> {
  const path = join(toys.folder, 'serving.yaml');
  const common = { repository: 'repo', instances: 1, 'poll-ms': 50 };
  const cached = { bundle: 'toy', store: 'redis', 'redis-url': urls, 'redis-fill': true };
  const models = [
    { ...common, bundle: 'toy', store: 'memory' },
    { ...common, bundle: 'other', store: 'memory' },
    { ...common, bundle: WHOLE, store: 'none' },
    ...(urls.length === 0 ? [] : [{ ...common, name: 'cached', ...cached }]),
  ];
  writeFileSync(path, stringify({ 'timeout-ms': 10_000, models }));
  const serving = await ServingProcess.start(t, ['--config', path]);
  await serving.waitUntilReady();
  return serving;
}

test('bundles and stores in one process switch versions independently under load', async (t) => {
  const toys = new ToyRepository(t);
  for (const toy of [one, two]) await toys.publish(toy);
  await toys.publish(otherOne, {}, 'other');
  await toys.publish(two, { 'model.onnx': new Uint8Array(10) }, 'other');
  for (const version of ['1', '2']) await publishWhole(toys, version);
  for (const bundle of ['toy', 'other', WHOLE]) await toys.activate('1', 'stable', bundle);
  const redis = redisMissing === undefined ? await RedisServers.one() : undefined;
  t.after(() => redis?.stop());
  const serving = await start(t, toys, redis?.urls ?? []);

  const toy = new LoadRunner(serving, [one, two], LANES, 'toy');
  const other = new LoadRunner(serving, [otherOne], LANES, 'other');
  const cached = redis && new LoadRunner(serving, [one, two], LANES, 'cached');
  let isOver = false;
  const whole = askWhole(serving, () => isOver);
  const both = (version: string): Promise<unknown> =>
    Promise.all([toy.waitForAnswers(version, 20), cached?.waitForAnswers(version, 20)]);
  await both('1');
  for (const bundle of ['toy', 'other', WHOLE]) await toys.activate('2', 'stable', bundle);
  await both('2');
  await toys.rollback();
  await both('1');
  const isBad = 'hypercube_serving_load_failures_total{model="other"';
  await serving.waitFor('/metrics', ({ body }) => body.includes(isBad));
  const labels = `model="${WHOLE}",version="2",channel="stable"`;
  const isSwitched = `hypercube_serving_version_active{${labels}} 1`;
  await serving.waitFor('/metrics', ({ body }) => body.includes(isSwitched));
  await other.waitForAnswers('1', 20);
  isOver = true;
  assert.deepEqual([...(await whole)].sort(), ['1', '2']);
  for (const traffic of [toy, other, cached]) {
    await traffic?.stop();
    assert.deepEqual([traffic?.refused ?? [], traffic?.degraded ?? 0], [[], 0]);
  }
  const metrics: string = (await serving.get('/metrics')).body;
  const active = metrics
    .split('\n')
    .filter((line) => /^hypercube_serving_version_active.* 1$/.test(line));
  for (const line of [`model="toy",version="1"`, `model="other",version="1"`]) {
    assert.ok(
      active.some((text) => text.includes(line)),
      active.join('\n'),
    );
  }
  assert.doesNotMatch(metrics, /load_failures_total\{model="(toy|whole)"/);
  assert.equal(await serving.stop(), 0);
});
