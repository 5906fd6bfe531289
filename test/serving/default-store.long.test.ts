/** The default store: in memory while versions fit, else on disk; with any number of instances. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { ServingProcess } from './support/serving-process.ts';
import { BUNDLE, ToyBundle } from './support/toy-bundle.ts';
import { LoadRunner, ToyRepository } from './support/toy-service.ts';

const one = new ToyBundle({ version: '1', seed: 801 });
/** Needs more memories than version 1: two tables in three shards. */
const two = new ToyBundle({ version: '2', seed: 802, wide: true, shardNum: 3 });
const three = new ToyBundle({ version: '3', seed: 803 });

async function published(t: TestContext): Promise<ToyRepository> {
  const toys = new ToyRepository(t);
  for (const toy of [one, two, three]) await toys.publish(toy);
  await toys.activate('1');
  return toys;
}

function start(t: TestContext, toys: ToyRepository, ...flags: string[]): Promise<ServingProcess> {
  const from = ['--repository', toys.location, '--bundle', BUNDLE, '--timeout-ms', '10000'];
  return ServingProcess.start(t, [...from, '--instances', '1', ...flags]);
}

function logged(serving: ServingProcess, message: string): Record<string, unknown>[] {
  return serving.log.map((line) => JSON.parse(line)).filter(({ msg }) => msg === message);
}

test('a version that does not fit in memory is kept on disk beside one in memory', async (t) => {
  const toys = await published(t);
  const roomy = await start(t, toys);
  await roomy.waitUntilActive('1');
  const [loaded] = logged(roomy, 'tables in memory');
  assert.ok(loaded);
  await roomy.stop();
  const memory = Math.round(1.2 * Number(loaded['usedBytes']));
  const dataDir = join(toys.folder, 'data');
  const serving = await start(t, toys, '--memory', String(memory), '--data-dir', dataDir);
  await serving.waitUntilActive('1');
  const traffic = new LoadRunner(serving, [one, two]);
  await toys.activate('2');
  await traffic.waitForAnswers('2');
  await toys.rollback();
  await traffic.waitForAnswers('1');
  await traffic.stop();
  assert.deepEqual(traffic.refused, []);
  assert.deepEqual(
    logged(serving, 'tables are kept on disk').map(({ version }) => version),
    ['2'],
  );
  assert.equal(await serving.stop(), 0);
});

test('without --data-dir the error says what to do', async (t) => {
  const toys = await published(t);
  const serving = await start(t, toys, '--memory', '1000');
  const { body } = await serving.waitFor('/v1/status', (answer) => answer.body.failed.length > 0);
  assert.equal(body.failed[0].code, 'TOO_LARGE');
  assert.match(body.failed[0].message, /need \d+ bytes of memory.*--store local/);
});

test('eight instances of every loaded version, including one that is loading', async (t) => {
  const toys = await published(t);
  const serving = await start(t, toys, '--instances', '8');
  await serving.waitUntilActive('1');
  for (const version of ['2', '3']) {
    await toys.activate(version);
    await serving.waitUntilActive(version);
  }
  const { body } = await serving.get('/v1/status');
  assert.deepEqual(body.failed, []);
});

test('more model workers than a memory store supports are rejected at start', async (t) => {
  const toys = await published(t);
  await assert.rejects(
    start(t, toys, '--instances', '256', '--channel', 'stable,canary'),
    /256 instances per version need up to 1536 model workers/,
  );
});
