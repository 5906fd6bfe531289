/** A gate that hangs: the rollout must not wait for it forever. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import { test } from 'node:test';
import { runGateProcess } from '../../../cube-agent/rollout/gate-process.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';

test('a gate that does not end in time is killed, and may run again', async (t) => {
  const folder = temporaryFolder(t);
  let isConnected = false;
  const silent = createServer((socket) => {
    isConnected = true;
    socket.on('error', () => undefined);
  }).listen(0, '127.0.0.1');
  t.after(() => silent.close());
  await once(silent, 'listening');
  const outcome = await runGateProcess(
    {
      repository: `http://127.0.0.1:${(silent.address() as AddressInfo).port}/`,
      trustedKeys: undefined,
      bundle: 'ctr',
      fleetFile: join(folder, 'fleet.json'),
      serving: [],
      flags: [],
      holder: 'test',
      timeoutMs: 5_000,
      signal: new AbortController().signal,
    },
    '2',
    '1',
  );
  assert.ok(isConnected, 'it waits for the repository');
  assert.deepEqual(outcome, {
    verdict: 'error',
    summary: 'it did not end within 5 s and was stopped',
    isFinal: false,
  });
});
