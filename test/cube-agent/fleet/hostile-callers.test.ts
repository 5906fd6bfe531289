/**
 * Hostile calls to agent, controller and server are refused with a reason, and no process stops.
 */
import assert from 'node:assert/strict';
import { existsSync, writeFileSync } from 'node:fs';
import { request } from 'node:http';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { formatFleet } from '../../../lib/core/fleet.ts';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { freePort } from '../../platform/support/free-port.ts';
import { RunningProcess, waitFor } from '../../support/processes.ts';
import { createHost, type Host, startAgent } from '../support/host.ts';

const TOKEN = 'a token of some length';
const JSON_TYPE = { 'content-type': 'application/json' };

interface Endpoint {
  readonly name: string;
  readonly port: number;
  readonly running: RunningProcess;
  /** What only this host, or who bears the token, may ask. */
  readonly status: string;
  readonly act: string;
}

interface Call {
  readonly host?: string;
  readonly method?: string;
  readonly path: string;
  readonly headers?: Record<string, string>;
  readonly body?: string | Uint8Array;
}

/**
 * Sends the path unchanged, which fetch would normalize.
 * @returns the HTTP status; 0: the connection was closed
 */
function ask(port: number, { host = '127.0.0.1', body, ...options }: Call): Promise<number> {
  return new Promise((resolve) => {
    const call = request({ host, port, ...options }, (response) => {
      response.resume();
      resolve(response.statusCode ?? 0);
    });
    call.on('error', () => resolve(0));
    call.end(body);
  });
}

async function startEndpoints(t: TestContext, host: Host, tokenFile: string): Promise<Endpoint[]> {
  const ports = await Promise.all([1, 2, 3, 4].map(() => freePort()));
  const [agentPort = 0, openPort = 0, guardedPort = 0, serverPort = 0] = ports;
  const controller = (port: number, more: readonly string[]): RunningProcess => {
    const config = join(host.folder, `controller-${port}.yaml`);
    const { address } = host.servers[0]!;
    const replica = { data: address, control: address, group: 'default' };
    const bundles = new Map([['ctr', [{ shardNum: 1, shards: [[replica]] }]]]);
    writeFileSync(join(host.folder, 'fleet.json'), formatFleet({ bundles }));
    const lines = [
      `repository: ${host.location}`,
      'fleet: fleet.json',
      'bundles: [{name: ctr}]',
      `listen: 0.0.0.0:${port}`,
      ...more,
    ];
    writeFileSync(config, `${lines.join('\n')}\n`);
    return new RunningProcess(t, 'cube-agent/main.js', ['controller', '--config', config]);
  };
  const calls = { status: '/controller/v1/status', act: '/controller/v1/poke' };
  const listen = `0.0.0.0:${agentPort}`;
  const server = toArguments({
    shard: 0,
    shardNum: 1,
    dataDir: join(host.folder, 'server'),
    host: '0.0.0.0',
    port: serverPort,
  });
  const control = '/hypercube.ControlService';
  const endpoints = [
    {
      name: 'agent',
      port: agentPort,
      status: '/agent/v1/status',
      act: '/agent/v1/poke',
      running: startAgent(t, host, host.servers, '--listen', listen),
    },
    { name: 'controller', port: openPort, ...calls, running: controller(openPort, []) },
    {
      name: 'controller with a token',
      port: guardedPort,
      ...calls,
      running: controller(guardedPort, [`token-file: ${tokenFile}`]),
    },
    {
      name: 'server',
      port: serverPort,
      status: `${control}/status`,
      act: `${control}/load`,
      running: new RunningProcess(t, 'cube-server/main.js', server),
    },
  ];
  for (const { name, running } of endpoints) {
    await waitFor(
      `${name} listens`,
      () => running.messages().includes('listening') || running.lines,
    );
  }
  return endpoints;
}

/**
 * An address of this machine other than loopback: calls to it look like calls from another host.
 */
function outerAddress(): string | undefined {
  const all = Object.values(networkInterfaces()).flatMap((some) => some ?? []);
  return all.find(({ internal, family }) => !internal && family === 'IPv4')?.address;
}

