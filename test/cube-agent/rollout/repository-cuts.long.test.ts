/**
 * The connection to the repository is cut at every step of a rollout and a rollback: servers keep
 * answering, and both finish.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { formatFleet } from '../../../lib/core/fleet.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { freePort } from '../../platform/support/free-port.ts';
import { FakeS3Server } from '../../repository/support/fake-s3-server.ts';
import { makeVersion, temporaryFolder } from '../../repository/support/fixtures.ts';
import { RunningProcess, startAgentProcess, waitFor } from '../../support/processes.ts';
import { startServers } from '../support/control-server.ts';
import { CuttingProxy } from '../support/cutting-proxy.ts';
import { areAllActive } from '../support/host.ts';

process.env['AWS_ACCESS_KEY_ID'] = 'test';
process.env['AWS_SECRET_ACCESS_KEY'] = 'test';

const PATIENCE_MS = 150_000;
/** Each look at the stand-in, through the proxy, takes this process CPU time too. */
const POLL_MS = 200;
const STATES = [
  'seen',
  'staging',
  'staged',
  'activating',
  'active',
  'failed',
  'rolled-back',
  'quarantined',
];

/** Entries that are written, by what they say, and what a host fetches. */
function about(method: string, path: string, body: string): string | undefined {
  const [, entry] = /"state":\s*"([a-z-]+)"/.exec(body) ?? [];
  if (method === 'PUT' && path.includes('/rollouts/2/')) return entry;
  const [, channel] = /\/channels\/([a-z]+)\//.exec(path) ?? [];
  const [, version] = /"version":\s*"([^"]+)"/.exec(body) ?? [];
  if (method === 'PUT' && channel !== undefined) return `${channel} to ${version}`;
  if (method === 'PUT' && path.includes('/quarantine/')) return 'quarantine';
  if (method !== 'GET') return undefined;
  if (path.includes('/layers/')) return path;
  return path.includes('/versions/2/') ? 'manifest' : undefined;
}

test('a fleet rolls out and back with the repository cut off at every step', async (t) => {
  const store = await FakeS3Server.start(t);
  const proxy = await CuttingProxy.start(t, store.endpoint);
  const folder = temporaryFolder(t);
  const repository = openRepository(store.url);
  const through = store.url.replace(store.endpoint, proxy.endpoint);
  const publish = (version: string) =>
    repository.publish(makeVersion(join(folder, 'built'), { version, table: version }));
  const dataDir = join(folder, 'data');
  const servers = await startServers(t, 2, dataDir);
  const agent = `127.0.0.1:${await freePort()}`;
  const shards = servers.map(({ address }) => [
    { data: address, control: address, group: 'default', agent },
  ]);
  const fleet = join(folder, 'fleet.json');
  writeFileSync(fleet, formatFleet({ bundles: new Map([['ctr', [{ shardNum: 2, shards }]]]) }));
  const config = join(folder, 'controller.yaml');
  const channels = '[{name: canary}, {name: stable}]';
  const bundle = `{name: ctr, channels: ${channels}, gate: false, watch-ms: 0}`;
  const lines = [
    `repository: ${through}`,
    `fleet: ${fleet}`,
    `poll-ms: ${POLL_MS}`,
    `bundles: [${bundle}]`,
  ];
  writeFileSync(config, lines.join('\n'));

  await publish('1');
  const addresses = servers.map(({ address }) => address);
  const flags = ['--listen', agent, '--poll-ms', String(POLL_MS)];
  startAgentProcess(t, { repository: through, dataDir, servers: addresses }, ...flags);
  new RunningProcess(t, 'cube-agent/main.js', ['controller', '--config', config]);
  const newest = async (version: string) =>
    (await repository.rolloutLog('ctr', version).readHistory()).at(-1)?.state;
  await waitFor('1 is out', async () => (await newest('1')) === 'active', PATIENCE_MS);

  proxy.selectCut = about;
  await publish('2');
  const serving = (): boolean => servers.every(({ active }) => active === '1' || active === '2');
  await waitFor(
    '2 is out',
    async () => {
      assert.ok(serving());
      return (await newest('2')) === 'active' || proxy.cuts;
    },
    PATIENCE_MS,
  );
  await waitFor('all at 2', areAllActive('2', servers), PATIENCE_MS);
  await repository.rollback('ctr', 'stable', 'ann', 'AUC fell', '2');
  await waitFor(
    '2 is back',
    async () => {
      assert.ok(serving());
      return (await newest('2')) === 'quarantined' || proxy.cuts;
    },
    PATIENCE_MS,
  );
  await waitFor('all at 1', areAllActive('1', servers), PATIENCE_MS);
  const candidate = async () => (await repository.readChannel('ctr', 'candidate')).pointer;
  await waitFor('staged no more', async () => (await candidate())?.version === '1', PATIENCE_MS);
  const layers = proxy.cuts.filter((cut) => cut.includes('/layers/'));
  assert.equal(layers.length, 2, 'every layer was cut off once');
  const moves = ['candidate to 2', 'canary to 2', 'stable to 2', 'canary to 1', 'candidate to 1'];
  assert.deepEqual(
    [...STATES, 'manifest', ...moves].filter((step) => !proxy.cuts.includes(step)),
    [],
  );
});
