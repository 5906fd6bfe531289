/** The consoles of a controller and an agent, in a browser: roll out and back by button. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { createServer, request } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import type { Browser, Page } from 'playwright-core';
import { areAllActive, publish } from '../cube-agent/support/host.ts';
import { createFleet, listStates, type RolloutHost } from '../cube-agent/support/rollout-fleet.ts';
import { freePort } from '../platform/support/free-port.ts';
import { RunningProcess, waitFor } from '../support/processes.ts';
import { ConsolePage, SKIP, startBrowser } from './support/browser.ts';
import { CuttableLine } from './support/cuttable-line.ts';

const TOKEN = 'a token of the controller';
const HOSTILE = '<img src=x onerror="document.title=1">';

/** @returns the controller's URL */
async function startController(
  t: TestContext,
  { folder, location, fleetFile }: RolloutHost,
  { token, serving }: { readonly token?: string; readonly serving?: string } = {},
): Promise<string> {
  const address = `127.0.0.1:${await freePort()}`;
  const name = createHash('sha256').update(address).digest('hex').slice(0, 8);
  const path = join(folder, `controller-${name}.yaml`);
  const tokenFile = join(folder, `token-${name}`);
  if (token !== undefined) writeFileSync(tokenFile, token);
  const lines = [
    `repository: ${location}`,
    `fleet: ${fleetFile}`,
    'automatic: false',
    'poll-ms: 50',
    `listen: ${address}`,
    ...(token === undefined ? [] : [`token-file: ${tokenFile}`]),
    'bundles:',
    '  - name: ctr',
    '    gate: false',
    '    watch-ms: 0',
    ...(serving === undefined ? [] : [`    serving: ["${serving}"]`]),
  ];
  writeFileSync(path, `${lines.join('\n')}\n`);
  const controller = new RunningProcess(t, 'cube-agent/main.js', ['controller', '--config', path]);
  await waitFor('the controller listens', () => controller.messages().includes('listening'));
  return `http://${address}`;
}

/** @param text that the dialog has */
async function act(
  page: Page,
  version: string,
  button: string,
  reason: string,
  text = '',
): Promise<void> {
  await page.locator(`[data-version="${version}"]`).getByRole('button', { name: button }).click();
  await page.locator('dialog p', { hasText: text }).waitFor();
  await page.locator('dialog input[name=reason]').fill(reason);
  await page.locator('dialog button[type=submit]').click();
}

interface Stage {
  readonly t: TestContext;
  readonly fleet: RolloutHost;
  readonly browser: Browser;
  readonly url: string;
}

async function checkRollout({ fleet, url, browser }: Stage): Promise<void> {
  const console = await ConsolePage.open(browser, url);
  const { page } = console;
  await console.show('versions');
  await page.getByText(HOSTILE).first().waitFor();
  await act(page, '2', 'Roll out', 'retrained');
  await page.locator('[data-rollout="2"][data-state=active]').waitFor();
  await waitFor('all at 2', areAllActive('2', fleet.servers));
  await console.show('versions');
  await act(page, '2', 'Roll back', HOSTILE, 'stable returns to version 1; 2 is quarantined');
  await page.locator('[data-version="2"] .quarantined').waitFor();
  await waitFor('all at 1', areAllActive('1', fleet.servers));
  await waitFor('it ends', async () => (await listStates(fleet, '2')).at(-1) === 'quarantined');
  await act(page, '2', 'Lift quarantine', 'by mistake');
  await page.locator('[data-version="2"] .quarantined').waitFor({ state: 'detached' });
  const { history } = await fleet.repository.readChannel('ctr', 'stable');
  assert.deepEqual(history.at(-2)?.reason, HOSTILE);
  assert.equal(await page.locator('img').count(), 0);
  assert.equal(await page.title(), `Versions · controller ${new URL(url).host} · Hypercube`);
  await console.close();
}