async function fromElsewhere(t: TestContext, endpoints: readonly Endpoint[]): Promise<void> {
  const outer = outerAddress();
  if (outer === undefined) {
    t.skip('this machine has no address but loopback');
    return;
  }
  for (const { name, port, status, act } of endpoints) {
    const call: Omit<Call, 'path'> = { host: outer, headers: JSON_TYPE };
    assert.equal(await ask(port, { ...call, path: status }), 403, name);
    assert.equal(await ask(port, { ...call, path: act, method: 'POST', body: '{}' }), 403, name);
    assert.equal(await ask(port, { ...call, path: '/healthz' }), 200, name);
  }
  const { port, status } = endpoints[2]!;
  const bearing = (authorization: string): Promise<number> =>
    ask(port, { host: outer, path: status, headers: { authorization } });
  assert.equal(await bearing(`Bearer ${TOKEN}`), 200);
  for (const wrong of [`Bearer ${TOKEN} `.repeat(500), `Bearer ${TOKEN}x`, `Basic ${TOKEN}`]) {
    assert.equal(await bearing(wrong), 403);
  }
}

async function pathsAndBodies(endpoints: readonly Endpoint[]): Promise<void> {
  for (const { name, port, status, act } of endpoints) {
    const folder = status.slice(0, status.lastIndexOf('/'));
    for (const path of [
      `${folder}/../../../../etc/passwd`,
      '/../../../etc/passwd',
      `${folder}/%2e%2e/%2e%2e`,
      '/..%2f..%2fetc%2fpasswd',
      `${folder}/%00`,
      `${folder}/$(reboot)`,
      `/${'x'.repeat(9000)}`,
    ]) {
      const answer = await ask(port, { path });
      assert.ok(answer >= 400 && answer < 500, `${name} ${path.slice(0, 40)}: ${answer}`);
    }
    const headers = { ...JSON_TYPE, authorization: `Bearer ${TOKEN}` };
    const call = { path: act, method: 'POST', headers };
    const huge = await ask(port, {
      ...call,
      body: Buffer.alloc(name === 'server' ? 80 << 20 : 1 << 20, ' '),
    });
    assert.ok([0, 413].includes(huge), `${name}: ${huge}`);
    assert.equal(await ask(port, { path: '/healthz' }), 200, name);
  }
}

async function namesThatAreCommands(folder: string, endpoints: readonly Endpoint[]): Promise<void> {
  const { port, act } = endpoints[3]!;
  const mark = join(folder, 'run');
  for (const version of [`1; touch ${mark}`, `$(touch ${mark})`, '../../etc', '.', 'a/b', '']) {
    for (const body of [
      { bundle: 'ctr', version },
      { bundle: version, version: '1' },
    ]) {
      const call = {
        path: act,
        method: 'POST',
        headers: JSON_TYPE,
        body: JSON.stringify(body),
      };
      assert.equal(await ask(port, call), 400, version);
    }
  }
  const cmd = { method: 'POST', headers: JSON_TYPE, path: '/ControlService/cmd' };
  const body = JSON.stringify({
    cmd: `bg_load_base $(touch ${mark})`,
    version_path: `;touch ${mark}`,
  });
  await ask(port, { ...cmd, body });
  assert.equal(existsSync(mark), false);
  assert.equal(await ask(port, { path: '/healthz' }), 200);
}

test('hostile calls are refused and no process stops', async (t) => {
  const host = await createHost(t, 1);
  const tokenFile = join(host.folder, 'token');
  writeFileSync(tokenFile, TOKEN);
  const endpoints = await startEndpoints(t, host, tokenFile);

  await t.test('calls from another host need a token', (t) => fromElsewhere(t, endpoints));
  await t.test('path traversal and endless bodies are refused', () => pathsAndBodies(endpoints));
  await t.test('names that look like commands or paths are refused and never executed', () =>
    namesThatAreCommands(host.folder, endpoints),
  );
});
