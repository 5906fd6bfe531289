/** A cube-server process that loads and unloads versions all day stays as large as it is. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Cluster } from './cluster.ts';

const RELOADS = 100;
const GROWTH_MAX_BYTES = 24 << 20;
let cluster: Cluster;
let address: string;

before(async () => {
  cluster = await Cluster.create();
  await cluster.publish('1', 1, 0);
  await cluster.publish('2', 1, 2);
  // The repository has the shape of a host's data folder, so one server can serve straight from it.
  const server = await cluster.processes.start('server', 'cube-server/main.js', [
    ...[
      '--shard',
      '0',
      '--shard-num',
      '1',
      '--port',
      '0',
      '--data-dir',
      cluster.path('repository'),
    ],
  ]);
  address = server.address;
});
after(() => cluster.destroy());

async function control(method: string, version: string): Promise<{ layersLoaded?: number }> {
  const response = await fetch(`http://${address}/hypercube.ControlService/${method}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ bundle: 'ctr-dnn', version }),
  });
  const body = (await response.json()) as { error?: string; layersLoaded?: number };
  assert.equal(response.status, 200, body.error);
  return body;
}

async function residentBytes(): Promise<number> {
  const text = await (await fetch(`http://${address}/metrics`)).text();
  return Number(/^process_resident_memory_bytes (\S+)$/m.exec(text)?.[1]);
}

async function reload(times: number): Promise<void> {
  for (let i = 0; i < times; i++) {
    assert.equal((await control('load', '2')).layersLoaded, 1);
    await control('unload', '2');
  }
}

test('a hundred loads and unloads leave its memory flat', async () => {
  await control('load', '1');
  await control('activate', '1');
  await reload(20);
  const before = await residentBytes();
  await reload(RELOADS);
  const growth = (await residentBytes()) - before;
  assert.ok(growth < GROWTH_MAX_BYTES, `grew by ${growth} bytes over ${RELOADS} reloads of 4 MB`);
});
