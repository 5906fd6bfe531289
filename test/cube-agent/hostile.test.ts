/** What strangers send to agent, controller and server: refused with a reason, and the process goes on. */
import assert from 'node:assert/strict';
import { existsSync, writeFileSync } from 'node:fs';
import { request } from 'node:http';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { formatFleet } from '../../lib/core/fleet.ts';
import { freePort } from '../platform/free-port.ts';
import { type Host, makeHost, start } from './host.ts';
import { Running, until } from './processes.ts';

const TOKEN = 'a token of some length';
const JSON_TYPE = { 'content-type': 'application/json' };

interface Door {
  readonly name: string;
  readonly port: number;
  readonly running: Running;
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

/** Paths go out as they are: fetch would tidy them up. @returns the status; 0: the connection was closed on us */
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

async function startDoors(t: TestContext, host: Host, tokenFile: string): Promise<Door[]> {
  const ports = await Promise.all([1, 2, 3, 4].map(() => freePort()));
  const [agentPort = 0, openPort = 0, guardedPort = 0, serverPort = 0] = ports;
  const controller = (port: number, more: readonly string[]): Running => {
    const config = join(host.folder, `controller-${port}.yaml`);
    const { address } = host.servers[0]!;
    const replica = { data: address, control: address, group: 'default' };
    const bundles = new Map([['ctr', [{ shardNum: 1, shards: [[replica]] }]]]);
    writeFileSync(join(host.folder, 'fleet.json'), formatFleet({ bundles }));
    const lines = [
      ...[`repository: ${host.location}`, 'fleet: fleet.json', 'bundles: [{name: ctr}]'],
      ...[`listen: 0.0.0.0:${port}`, ...more],
    ];
    writeFileSync(config, `${lines.join('\n')}\n`);
    return new Running(t, 'cube-agent/main.js', ['controller', '--config', config]);
  };
  const calls = { status: '/controller/v1/status', act: '/controller/v1/poke' };
  const listen = `0.0.0.0:${agentPort}`;
  const server = [
    ...['--shard', '0', '--shard-num', '1', '--data-dir', join(host.folder, 'server')],
    ...['--host', '0.0.0.0', '--port', String(serverPort)],
  ];
  const control = '/hypercube.ControlService';
  const doors = [
    {
      ...{ name: 'agent', port: agentPort, status: '/agent/v1/status', act: '/agent/v1/poke' },
      running: start(t, host, host.servers, '--listen', listen),
    },
    { name: 'controller', port: openPort, ...calls, running: controller(openPort, []) },
    {
      ...{ name: 'controller with a token', port: guardedPort, ...calls },
      running: controller(guardedPort, [`token-file: ${tokenFile}`]),
    },
    {
      ...{ name: 'server', port: serverPort },
      ...{ status: `${control}/status`, act: `${control}/load` },
      running: new Running(t, 'cube-server/main.js', server),
    },
  ];
  for (const { name, running } of doors) {
    await until(`${name} listens`, () => running.messages().includes('listening') || running.lines);
  }
  return doors;
}

/** An address of this machine that is not loopback: calls to it look as if they came from another. */
function outerAddress(): string | undefined {
  const all = Object.values(networkInterfaces()).flatMap((some) => some ?? []);
  return all.find(({ internal, family }) => !internal && family === 'IPv4')?.address;
}

async function fromElsewhere(t: TestContext, doors: readonly Door[]): Promise<void> {
  const outer = outerAddress();
  if (outer === undefined) {
    t.skip('this machine has no address but loopback');
    return;
  }
  for (const { name, port, status, act } of doors) {
    const call: Omit<Call, 'path'> = { host: outer, headers: JSON_TYPE };
    assert.equal(await ask(port, { ...call, path: status }), 403, name);
    assert.equal(await ask(port, { ...call, path: act, method: 'POST', body: '{}' }), 403, name);
    assert.equal(await ask(port, { ...call, path: '/healthz' }), 200, name);
  }
  const { port, status } = doors[2]!;
  const bearing = (authorization: string): Promise<number> =>
    ask(port, { host: outer, path: status, headers: { authorization } });
  assert.equal(await bearing(`Bearer ${TOKEN}`), 200);
  for (const wrong of [`Bearer ${TOKEN} `.repeat(500), `Bearer ${TOKEN}x`, `Basic ${TOKEN}`]) {
    assert.equal(await bearing(wrong), 403);
  }
}

async function pathsAndBodies(doors: readonly Door[]): Promise<void> {
  for (const { name, port, status, act } of doors) {
    const folder = status.slice(0, status.lastIndexOf('/'));
    for (const path of [
      ...[`${folder}/../../../../etc/passwd`, '/../../../etc/passwd', `${folder}/%2e%2e/%2e%2e`],
      ...[
        '/..%2f..%2fetc%2fpasswd',
        `${folder}/%00`,
        `${folder}/$(reboot)`,
        `/${'x'.repeat(9000)}`,
      ],
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

async function namesThatAreCommands(folder: string, doors: readonly Door[]): Promise<void> {
  const { port, act } = doors[3]!;
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

test('strangers are refused, whatever they send, and every process goes on', async (t) => {
  const host = await makeHost(t, 1);
  const tokenFile = join(host.folder, 'token');
  writeFileSync(tokenFile, TOKEN);
  const doors = await startDoors(t, host, tokenFile);

  await t.test('from elsewhere only who bears a token is answered', (t) => fromElsewhere(t, doors));
  await t.test('paths lead nowhere else, and bodies have an end', () => pathsAndBodies(doors));
  await t.test(
    'names that are commands or paths are refused by the server, and nothing is run',
    () => namesThatAreCommands(host.folder, doors),
  );
});
