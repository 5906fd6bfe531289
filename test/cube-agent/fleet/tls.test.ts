/** A fleet secured only by certificates: server, agent and controller accept no other caller. */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { request } from 'node:https';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { formatFleet } from '../../../lib/core/fleet.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { freePort } from '../../platform/support/free-port.ts';
import {
  CertificateAuthority,
  type IdentityFiles,
  toTlsFlags,
} from '../../rpc/support/certificates.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { RunningProcess, waitFor } from '../../support/processes.ts';
import { buildVersion, createWorkspace, type Workspace } from '../support/workspace.ts';

const WAIT_MS = 180_000;

interface TlsFleet {
  readonly fleetFile: string;
  /** Paths of the calls that need a certificate, by who answers. */
  readonly endpoints: Readonly<Record<'server' | 'agent' | 'controller', string>>;
}

const yaml = ({ cert, key, ca }: IdentityFiles): string[] => [
  `tls-cert: ${cert}`,
  `tls-key: ${key}`,
  `tls-ca: ${ca}`,
];

/** An agent that starts its server, and a controller, on these hosts. */
async function startFleet(
  t: TestContext,
  { folder, repository }: Workspace,
  access: { host: string; agent: readonly string[]; controller: readonly string[] },
): Promise<TlsFleet> {
  const [data, ask, steer] = await Promise.all([freePort(), freePort(), freePort()]);
  const { host } = access;
  const listenHost = host.includes(':') ? `[${host}]` : host;
  const shared = [`repository: ${repository}`, 'poll-ms: 50'];
  const fleetFile = join(folder, 'fleet.json');
  const at = (port: number): string => `127.0.0.1:${port}`;
  const replica = { data: at(data), control: at(data), group: 'default', agent: at(ask) };
  const bundles = new Map([['ctr', [{ shardNum: 1, shards: [[replica]] }]]]);
  writeFileSync(fleetFile, formatFleet({ bundles }));
  const agentFile = join(folder, 'agent.yaml');
  const flags = 'flags: [--memory, 64MiB]';
  const server = `{ shard: 0, shard-num: 1, host: '${host}', port: ${data}, ${flags} }`;
  const lines = [...shared, 'data-dir: data', 'bundles: [{ name: ctr }]', 'supervise: true'];
  lines.push(`servers: [${server}]`, `listen: '${listenHost}:${ask}'`, ...access.agent);
  writeFileSync(agentFile, lines.join('\n'));
  const controllerFile = join(folder, 'controller.yaml');
  const own = [...shared, `fleet: ${fleetFile}`, `listen: '${listenHost}:${steer}'`];
  own.push('bundles: [{ name: ctr, gate: false, watch-ms: 0 }]', ...access.controller);
  writeFileSync(controllerFile, own.join('\n'));
  const run = new RunningProcess(t, 'cube-agent/main.js', ['run', '--config', agentFile]);
  const control = new RunningProcess(t, 'cube-agent/main.js', [
    'controller',
    '--config',
    controllerFile,
  ]);
  const said = (running: RunningProcess, message: string) => () =>
    running.messages().includes(message);
  await waitFor('the agent listens', said(run, 'listening'), WAIT_MS);
  await waitFor('its server listens', said(run, 'server listening'), WAIT_MS);
  await waitFor('the controller listens', said(control, 'listening'), WAIT_MS);
  const endpoints = {
    server: `${data}/hypercube.ControlService/status`,
    agent: `${ask}/agent/v1/status`,
    controller: `${steer}/controller/v1/status`,
  };
  return { fleetFile, endpoints };
}

function readStatus(
  portAndPath: string,
  caller: IdentityFiles | undefined,
  ca: string,
): Promise<number> {
  const files = { ...(caller && { cert: caller.cert, key: caller.key }), ca };
  const pem = Object.fromEntries(Object.entries(files).map(([k, file]) => [k, readFileSync(file)]));
  return new Promise((resolve, reject) => {
    request(`https://127.0.0.1:${portAndPath}`, { ...pem, agent: false }, (response) => {
      response.resume();
      resolve(response.statusCode ?? 0);
    })
      .on('error', reject)
      .end();
  });
}

