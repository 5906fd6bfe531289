/** Serving one pinned version regardless of channels, and exiting with the parent process. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { toArguments } from '../../lib/platform/arguments.ts';
import { killOnTestEnd } from '../repository/support/fixtures.ts';
import { ServingProcess } from './support/serving-process.ts';
import { BUNDLE, ToyBundle, toTsv, toyRows } from './support/toy-bundle.ts';
import { ToyRepository } from './support/toy-service.ts';

const MAIN = fileURLToPath(new URL('../../serving/main.js', import.meta.url));
const one = new ToyBundle({ version: '1', seed: 101 });
const two = new ToyBundle({ version: '2', seed: 202 });

const createFlags = (toys: ToyRepository, version: string): string[] =>
  toArguments({ repository: toys.location, bundle: BUNDLE, instances: 1, pinnedVersion: version });

test('serves the pinned version, which no channel has ever named, and keeps it', async (t) => {
  const toys = new ToyRepository(t);
  for (const toy of [one, two]) await toys.publish(toy);
  await toys.activate('1');
  const serving = await ServingProcess.start(t, createFlags(toys, '2'));
  await serving.waitUntilReady();
  const rows = toyRows(5);
  const ask = async (): Promise<void> => {
    const { body } = await serving.postTsv(toTsv(rows));
    assert.deepEqual([body.version, body.tables_version], ['2', '2']);
    rows.forEach((row, i) => {
      assert.ok(Math.abs(body.probabilities[i] - two.score(row)[1]) < 1e-6);
    });
  };
  await ask();
  // A rollback that quarantines the pinned version does not change it.
  await toys.activate('2');
  await toys.rollback();
  await ask();
  const { body } = await serving.get('/v1/status');
  assert.deepEqual([body.active, body.target, body.held], ['2', '2', ['2']]);
  assert.equal(await serving.stop(), 0);
});

test('a missing version is not ready, and the error lists the published ones', async (t) => {
  const toys = new ToyRepository(t);
  await toys.publish(one);
  const serving = await ServingProcess.start(t, createFlags(toys, '7'));
  const { body } = await serving.waitFor('/readyz', (answer) =>
    /version 7/.test(answer.body.error),
  );
  assert.match(body.error, /has no version 7 of toy \(it has: 1\)/);
});

test('exits when its parent process ends', async (t) => {
  const toys = new ToyRepository(t);
  await toys.publish(one);
  const child = spawn(process.execPath, [MAIN, '--port', '0', ...createFlags(toys, '1')], {
    stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
  });
  killOnTestEnd(t, child);
  const [{ listening }] = (await once(child, 'message')) as [{ listening: string }];
  assert.equal((await fetch(`http://${listening}/healthz`)).status, 200);
  child.disconnect();
  assert.deepEqual(await once(child, 'exit'), [0, null]);
});
