/** The HTTP endpoint of an agent: status, metrics, access control, and problems of a full disk. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { test } from 'node:test';
import { ControlClient } from '../../../cube-agent/fleet/control-client.ts';
import { freePort } from '../../platform/support/free-port.ts';
import { onTestEnd } from '../../repository/support/fixtures.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { lintMetrics } from '../../support/metrics-lint.ts';
import { waitFor } from '../../support/processes.ts';
import { AUDIT, areAllActive, createHost, publish, startAgent } from '../support/host.ts';

/** Described in /openapi.json. */
const AGENT_PATHS = [
  '/',
  '/agent/v1/poke',
  '/agent/v1/status',
  '/agent/{api}',
  '/console',
  '/console/{file}',
  '/healthz',
  '/metrics',
  '/openapi.json',
  '/v1/console/events',
  '/v1/console/snapshot',
];

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

async function readText(url: string, init?: RequestInit): Promise<string> {
  return (await fetch(url, init)).text().catch(String);
}

const answers = (url: string) => async (): Promise<unknown> =>
  (await fetch(`${url}/healthz`).catch(() => undefined))?.ok ?? false;

test('status and metrics report desired versions, files and freshness', async (t) => {
  const host = await createHost(t, 2);
  for (const version of ['1', '2']) {
    await publish(host, { version, table: version });
    await host.repository.activate('ctr', 'stable', { version, ...AUDIT });
  }
  const { flags, url } = await listening();
  startAgent(t, host, host.servers, ...flags, '--channel', 'stable', '--channel', 'canary');
  await waitFor('all at 2', areAllActive('2', host.servers));
  let bundle: Status['bundles'][number] | undefined;
  await waitFor('up to date', async () => {
    [bundle] = (JSON.parse(await readText(`${url}/agent/v1/status`)) as Status).bundles;
    return bundle?.channels[0]?.['upToDate'] === true && bundle.onDisk.length === 2;
  });
  const [stable, canary] = bundle?.channels ?? [];
  const { freshnessSeconds, ...rest } = stable ?? {};
  assert.deepEqual(rest, {
    channel: 'stable',
    pointer: '2',
    previous: '1',
    applied: '2',
    upToDate: true,
  });
  assert.ok(Number(freshnessSeconds) >= 0 && Number(freshnessSeconds) < 60);
  assert.deepEqual(canary, { channel: 'canary', upToDate: false });
  assert.deepEqual(bundle?.wanted, ['2', '1']);
  assert.deepEqual(bundle?.problems, []);
  assert.equal(bundle?.chain?.layers, 1);
  const { paths } = JSON.parse(await readText(`${url}/openapi.json`)) as { paths: object };
  assert.deepEqual(Object.keys(paths).toSorted(), AGENT_PATHS);
  const metrics = await readText(`${url}/metrics`);
  assert.deepEqual(lintMetrics(metrics), []);
  assert.match(metrics, /hypercube_agent_freshness_seconds\{bundle="ctr",channel="stable"\} \d/);
  assert.match(metrics, /hypercube_agent_up_to_date\{bundle="ctr",channel="stable"\} 1/);
  assert.match(metrics, /hypercube_agent_fetched_bytes_total 4000/);
  assert.match(metrics, /hypercube_agent_server_version\{.*version="2",state="active"\} 1/);
  assert.match(metrics, /hypercube_agent_chain_layers\{bundle="ctr"\} 1/);
});

test('a poke starts a poll at once', async (t) => {
  const host = await createHost(t, 1);
  await publish(host, { version: '1', shardNum: 1 });
  const { flags, url } = await listening();
  startAgent(t, host, host.servers, ...flags, '--poll-ms', '3600000');
  await waitFor('answers', answers(url));
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  // Every finished action starts another poll; only the first one needs a poke.
  await waitFor('at 1', async () => {
    await fetch(`${url}/agent/v1/poke`, { method: 'POST' });
    return areAllActive('1', host.servers)();
  });
});