/** The stand-in servers cannot score rows: the gate by button could not run; a report is given. */
async function checkGate({ fleet, url, browser }: Stage): Promise<void> {
  const console = await ConsolePage.open(browser, url);
  const { page } = console;
  await console.show('versions');
  await act(page, '2', 'Gate', HOSTILE);
  await page.locator('[data-version="2"] [data-gate=error]').waitFor();
  assert.equal(await page.getByRole('button', { name: 'Gate report' }).count(), 0);
  const json = JSON.stringify(createReport(HOSTILE));
  await fleet.repository.rolloutLog('ctr', '2').putGateReport({ json, txt: '', html: '' });
  await page.locator('[data-version="2"]').getByRole('button', { name: 'Gate report' }).click();
  await page.locator('[data-report="2"] [data-verdict=fail]').waitFor();
  await page.locator('[data-report="2"]').getByText(HOSTILE).first().waitFor();
  assert.ok((await page.locator('[data-report="2"] svg rect').count()) > 0);
  // Compare shows the histograms of this report, and says why it cannot read made-up layers.
  await page.getByLabel('From version').selectOption('1');
  await page.getByLabel('To version').selectOption('2');
  await page.locator('[data-comparison="1 2"] svg rect').first().waitFor();
  await page.getByRole('button', { name: 'Count changed rows' }).click();
  await page.locator('[data-comparison="1 2"] .error').waitFor();
  assert.equal(await page.locator('img').count(), 0);
  assert.equal(await page.title(), `Versions · controller ${new URL(url).host} · Hypercube`);
  await console.close([/500|422/]);
}

function createReport(text: string): object {
  const version = {
    version: '2',
    rowsSent: 4,
    rowsFailed: 0,
    lookups: 8,
    unseen: 2,
    scoreMean: 0.5,
    latency: { p50Ms: 1, p99Ms: 2 },
  };
  const histogram = { low: 0, high: 1, counts: [[1, 3]] };
  return {
    version: '2',
    against: '1',
    at: '2026-01-01T00:00:00.000Z',
    by: text,
    verdict: 'fail',
    golden: { rows: 4 },
    checks: [{ limit: 'aucMin', what: text, value: null, outcome: 'fail', note: text }],
    findings: { candidate: version, scores: histogram, differences: histogram },
  };
}

async function checkDeadServer({ fleet, url, browser }: Stage): Promise<void> {
  const console = await ConsolePage.open(browser, url);
  const { page } = console;
  const server = fleet.servers[0];
  const replica = page.locator(`[data-server="${server?.address}"]`);
  await console.show('fleet');
  await page.locator('[data-count=ready]', { hasText: '4 ready' }).waitFor();
  assert.ok(server !== undefined);
  server.isUnreachable = true;
  await page.locator(`[data-server="${server?.address}"][data-state=down]`).waitFor();
  await replica.click();
  await page.getByText('no cube-server answers').first().waitFor();
  // The other replica of the shard: now doctor has something to say.
  const sibling = fleet.servers[2];
  assert.ok(sibling !== undefined);
  sibling.isUnreachable = true;
  await console.show('problems');
  await page.locator('.finding', { hasText: 'shard 0' }).first().waitFor();
  server.isUnreachable = false;
  sibling.isUnreachable = false;
  await console.show('fleet');
  await page.locator('[data-count=ready]', { hasText: '4 ready' }).waitFor();
  await console.close();
}

async function checkNoAnswer({ t, url, browser }: Stage): Promise<void> {
  const line = await CuttableLine.start(t, url);
  const console = await ConsolePage.open(browser, line.url);
  const { page } = console;
  await console.show('versions');
  await page.getByRole('button', { name: 'Stage 2', exact: true }).waitFor();
  line.cut();
  await act(page, '2', 'Stage', 'test');
  const told = page.locator('dialog').getByRole('alert');
  await told.filter({ hasText: /^the process does not answer: check that it runs$/ }).waitFor();
  await line.mend();
  await told.waitFor({ state: 'detached' });
  await page.locator('dialog button[type=submit]').click();
  await page.locator('dialog').waitFor({ state: 'detached' });
  await console.close([/ERR_/]);
}

