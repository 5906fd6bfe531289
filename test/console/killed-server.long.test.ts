/** A cube-server that is killed turns red in the browser, and green when it is back. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { VersionDiffs } from '../../cube-agent/console/version-diff.ts';
import { toArguments } from '../../lib/platform/arguments.ts';
import { ServerProcess } from '../cube-server/support/server-process.ts';
import { freePort } from '../platform/support/free-port.ts';
import { ToyBundle } from '../serving/support/toy-bundle.ts';
import { ToyRepository } from '../serving/support/toy-service.ts';
import { startAgentProcess, waitFor } from '../support/processes.ts';
import { ConsolePage, SKIP, startBrowser } from './support/browser.ts';

test('a killed cube-server is red, and green when it is back', { skip: SKIP }, async (t) => {
  const toys = new ToyRepository(t);
  await toys.publish(new ToyBundle({ version: '1', seed: 1, shardNum: 1 }), {}, 'ctr');
  await toys.activate('1', 'stable', 'ctr');
  const dataDir = join(toys.folder, 'host');
  const flags = toArguments({ shard: 0, shardNum: 1, dataDir });
  const server = await ServerProcess.start(flags);
  t.after(() => server.stop());
  const listen = `127.0.0.1:${await freePort()}`;
  const { location: repository } = toys;
  const host = { repository, dataDir, servers: [server.address] };
  const agent = startAgentProcess(t, host, '--listen', listen);
  await waitFor('the agent listens', () => agent.messages().includes('listening'));
  const browser = await startBrowser(t);
  const console = await ConsolePage.open(browser, `http://${listen}`);
  const { page } = console;
  const replica = (state: string) =>
    page.locator(`[data-server="${server.address}"][data-state=${state}]`);
  await console.show('fleet');
  await replica('ready').waitFor();
  await replica('ready').click();
  await page.locator('[data-layers="1"]', { hasText: '1' }).waitFor();
  const killedMs = performance.now();
  server.child.kill('SIGKILL');
  await replica('down').waitFor();
  t.diagnostic(`red after ${Math.round(performance.now() - killedMs)} ms`);
  await page.locator('[data-count=down]', { hasText: '1 down' }).waitFor();
  const again = new ServerProcess(['--port', String(server.port), ...flags]);
  t.after(() => again.stop());
  await replica('ready').waitFor();
  await page.locator('[data-last-error]', { hasText: 'Last error, ' }).waitFor();
  await console.close();
});

test('changed rows are counted between versions', async (t) => {
  const toys = new ToyRepository(t);
  for (const [version, seed] of [
    ['1', 1],
    ['2', 2],
  ] as const) {
    await toys.publish(new ToyBundle({ version, seed }), {}, 'ctr');
  }
  const diffs = new VersionDiffs();
  const { repository } = toys;
  const running = diffs.compare(repository, 'ctr', '1', '2');
  await assert.rejects(diffs.compare(repository, 'ctr', '2', '1'), { code: 'OVERLOADED' });
  const { tables } = await running;
  assert.ok(tables.length > 0);
  assert.ok(tables.some(({ added, removed, changed }) => added + removed + changed > 0));
  assert.equal(await diffs.compare(repository, 'ctr', '1', '2'), await running, 'it is kept');
  await assert.rejects(diffs.compare(repository, 'ctr', '1', '9'), { code: 'NOT_FOUND' });
});
