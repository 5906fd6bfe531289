/** An agent with trusted keys takes only what they signed. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { makeKeyPair } from '../../lib/repository/signatures.ts';
import { by, makeHost, publish, start } from './host.ts';
import { until } from './processes.ts';

test('an unsigned channel and version are reported, and nothing of them is fetched or loaded', async (t) => {
  const host = await makeHost(t, 1);
  await publish(host, { version: '1', shardNum: 1 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  const keys = join(host.folder, 'publisher.pub');
  writeFileSync(keys, makeKeyPair().publicPem);
  const running = start(t, host, host.servers, '--trusted-keys', keys);
  await until('refused', () => running.messages().includes('cannot read channel stable'));
  const line = running.lines.find(({ msg }) => msg === 'cannot read channel stable');
  assert.match(String(line?.['error']), /sign/);
  assert.deepEqual(host.servers[0]?.calls, []);
  assert.ok(!running.messages().some((message) => message.startsWith('fetch')));
});