async function checkAgentPage({ fleet, browser }: Stage): Promise<void> {
  const agent = `http://${fleet.agentAddress}`;
  const console = await ConsolePage.open(browser, agent, { dark: true });
  await console.show('fleet');
  await console.page.locator('[data-count=ready]', { hasText: '4 ready' }).waitFor();
  await console.show('problems');
  await console.close();
}

async function checkWidth({ url, browser }: Stage): Promise<void> {
  const console = await ConsolePage.open(browser, url, { width: 400 });
  for (const view of ['fleet', 'versions', 'rollout', 'problems']) {
    await console.show(view);
    assert.equal(await console.overflow(), 0, view);
  }
  await console.close();
}

async function checkToken({ t, fleet, browser }: Stage): Promise<void> {
  const guarded = await startController(t, fleet, { token: TOKEN });
  const console = await ConsolePage.open(browser, guarded);
  const { page } = console;
  await page.goto(guarded);
  await page.getByRole('alert').filter({ hasText: 'control calls need' }).waitFor();
  for (const wrong of ['a wrong token', 'ein falscher Schlüssel → «x»']) {
    await page.locator('input[name=token]').fill(wrong);
    const refused = page.waitForResponse(/snapshot/);
    await page.getByRole('button', { name: 'Continue' }).click();
    assert.equal((await refused).status(), 403);
    await page.getByText('the token is wrong', { exact: true }).waitFor();
  }
  await page.locator('input[name=token]').fill(TOKEN);
  await page.getByRole('button', { name: 'Continue' }).click();
  await page.getByRole('heading', { name: 'Fleet', level: 2 }).waitFor();
  assert.equal(await page.evaluate('JSON.stringify([localStorage, sessionStorage])'), '[{},{}]');
  await console.close([/403/]);
}

test('controller and agent in a browser', { skip: SKIP }, async (t) => {
  const fleet = await createFleet(t);
  for (const version of ['1', '2']) await publish(fleet, { version, table: version });
  const reason = HOSTILE;
  await fleet.repository.activate('ctr', 'stable', { version: '1', by: HOSTILE, reason });
  await waitFor('all at 1', areAllActive('1', fleet.servers));
  const url = await startController(t, fleet);
  const browser = await startBrowser(t);

  const stage = { t, fleet, browser, url };
  await t.test('a version is rolled out and rolled back by button', () => checkRollout(stage));
  await t.test('the gate runs by button, and its report is shown', () => checkGate(stage));
  await t.test('a server that stops answering turns red, and green again', () =>
    checkDeadServer(stage),
  );
  await t.test('an action tells that the controller does not answer', () => checkNoAnswer(stage));
  await t.test('the agent shows its servers', () => checkAgentPage(stage));
  await t.test('every view fits 400 pixels', () => checkWidth(stage));
  await t.test('a wrong token is refused, the right one accepted', () => checkToken(stage));
});

