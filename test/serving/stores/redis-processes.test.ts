/** Processes that use a real redis-server: a load that is killed, and lookups over TLS. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { RedisStore } from '../../../serving/stores/redis-store.ts';
import { assertLookup, createGroup, createOracleTable } from '../../client/support/oracle.ts';
import { freePort } from '../../platform/support/free-port.ts';
import { runCommand } from '../../support/commands.ts';
import { startProcess } from '../../support/processes.ts';
import { ServingProcess } from '../support/serving-process.ts';
import { BUNDLE, ToyBundle, toTsv, toyRows } from '../support/toy-bundle.ts';
import { ToyRepository } from '../support/toy-service.ts';
import { RedisServers, redisMissing, redisTlsMissing } from './support/redis-servers.ts';
import { TestRepository } from './support/test-repository.ts';

const ROWS = 60_000;
const MAIN = 'serving/main.js';

test('a load that is killed leaves no marker, and the next one completes it', {
  skip: redisMissing ?? false,
}, async (t) => {
  const repository = await TestRepository.create();
  t.after(() => repository.remove());
  const servers = await RedisServers.one();
  t.after(() => servers.stop());
  const keys = Array.from({ length: ROWS }, (_, i) => BigInt(i));
  const table = createOracleTable('t', 1, keys);
  const version = { bundle: 'ctr', version: '1', shardNum: 1, tables: [table] };
  const manifest = await repository.publish(version);
  const { contentId } = manifest.tables[0]!.shards[0]![0]!;
  const from = ['--repository', join(repository.folder, 'repo'), '--bundle', 'ctr'];
  const load = ['load-redis', ...from, '--version', '1', '--redis-url', servers.urls[0]!];

  const slow = startProcess(MAIN, [...load, '--rate-limit', '64KiB']);
  const isLoaded = async (): Promise<boolean> =>
    Number(await servers.send(0, 'HLEN', `hc:{ctr/${contentId}/0}`)) > 0;
  while (!(await isLoaded())) {
    assert.equal(slow.exitCode, null);
    await sleep(10);
  }
  slow.kill('SIGKILL');
  await once(slow, 'exit');

  const options = { kind: 'redis' as const, urls: servers.urls, fill: false };
  const store = new RedisStore(options, { repository: repository.repository });
  t.after(() => store.close());
  await assert.rejects(store.prepare(manifest), { code: 'NOT_READY' });
  const again = await runCommand(MAIN, ...load);
  assert.equal(again.code, 0, again.stderr);
  await store.prepare(manifest);
  const group = createGroup(table, keys);
  assertLookup(version, [{ table, keys, group }], await store.lookup(manifest, [group], 60_000));
});

const tlsMissing = redisTlsMissing();

test('rows are loaded and looked up over TLS if the server certificate is trusted', {
  skip: tlsMissing ?? false,
}, async (t) => {
  const toy = new ToyBundle({ version: '1', seed: 501 });
  const toys = new ToyRepository(t);
  await toys.publish(toy);
  await toys.activate('1');
  const [key, cert] = [join(toys.folder, 'key.pem'), join(toys.folder, 'cert.pem')];
  const made = spawnSync('openssl', [
    'req',
    '-x509',
    '-newkey',
    'ec',
    '-pkeyopt',
    'ec_paramgen_curve:prime256v1',
    '-nodes',
    '-keyout',
    key,
    '-out',
    cert,
    '-days',
    '2',
    '-subj',
    '/CN=redis',
    '-addext',
    'subjectAltName=IP:127.0.0.1',
  ]);
  assert.equal(made.status, 0, String(made.stderr));
  const port = await freePort();
  const files = ['--tls-cert-file', cert, '--tls-key-file', key, '--tls-ca-cert-file', cert];
  const own = ['--tls-port', String(port), '--tls-auth-clients', 'no', ...files];
  const servers = await RedisServers.one(...own);
  t.after(() => servers.stop());
  const store = ['--redis-url', `rediss://127.0.0.1:${port}`];
  const from = ['--repository', toys.location, '--bundle', BUNDLE];

  const untrusted = await runCommand(MAIN, 'load-redis', ...from, ...store);
  assert.deepEqual([untrusted.code, /certificate/.test(untrusted.stderr)], [1, true]);
  assert.equal(await servers.send(0, 'DBSIZE'), 0);

  process.env['NODE_EXTRA_CA_CERTS'] = cert;
  t.after(() => {
    delete process.env['NODE_EXTRA_CA_CERTS'];
  });
  const flags = [...from, '--store', 'redis', ...store, '--redis-fill', 'true', '--instances', '1'];
  // Node reads this variable when a process starts.
  const serving = await ServingProcess.start(t, [...flags, '--timeout-ms', '10000'], {
    isProcess: true,
  });
  await serving.waitUntilReady();
  const rows = toyRows(20);
  const { status, body } = await serving.postTsv(toTsv(rows));
  assert.deepEqual([status, body.degraded, body.unavailable], [200, false, 0]);
  for (const [i, row] of rows.entries()) {
    assert.ok(Math.abs(body.probabilities[i] - toy.score(row)[1]) < 1e-6);
  }
  assert.equal(await serving.stop(), 0);
});
