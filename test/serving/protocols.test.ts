/** Every protocol gives the same scores, and says whether they are degraded. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { formatFleet } from '../../lib/core/fleet.ts';
import { CubeServers } from './stores/support/cube-servers.ts';
import { connectClients } from './support/paddle-client.ts';
import {
  createPaddleRequest,
  PROTOCOL_CLIENTS,
  type ProtocolAnswer,
  readPaddleAnswer,
} from './support/protocol-clients.ts';
import type { ServingProcess } from './support/serving-process.ts';
import { BUNDLE, ToyBundle, type ToyRow, toyRows } from './support/toy-bundle.ts';
import { startLocal, ToyRepository } from './support/toy-service.ts';

const TOLERANCE = 1e-5;

type PredictRows = (rows: readonly ToyRow[]) => Promise<ProtocolAnswer>;

/** Every protocol, encoding and transport, by name. */
function connectAll(t: TestContext, serving: ServingProcess): ReadonlyMap<string, PredictRows> {
  let metadata: (string | undefined)[] = [];
  const calls = connectClients(t, serving.url, (degraded) => metadata.push(degraded));
  const paddle = [...calls].map(([name, call]): [string, PredictRows] => [
    `Paddle, ${name}`,
    async (rows) => {
      metadata = [];
      return readPaddleAnswer(await call(createPaddleRequest(rows)), metadata);
    },
  ]);
  const others = [...PROTOCOL_CLIENTS].map(([name, ask]): [string, PredictRows] => [
    name,
    (rows) => ask(serving, rows),
  ]);
  return new Map([...paddle, ...others]);
}

for (const [kind, options, counts] of [
  ['one hash', {}, [1, 150]],
  // Clients that send keys compute them themselves.
  ['a modulo and missing values per slot', { ownKeys: true }, [40]],
] as const) {
  test(`every protocol returns the expected scores: ${kind}`, async (t) => {
    const toy = new ToyBundle({ version: '7', seed: 41, wide: true, ...options });
    await checkScores(t, toy, counts);
  });
}

async function checkScores(
  t: TestContext,
  toy: ToyBundle,
  counts: readonly number[],
): Promise<void> {
  const { serving } = await startLocal(t, [toy]);
  for (const [name, predict] of connectAll(t, serving)) {
    if (toy.options.ownKeys && /\bkeys\b/.test(name)) continue;
    for (const count of counts) {
      const rows = toyRows(count, count);
      const { clicks, marks } = await predict(rows);
      assert.equal(clicks.length, rows.length, name);
      assert.ok(marks.length > 0, name);
      assert.deepEqual([...new Set(marks)], [false], name);
      rows.forEach((row, i) => {
        const difference = Math.abs(clicks[i]! - toy.score(row)[1]);
        assert.ok(difference < TOLERANCE, `${name}, row ${i}: off by ${difference}`);
      });
    }
  }
  assert.equal(await serving.stop(), 0);
}

test('every protocol marks degraded answers', async (t) => {
  const toys = new ToyRepository(t);
  await toys.publish(new ToyBundle({ version: '1', seed: 42, shardNum: 2 }));
  await toys.activate('1');
  const servers = new CubeServers(BUNDLE, toys.location, { areProcesses: true });
  t.after(() => servers.stop());
  await servers.load(await toys.repository.readManifest(BUNDLE, '1'));
  const fleet = join(toys.folder, 'fleet.json');
  writeFileSync(fleet, formatFleet(servers.fleet));
  const serving = await toys.startRemote(t, fleet, 1, ['--on-unavailable', 'default']);
  await serving.waitUntilReady();
  await servers.stop();
  for (const [name, predict] of connectAll(t, serving)) {
    const { clicks, marks } = await predict(toyRows(3));
    assert.equal(clicks.length, 3, name);
    assert.deepEqual([...new Set(marks)], [true], name);
  }
});
