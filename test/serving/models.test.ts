/** Several models and versions in one process: names, labels, load and unload, changing folders. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { stringify } from 'yaml';
import { formatManifest } from '../../lib/core/manifest.ts';
import { toArguments } from '../../lib/platform/arguments.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { type Answer, ServingProcess } from './support/serving-process.ts';
import { BUNDLE, exportBundle, ToyBundle, toTsv, toyRows } from './support/toy-bundle.ts';
import { LoadRunner, ToyRepository } from './support/toy-service.ts';

const one = new ToyBundle({ version: '1', seed: 301, golden: true });
const two = new ToyBundle({ version: '2', seed: 302, inputs: 'many' });
const [row] = toyRows(1);

function startWith(t: TestContext, folder: string, config: object): Promise<ServingProcess> {
  const path = join(folder, 'serving.yaml');
  writeFileSync(path, stringify(config));
  return ServingProcess.start(t, ['--config', path]);
}

function infer(serving: ServingProcess, path: string): Promise<Answer> {
  const { dense, categorical } = row!;
  return serving.post(
    `/v2/models/${path}/infer`,
    JSON.stringify({
      inputs: [
        { name: 'categorical', datatype: 'BYTES', shape: [1, 3], data: categorical },
        {
          name: 'dense',
          datatype: 'FP32',
          shape: [1, 2],
          data: dense.map((value) => (Number.isNaN(value) ? null : value)),
        },
      ],
    }),
  );
}

async function assertAnswers(serving: ServingProcess, path: string, toy: ToyBundle): Promise<void> {
  const { status, body } = await infer(serving, path);
  assert.equal(status, 200, JSON.stringify(body));
  const difference = Math.abs(body.outputs[0].data[1] - toy.score(row!)[1]);
  assert.ok(difference < 1e-6, `${path}: off by ${difference}`);
}

test('two models, two channels, versions by name; an unloaded model stays unloaded', async (t) => {
  const toys = new ToyRepository(t);
  for (const toy of [one, two]) await toys.publish(toy);
  await toys.activate('1');
  await toys.activate('2', 'canary');
  const folder = join(toys.folder, 'export');
  exportBundle(two, folder, 'layers');
  const serving = await startWith(t, toys.folder, {
    models: [
      {
        bundle: BUNDLE,
        repository: 'repo',
        channel: ['stable', 'canary'],
        instances: 1,
        store: 'local',
        'data-dir': 'data',
        'poll-ms': 50,
      },
      {
        name: 'second',
        'bundle-dir': 'export',
        instances: 1,
        'poll-ms': 50,
        store: 'local',
        'data-dir': 'data-2',
      },
    ],
  });
  await serving.waitUntilReady();
  await serving.waitFor('/v1/status', ({ body }) => body.channels[1].active === '2');
  await assertAnswers(serving, BUNDLE, one);
  await assertAnswers(serving, `${BUNDLE}/versions/2`, two);
  await assertAnswers(serving, 'second', two);
  const { body } = await serving.get('/v1/status');
  assert.deepEqual(
    body.models.map(({ model, held }: { model: string; held: string[] }) => [model, held.sort()]),
    [
      [BUNDLE, ['1', '2']],
      ['second', ['2']],
    ],
  );
  assert.match((await serving.postTsv(toTsv([row!]))).body.error, /several models .*toy, second/);
  const absent = await infer(serving, `${BUNDLE}/versions/9`);
  assert.deepEqual([absent.status, /served: /.test(absent.body.error)], [404, true]);
  await assertUnloads(serving);
  serving.child.kill('SIGHUP');
  assert.equal((await serving.get('/healthz')).status, 200);
  assert.equal(await serving.stop(), 0);
});

test('two models of one bundle and store do not retire the versions of each other', async (t) => {
  const toys = new ToyRepository(t);
  const three = new ToyBundle({ version: '3', seed: 303 });
  for (const toy of [one, two, three]) await toys.publish(toy);
  await toys.activate('1');
  await toys.activate('1', 'canary');
  const model = { bundle: BUNDLE, repository: 'repo', store: 'memory', instances: 1 };
  const serving = await startWith(t, toys.folder, {
    models: [
      { ...model, name: 'a', 'poll-ms': 3_600_000 },
      { ...model, name: 'b', channel: 'canary', 'poll-ms': 50 },
    ],
  });
  await serving.waitUntilReady();
  for (const toy of [two, three]) {
    const { version } = toy.options;
    await toys.activate(version, 'canary');
    await serving.waitFor('/v1/status', ({ body }) => body.models[1].active === version);
    await assertAnswers(serving, 'a', one);
    await assertAnswers(serving, 'b', toy);
  }
  // Model b keeps version 2 for a rollback, and no longer version 1.
  await serving.waitFor('/v1/status', ({ body }) => !body.models[1].held.includes('1'));
  await assertAnswers(serving, 'a', one);
  assert.equal((await serving.post('/v2/repository/models/b/unload', '{}')).status, 200);
  await assertAnswers(serving, 'a', one);
});

async function assertUnloads(serving: ServingProcess): Promise<void> {
  const control = (verb: string): Promise<Answer> =>
    serving.post(`/v2/repository/models/second/${verb}`, '{}');
  assert.equal((await control('unload')).status, 200);
  const refused = await infer(serving, 'second');
  assert.match(refused.body.error, /it was unloaded; load it again/);
  assert.equal((await serving.get('/readyz')).status, 200);
  await assertAnswers(serving, BUNDLE, one);
  assert.equal((await control('load')).status, 200);
  await assertAnswers(serving, 'second', two);
}

test('a folder that changes under load is loaded completely or not at all', async (t) => {
  const folder = temporaryFolder(t);
  const exported = join(folder, 'export');
  exportBundle(one, exported, 'layers');
  const serving = await ServingProcess.start(
    t,
    toArguments({
      bundleDir: exported,
      bundle: BUNDLE,
      instances: 1,
      store: 'local',
      dataDir: join(folder, 'data'),
      timeoutMs: 10_000,
    }),
  );
  await serving.waitUntilReady();
  const traffic = new LoadRunner(serving, [one, two], 2);
  await traffic.waitForAnswers('1');
  // The manifest of the next version is written before its files: the folder is half-written.
  const next = join(folder, 'next');
  exportBundle(two, next, 'layers');
  const { manifest } = two.publication(join(next, 'layers'));
  writeFileSync(join(exported, 'manifest.json'), formatManifest(manifest));
  await serving.waitFor('/v1/status', ({ body }) => body.failed[0]?.version === '2');
  assert.equal((await serving.get('/v1/status')).body.active, '1');
  exportBundle(two, exported, 'layers');
  await traffic.waitForAnswers('2');
  await traffic.stop();
  assert.deepEqual(traffic.refused, []);
  assert.equal(await serving.stop(), 0);
});
