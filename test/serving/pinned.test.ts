/** Serving one version by its name, whatever channels want; and ending with the process that keeps it. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { killAtEnd } from '../repository/fixtures.ts';
import { ServingProcess } from './serving-process.ts';
import { BUNDLE, ToyBundle, toTsv, toyRows } from './toy-bundle.ts';
import { ToyRepository } from './toy-service.ts';

const MAIN = fileURLToPath(new URL('../../serving/main.js', import.meta.url));
const one = new ToyBundle({ version: '1', seed: 101 });
const two = new ToyBundle({ version: '2', seed: 202 });

const flagsOf = (toys: ToyRepository, version: string): string[] => [
  ...['--repository', toys.location, '--bundle', BUNDLE, '--instances', '1'],
  ...['--pinned-version', version],
];

it('answers with the pinned version, which no channel has ever named, and stays there', async (t) => {
  const toys = new ToyRepository(t);
  for (const toy of [one, two]) await toys.publish(toy);
  await toys.activate('1');
  const serving = await ServingProcess.start(t, flagsOf(toys, '2'));
  await serving.untilReady();
  const rows = toyRows(5);
  const ask = async (): Promise<void> => {
    const { body } = await serving.postTsv(toTsv(rows));
    assert.deepEqual([body.version, body.tables_version], ['2', '2']);
    rows.forEach((row, i) => {
      assert.ok(Math.abs(body.probabilities[i] - two.score(row)[1]) < 1e-6);
    });
  };
  await ask();
  // Not even a rollback that condemns it moves it: whoever pins looks into a version.
  await toys.activate('2');
  await toys.rollback();
  await ask();
  const { body } = await serving.get('/v1/status');
  assert.deepEqual([body.active, body.target, body.held], ['2', '2', ['2']]);
  assert.equal(await serving.stop(), 0);
});

it('a version that is not there is not ready, and says what there is', async (t) => {
  const toys = new ToyRepository(t);
  await toys.publish(one);
  const serving = await ServingProcess.start(t, flagsOf(toys, '7'));
  const { body } = await serving.until('/readyz', (answer) => /version 7/.test(answer.body.error));
  assert.match(body.error, /has no version 7 of toy \(it has: 1\)/);
});

it('ends with the process that keeps it', async (t) => {
  const toys = new ToyRepository(t);
  await toys.publish(one);
  const child = spawn(process.execPath, [MAIN, '--port', '0', ...flagsOf(toys, '1')], {
    stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
  });
  killAtEnd(t, child);
  const [{ listening }] = (await once(child, 'message')) as [{ listening: string }];
  assert.equal((await fetch(`http://${listening}/healthz`)).status, 200);
  child.disconnect();
  assert.deepEqual(await once(child, 'exit'), [0, null]);
});
