/** The dashboards in deploy/grafana use only metrics and labels that real processes export. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { toArguments } from '../../lib/platform/arguments.ts';
import { Channel } from '../../lib/rpc/channel.ts';
import { AUDIT, areAllActive, publish } from '../cube-agent/support/host.ts';
import { createFleet } from '../cube-agent/support/rollout-fleet.ts';
import { DataFolder } from '../cube-server/support/data-folder.ts';
import { lookup } from '../cube-server/support/lookups.ts';
import { ServerProcess } from '../cube-server/support/server-process.ts';
import { freePort } from '../platform/support/free-port.ts';
import { onTestEnd } from '../repository/support/fixtures.ts';
import { ToyBundle, toTsv, toyRows } from '../serving/support/toy-bundle.ts';
import { startLocal } from '../serving/support/toy-service.ts';
import { DIST, RunningProcess, waitFor } from '../support/processes.ts';
import { checkExpression, readSeries } from '../support/promql-names.ts';

const FOLDER = join(DIST, '..', 'deploy', 'grafana');

interface Panel {
  readonly title: string;
  readonly description: string;
  readonly datasource: { readonly uid: string };
  readonly fieldConfig: { readonly defaults: { readonly unit: string } };
  readonly targets: readonly { readonly expr: string; readonly legendFormat: string }[];
}

interface Dashboard {
  readonly title: string;
  readonly templating: { readonly list: readonly { readonly type: string }[] };
  readonly panels: readonly Panel[];
}

async function scrape(url: string): Promise<string> {
  return (await fetch(`${url}/metrics`)).text();
}

async function scrapeServing(t: TestContext): Promise<string> {
  const { serving } = await startLocal(t, [new ToyBundle({ version: '1', seed: 3 })]);
  assert.equal((await serving.postTsv(toTsv(toyRows(3)))).status, 200);
  return scrape(serving.url);
}

async function scrapeCubeServer(t: TestContext): Promise<string> {
  const folder = new DataFolder();
  onTestEnd(t, () => folder.remove());
  const tables = [{ name: 'wide', dim: 2, keys: [1n, 2n], value: () => 1 }];
  folder.write({ bundle: 'ctr', version: '1', shardNum: 1, tables });
  const flags = toArguments({ shard: 0, shardNum: 1, dataDir: folder.path, memory: '64MiB' });
  const server = await ServerProcess.start(flags);
  onTestEnd(t, () => server.stop());
  await server.control('load', { bundle: 'ctr', version: '1' });
  await server.control('activate', { bundle: 'ctr', version: '1' });
  const channel = new Channel(server.address);
  onTestEnd(t, () => channel.close());
  const groups = [{ table: 'wide', keys: [1n, 3n] }];
  let text = '';
  // Durations are of a sample of the calls.
  await waitFor('a call is timed', async () => {
    await lookup(channel, { bundle: 'ctr', groups });
    text = await scrape(`http://${server.address}`);
    return text.includes('hypercube_request_duration_seconds_bucket{');
  });
  return text;
}

async function scrapeFleet(t: TestContext): Promise<string> {
  const fleet = await createFleet(t);
  const listen = `127.0.0.1:${await freePort()}`;
  const config = join(fleet.folder, 'controller.yaml');
  const bundle = '{name: ctr, channels: [{name: stable}], gate: false, watch-ms: 0}';
  const source = `repository: ${fleet.location}\nfleet: ${fleet.fleetFile}\n`;
  writeFileSync(config, `${source}poll-ms: 50\nlisten: ${listen}\nbundles: [${bundle}]\n`);
  await publish(fleet, { version: '1', table: 'a' });
  await fleet.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  new RunningProcess(t, 'cube-agent/main.js', ['controller', '--config', config]);
  await waitFor('all at 1', areAllActive('1', fleet.servers));
  let text = '';
  await waitFor('the version is measured', async () => {
    text = `${await scrape(`http://${fleet.agentAddress}`)}\n${await scrape(`http://${listen}`)}`;
    const agent = ['server_version{', 'up_to_date{', 'freshness_seconds{'];
    const names = agent.map((name) => `hypercube_agent_${name}`);
    return [...names, 'hypercube_rollouts{'].every((name) => text.includes(name));
  });
  return text;
}

test('every expression of a dashboard names metrics and labels of real scrapes', async (t) => {
  const scrapes = [await scrapeServing(t), await scrapeCubeServer(t), await scrapeFleet(t)];
  const series = readSeries(scrapes.join('\n'));
  const files = readdirSync(FOLDER);
  assert.equal(files.length, 3);
  for (const file of files) {
    const dashboard: Dashboard = JSON.parse(readFileSync(join(FOLDER, file), 'utf8'));
    assert.ok(
      dashboard.templating.list.some(({ type }) => type === 'datasource'),
      file,
    );
    for (const { title, description, datasource, fieldConfig, targets } of dashboard.panels) {
      const where = `${file}: ${title}`;
      // biome-ignore lint/suspicious/noTemplateCurlyInString: the variable of the dashboard
      assert.equal(datasource.uid, '${datasource}', where);
      assert.ok(description !== '' && fieldConfig.defaults.unit !== '', where);
      assert.ok(targets.length > 0, where);
      for (const { expr, legendFormat } of targets) {
        assert.deepEqual(checkExpression(expr, series), [], `${where}: ${expr}`);
        for (const [, label = ''] of legendFormat.matchAll(/{{(\w+)}}/g)) {
          assert.match(expr, new RegExp(`by \\([^)]*\\b${label}\\b`), where);
        }
      }
    }
  }
  const canaries = {
    'sum(rate(hypercube_no_such_total[5m]))': 'hypercube_no_such_total: no such metric',
    'sum by (shard) (hypercube_ready)': 'hypercube_ready: no label shard',
    'rate(hypercube_keys_total{model="a"}[5m])': 'hypercube_keys_total: no label model',
  };
  for (const [expression, problem] of Object.entries(canaries)) {
    assert.deepEqual(checkExpression(expression, series), [problem]);
  }
});