test('requests of web pages, for other hosts and with wrong tokens are refused', async (t) => {
  const host = await createHost(t, 1);
  const open = await listening();
  const first = startAgent(t, host, host.servers, ...open.flags);
  await waitFor('answers', answers(open.url));
  const status = `${open.url}/agent/v1/status`;
  const page = await fetch(status, { headers: { origin: 'http://evil.example' } });
  assert.equal(page.status, 403);
  const poke = await fetch(`${open.url}/agent/v1/poke`, {
    method: 'POST',
    headers: { origin: 'http://evil.example' },
  });
  assert.equal(poke.status, 403);
  assert.equal((await fetch(`${open.url}/agent/v1/poke`)).status, 405);
  assert.equal((await fetch(`${open.url}/agent/v1/../../etc/passwd`)).status, 404);
  const huge = await fetch(`${open.url}/agent/v1/poke`, { method: 'POST', body: 'x'.repeat(1e6) });
  assert.equal(huge.status, 413);
  assert.equal((await fetch(status)).status, 200);
  await first.kill();

  const tokenFile = join(host.folder, 'token');
  writeFileSync(tokenFile, `${TOKEN}\n`);
  const guarded = await listening();
  startAgent(t, host, host.servers, ...guarded.flags, '--token-file', tokenFile);
  await waitFor('answers', answers(guarded.url));
  const ask = (authorization: string): Promise<Response> =>
    fetch(`${guarded.url}/agent/v1/status`, { headers: { authorization } });
  assert.equal((await ask(`Bearer ${TOKEN}`)).status, 200);
  for (const [credentials, told] of [
    ['', 'control calls need "Authorization: Bearer" with the token'],
    ['Bearer ', 'control calls need "Authorization: Bearer" with the token'],
    [`Basic ${TOKEN}`, 'control calls need "Authorization: Bearer" with the token'],
    [`Bearer ${TOKEN}x`, 'the token is wrong'],
    ['Bearer $(reboot)', 'the token is wrong'],
  ] as const) {
    const refused = await ask(credentials);
    assert.equal(refused.status, 403);
    assert.equal(((await refused.json()) as { error: string }).error, told);
  }
});

test('a version without disk space is not fetched; status reports the missing bytes', async (t) => {
  const host = await createHost(t, 1);
  await publish(host, { version: '1', shardNum: 1 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const { flags, url } = await listening();
  const short = startAgent(t, host, host.servers, ...flags, '--keep-free', '1000000TiB');
  await waitFor('told', async () =>
    /make room for 1.*no room for version 1 of ctr: it needs 1000 more .* lower keep-free/.test(
      await readText(`${url}/agent/v1/status`).catch(String),
    ),
  );
  assert.deepEqual(host.servers[0]?.calls, []);
  const fleet = join(host.folder, 'fleet.json');
  const replica = { data: host.servers[0]?.address, agent: url.replace('http://', '') };
  const bundles = { ctr: [{ shardNum: 1, shards: [[replica]] }] };
  writeFileSync(fleet, JSON.stringify({ format: 1, bundles }));
  const ask = ['status', '--repository', host.location, '--bundle', 'ctr', '--fleet', fleet];
  assert.match((await runAgentCommand(...ask)).stdout, /make room for 1 .*no room for version 1/);
  await short.kill();
  assert.match(
    (await runAgentCommand(...ask)).stdout,
    /contact the agent .*UNAVAILABLE no cube-agent answers/,
  );
  startAgent(t, host, host.servers, '--keep-free', '0');
  await waitFor('at 1', areAllActive('1', host.servers));
});

test('an endless response is cut off', async (t) => {
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
  onTestEnd(t, () => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  await assert.rejects(new ControlClient(`127.0.0.1:${port}`).status(), {
    code: 'TOO_LARGE',
    message: /sent more than 16777216 bytes/,
  });
});
