/** What an agent answers over HTTP, to whom, and that a problem is told there when nothing can be written. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { test } from 'node:test';
import { ControlClient } from '../../cube-agent/fleet/control-client.ts';
import { freePort } from '../platform/free-port.ts';
import { atEnd } from '../repository/fixtures.ts';
import { allAt, by, makeHost, publish, start } from './host.ts';
import { agent, until } from './processes.ts';

const TOKEN = 'a token of some length';

interface Status {
  readonly bundles: readonly {
    readonly channels: readonly Record<string, unknown>[];
    readonly wanted: readonly string[];
    readonly onDisk: readonly string[];
    readonly chain?: { readonly layers: number };
    readonly problems: readonly unknown[];
  }[];
}

async function listening(): Promise<{ flags: string[]; url: string }> {
  const address = `127.0.0.1:${await freePort()}`;
  return { flags: ['--listen', address], url: `http://${address}` };
}

async function textOf(url: string, init?: RequestInit): Promise<string> {
  return (await fetch(url, init)).text().catch(String);
}

const answers = (url: string) => async (): Promise<unknown> =>
  (await fetch(`${url}/healthz`).catch(() => undefined))?.ok ?? false;

test('status says what is wanted, what is there and how fresh it is; metrics say the same', async (t) => {
  const host = await makeHost(t, 2);
  for (const version of ['1', '2']) {
    await publish(host, { version, table: version });
    await host.repository.activate('ctr', 'stable', { version, ...by });
  }
  const { flags, url } = await listening();
  start(t, host, host.servers, ...flags, '--channel', 'stable', '--channel', 'canary');
  await until('all at 2', allAt('2', host.servers));
  let bundle: Status['bundles'][number] | undefined;
  await until('up to date', async () => {
    [bundle] = (JSON.parse(await textOf(`${url}/agent/v1/status`)) as Status).bundles;
    return bundle?.channels[0]?.['upToDate'] === true && bundle.onDisk.length === 2;
  });
  const [stable, canary] = bundle?.channels ?? [];
  const { freshnessSeconds, ...rest } = stable ?? {};
  assert.deepEqual(rest, {
    ...{ channel: 'stable', pointer: '2', previous: '1' },
    ...{ applied: '2', upToDate: true },
  });
  assert.ok(Number(freshnessSeconds) >= 0 && Number(freshnessSeconds) < 60);
  assert.deepEqual(canary, { channel: 'canary', upToDate: false });
  assert.deepEqual(bundle?.wanted, ['2', '1']);
  assert.deepEqual(bundle?.problems, []);
  assert.equal(bundle?.chain?.layers, 1);
  const metrics = await textOf(`${url}/metrics`);
  assert.match(metrics, /hypercube_agent_freshness_seconds\{bundle="ctr",channel="stable"\} \d/);
  assert.match(metrics, /hypercube_agent_up_to_date\{bundle="ctr",channel="stable"\} 1/);
  assert.match(metrics, /hypercube_agent_fetched_bytes_total 4000/);
  assert.match(metrics, /hypercube_agent_server_version\{.*version="2",state="active"\} 1/);
  assert.match(metrics, /hypercube_agent_chain_layers\{bundle="ctr"\} 1/);
});

test('a poke looks at once', async (t) => {
  const host = await makeHost(t, 1);
  await publish(host, { version: '1', shardNum: 1 });
  const { flags, url } = await listening();
  start(t, host, host.servers, ...flags, '--poll-ms', '3600000');
  await until('answers', answers(url));
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  // Each step ends with another look; only the first needs to be asked for.
  await until('at 1', async () => {
    await fetch(`${url}/agent/v1/poke`, { method: 'POST' });
    return allAt('1', host.servers)();
  });
});

test('web pages, other names and wrong tokens are refused; hostile requests end in an error', async (t) => {
  const host = await makeHost(t, 1);
  const open = await listening();
  const first = start(t, host, host.servers, ...open.flags);
  await until('answers', answers(open.url));
  const status = `${open.url}/agent/v1/status`;
  const page = await fetch(status, { headers: { origin: 'http://evil.example' } });
  assert.equal(page.status, 403);
  const poke = await fetch(`${open.url}/agent/v1/poke`, {
    method: 'POST',
    headers: { origin: 'http://evil.example' },
  });
  assert.equal(poke.status, 403);
  assert.equal((await fetch(`${open.url}/agent/v1/poke`)).status, 404);
  assert.equal((await fetch(`${open.url}/agent/v1/../../etc/passwd`)).status, 404);
  const huge = await fetch(`${open.url}/agent/v1/poke`, { method: 'POST', body: 'x'.repeat(1e6) });
  assert.equal(huge.status, 413);
  assert.equal((await fetch(status)).status, 200);
  await first.kill();

  const tokenFile = join(host.folder, 'token');
  writeFileSync(tokenFile, `${TOKEN}\n`);
  const guarded = await listening();
  start(t, host, host.servers, ...guarded.flags, '--token-file', tokenFile);
  await until('answers', answers(guarded.url));
  const ask = async (authorization: string): Promise<number> =>
    (await fetch(`${guarded.url}/agent/v1/status`, { headers: { authorization } })).status;
  assert.equal(await ask(`Bearer ${TOKEN}`), 200);
  for (const wrong of ['', 'Bearer ', `Bearer ${TOKEN}x`, `Basic ${TOKEN}`, 'Bearer $(reboot)']) {
    assert.equal(await ask(wrong), 403);
  }
});

test('a version that the disk has no room for is not begun, and status says how much is missing', async (t) => {
  const host = await makeHost(t, 1);
  await publish(host, { version: '1', shardNum: 1 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  const { flags, url } = await listening();
  const short = start(t, host, host.servers, ...flags, '--keep-free', '1000000TiB');
  await until('told', async () =>
    /make room for 1.*no room for version 1 of ctr: it needs 1000 bytes more .* free \d+ bytes, lower keep-free/.test(
      await textOf(`${url}/agent/v1/status`).catch(String),
    ),
  );
  assert.deepEqual(host.servers[0]?.calls, []);
  const fleet = join(host.folder, 'fleet.json');
  const replica = { data: host.servers[0]?.address, agent: url.replace('http://', '') };
  const bundles = { ctr: [{ shardNum: 1, shards: [[replica]] }] };
  writeFileSync(fleet, JSON.stringify({ format: 1, bundles }));
  const ask = ['status', '--repository', host.location, '--bundle', 'ctr', '--fleet', fleet];
  assert.match((await agent(...ask)).stdout, /make room for 1 .*no room for version 1/);
  await short.kill();
  assert.match((await agent(...ask)).stdout, /ask the agent .*UNAVAILABLE no cube-agent answers/);
  start(t, host, host.servers, '--keep-free', '0');
  await until('at 1', allAt('1', host.servers));
});

test('a peer whose answer has no end is cut off', async (t) => {
  const server = createServer((_request, response) => {
    const piece = Buffer.alloc(1 << 20, ' ');
    const pour = (): void => {
      while (response.write(piece));
    };
    response.on('drain', pour);
    response.on('error', () => undefined);
    pour();
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  atEnd(t, () => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  await assert.rejects(new ControlClient(`127.0.0.1:${port}`).status(), {
    code: 'TOO_LARGE',
    message: /answers more than 16777216 bytes/,
  });
});