test('actions are refused from other sites, other hosts, and without a reason', async (t) => {
  const fleet = await createFleet(t);
  await publish(fleet, { version: '1', table: 'a' });
  const url = await startController(t, fleet);
  const { host } = new URL(url);
  const body = { bundle: 'ctr', version: '1', reason: 'test' };
  const send = (headers: Record<string, string>, fields: object = body): Promise<number> =>
    new Promise((resolve, reject) => {
      request(`${url}/controller/v1/actions/activate`, { method: 'POST', headers }, (response) =>
        resolve(response.resume().statusCode ?? 0),
      )
        .on('error', reject)
        .end(JSON.stringify(fields));
    });
  assert.equal(await send({ origin: 'http://evil.example' }), 403);
  assert.equal(await send({ origin: 'null' }), 403);
  assert.equal(await send({ origin: 'http://127.0.0.1:1' }), 403);
  assert.equal(await send({ host: 'evil.example', origin: 'http://evil.example' }), 403);
  assert.equal(await send({ origin: url }, { ...body, reason: ' ' }), 400);
  assert.equal(await send({ origin: url }, { ...body, extra: 1 }), 400);
  assert.equal(await send({ origin: url }, { ...body, bundle: 'other' }), 404);
  const rebound = await new Promise((resolve) => {
    const options = { headers: { host: 'evil.example' } };
    request(`${url}/v1/console/snapshot`, options, (response) =>
      resolve(response.resume().statusCode),
    ).end();
  });
  assert.equal(rebound, 403);
  const read = async (path: string, headers = {}): Promise<number> =>
    (await fetch(`${url}/controller/v1/${path}`, { headers })).status;
  for (const path of ['gate-reports/ctr/1/1', 'changes/ctr/1/2']) {
    assert.equal(await read(path, { origin: 'http://evil.example' }), 403, path);
    assert.equal(await read(path), 404, path);
  }
  for (const path of [
    'gate-reports/ctr/1/..',
    'gate-reports/ctr/..%2f..%2fx/1',
    'changes/a/b/-c',
  ]) {
    assert.equal(await read(path), 404, path);
  }
  const { pointer } = await fleet.repository.readChannel('ctr', 'stable');
  assert.equal(pointer, undefined, 'nothing was changed');
  assert.equal(await send({ host, origin: url }), 200);
  assert.equal((await fleet.repository.readChannel('ctr', 'stable')).pointer?.version, '1');
});

test('a controller forwards what the page calls of serving, and nothing else', async (t) => {
  const fleet = await createFleet(t);
  const seen: string[] = [];
  const upstream = createServer((call, response) => {
    seen.push(`${call.method} ${call.url} ${call.headers.authorization ?? ''}`);
    call.pipe(response.writeHead(202, { 'content-type': 'text/plain' }));
  });
  upstream.listen(0, '127.0.0.1');
  await once(upstream, 'listening');
  t.after(() => upstream.close());
  const serving = `127.0.0.1:${(upstream.address() as AddressInfo).port}`;
  const url = await startController(t, fleet, { token: TOKEN, serving });
  const headers = { authorization: `Bearer ${TOKEN}` };
  const call = (path: string, init: RequestInit = {}): Promise<Response> =>
    fetch(`${url}/v1/console/servings/${path}`, { headers, ...init });
  const body = '{"rows":[{}]}';
  const answer = await call('0/v1/ctr:predict?detail=true', { method: 'POST', body });
  assert.equal(answer.status, 202);
  assert.equal(await answer.text(), body);
  assert.equal((await call('0/v1/models/m/features')).status, 202);
  assert.deepEqual(seen, ['POST /v1/ctr:predict?detail=true ', 'GET /v1/models/m/features ']);
  // A compressed body is shorter than what is sent on; the rest must not become a request.
  const rows = `{"rows":[${'{},'.repeat(200)}{}]}`;
  const compressed = await call('0/v1/ctr:predict', {
    method: 'POST',
    headers: { ...headers, 'content-encoding': 'gzip' },
    body: gzipSync(rows),
  });
  assert.equal(await compressed.text(), rows);
  assert.deepEqual(seen.splice(2), ['POST /v1/ctr:predict ']);
  for (const path of ['0/metrics', '0/v2/repository/index', '1/v1/console/snapshot']) {
    assert.equal((await call(path)).status, 404, path);
  }
  assert.equal((await call('0/v1/console/snapshot', { headers: {} })).status, 403);
  assert.equal(seen.length, 2);
  upstream.close();
  upstream.closeAllConnections();
  assert.equal((await call('0/v1/console/snapshot')).status, 503);
});