test('a version rolls out with client certificates; callers without one are refused', async (t) => {
  const place = createWorkspace(t);
  const authority = new CertificateAuthority(place.folder, 'authority');
  const host = authority.issue({ name: 'host' });
  const controller = authority.issue({ name: 'controller' });
  await buildVersion(place, '1', { rows: 100, shardNum: 1 });
  const { fleetFile, endpoints } = await startFleet(t, place, {
    host: '127.0.0.1',
    agent: yaml(host),
    controller: yaml(controller),
  });
  const operator = authority.issue({ name: 'operator', use: ['clientAuth'] });
  const about = ['--repository', place.repository, '--bundle', 'ctr', '--fleet', fleetFile];
  const channel = openRepository(place.repository);
  await waitFor(
    'the controller has rolled it out',
    async () => (await channel.readChannel('ctr', 'stable')).pointer?.version === '1',
    WAIT_MS,
  );
  const wait = ['--wait', '--timeout-ms', String(WAIT_MS), '--reason', 'again'];
  const again = await runAgentCommand(
    'activate',
    ...about,
    '--version',
    '1',
    ...wait,
    ...toTlsFlags(operator),
  );
  assert.match(again.stdout, /all 1 servers have version 1 active/, again.stderr);
  const { stdout } = await runAgentCommand('status', ...about, ...toTlsFlags(operator));
  assert.match(stdout, /0\/1 +127\.0\.0\.1:\d+ .*1/);

  const stranger = new CertificateAuthority(place.folder, 'other').issue({ name: 'stranger' });
  const late = authority.issue({ name: 'late', toMs: Date.now() - 3_600_000 });
  const serverOnly = authority.issue({ name: 'server only', use: ['serverAuth'] });
  for (const [name, endpoint] of Object.entries(endpoints)) {
    const call = (caller?: IdentityFiles): Promise<number> =>
      readStatus(endpoint, caller, authority.path);
    const seen = [await call(operator)];
    for (const caller of [undefined, stranger, late, serverOnly]) seen.push(await call(caller));
    const plain = await fetch(`http://127.0.0.1:${endpoint}`);
    assert.deepEqual([...seen, plain.status, name], [200, 403, 403, 403, 403, 403, name]);
    assert.match(await plain.text(), /"DENIED".*client certificate/);
  }
});

test('without a token or certificate, control calls from other hosts are refused', async (t) => {
  const outside = Object.values(networkInterfaces())
    .flatMap((addresses) => addresses ?? [])
    .filter(({ internal, address }) => !internal && !address.startsWith('fe80'));
  if (outside.length === 0) {
    t.diagnostic('this machine has no address but loopback');
    return;
  }
  const place = createWorkspace(t);
  openRepository(place.repository, { create: true });
  // The IPv6 wildcard address also accepts IPv4 callers.
  const host = outside.some(({ family }) => family === 'IPv6') ? '::' : '0.0.0.0';
  const { endpoints } = await startFleet(t, place, { host, agent: [], controller: [] });
  const addresses = outside.map(({ family, address }) =>
    family === 'IPv6' ? `[${address}]` : address,
  );
  for (const endpoint of Object.values(endpoints)) {
    const [port = ''] = endpoint.split('/');
    for (const address of addresses) {
      const denied = await fetch(`http://${address}:${endpoint}`);
      assert.equal(denied.status, 403, address);
      assert.match(
        await denied.text(),
        /only accepted from this host; start the server with .*tls-ca/,
      );
      assert.equal((await fetch(`http://${address}:${port}/healthz`)).status, 200);
    }
    assert.equal((await fetch(`http://127.0.0.1:${endpoint}`)).status, 200);
  }
});
