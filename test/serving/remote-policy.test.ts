/**
 * How serving chooses replicas: its settings override cube.conf; backup requests bypass a silent
 * one.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { type AddressInfo, connect, createServer } from 'node:net';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { toArguments } from '../../lib/platform/arguments.ts';
import { CubeServers } from './stores/support/cube-servers.ts';
import { type Answer, ServingProcess } from './support/serving-process.ts';
import { BUNDLE, ToyBundle, toTsv, toyRows } from './support/toy-bundle.ts';
import { ToyRepository } from './support/toy-service.ts';

const toy = new ToyBundle({ version: '1', seed: 601, shardNum: 2 });

/** A proxy to a server that forwards until it is silenced: connections stay open without data. */
class SilencingProxy {
  silent = false;
  readonly #address: string;

  constructor(address: string) {
    this.#address = address;
  }

  async open(t: TestContext): Promise<string> {
    const [host, port] = this.#address.split(':');
    const server = createServer((caller) => {
      const upstream = connect(Number(port), host);
      for (const socket of [caller, upstream]) socket.on('error', () => undefined);
      caller.on('data', (bytes) => this.silent || upstream.write(bytes));
      upstream.on('data', (bytes) => caller.write(bytes));
      caller.on('close', () => upstream.destroy());
    });
    t.after(() => server.close());
    server.listen(0, '127.0.0.1').unref();
    await once(server, 'listening');
    return `127.0.0.1:${(server.address() as AddressInfo).port}`;
  }
}

/** Starts serving with a cube.conf that lists the servers of each shard. */
async function startServing(
  t: TestContext,
  flags: readonly string[],
): Promise<{ serving: ServingProcess; proxies: readonly SilencingProxy[] }> {
  const toys = new ToyRepository(t);
  await toys.publish(toy);
  await toys.activate('1');
  const servers = new CubeServers(BUNDLE, toys.location, { areProcesses: true });
  t.after(() => servers.stop());
  await servers.load(await toys.repository.readManifest(BUNDLE, '1'));
  const proxies: SilencingProxy[] = [];
  const nodes: object[] = [];
  for (const [replica] of servers.fleet.bundles.get(BUNDLE)![0]!.shards) {
    const proxy = new SilencingProxy(replica!.data);
    proxies.push(proxy);
    nodes.push({ ipport_list: `list://${replica!.data},${await proxy.open(t)}` });
  }
  const dict = { dict_name: BUNDLE, shard: 2, dup: 1, timeout: 200, retry: 3, nodes };
  const conf = { ...dict, backup_request: -1, type: 'ipport_list', load_balancer: 'rr' };
  const path = join(toys.folder, 'cube.conf');
  writeFileSync(path, JSON.stringify([conf]));
  const serving = await ServingProcess.start(t, [
    ...toArguments({
      repository: toys.location,
      bundle: BUNDLE,
      store: 'remote',
      fleet: path,
      instances: 1,
    }),
    ...flags,
  ]);
  await serving.waitUntilReady();
  return { serving, proxies };
}

/** Responses to six requests, or up to the first error, after one proxy per shard was silenced. */
async function sendWithSilentReplica(
  t: TestContext,
  flags: readonly string[],
): Promise<readonly Answer[]> {
  const { serving, proxies } = await startServing(t, flags);
  // One request only: with more, a replica that a busy machine made slow is avoided already.
  assert.equal((await serving.postTsv(toTsv(toyRows(30, 1)))).status, 200);
  for (const proxy of proxies) proxy.silent = true;
  const answers: Answer[] = [];
  while (answers.length < 6 && (answers.at(-1)?.status ?? 200) === 200) {
    answers.push(await serving.postTsv(toTsv(toyRows(30, answers.length + 1))));
  }
  return answers;
}

test('a cube.conf is used unchanged; a silent replica fails waiting requests', async (t) => {
  const answers = await sendWithSilentReplica(t, ['--timeout-ms', '2000']);
  const { status, body } = answers.at(-1)!;
  assert.notEqual(status, 200);
  assert.match(body.code, /DEADLINE_EXCEEDED|UNAVAILABLE/);
});

test('with a backup request the other replica responds', async (t) => {
  const answers = await sendWithSilentReplica(
    t,
    toArguments({ timeoutMs: 20_000, backupRequest: 20 }),
  );
  assert.deepEqual(
    answers.map(({ status }) => status),
    answers.map(() => 200),
  );
});
