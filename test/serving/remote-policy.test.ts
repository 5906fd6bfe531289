/** How serving asks the replicas of a shard: by its settings, over what a cube.conf says; a silent one costs a backup request. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { type AddressInfo, connect, createServer } from 'node:net';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { type Answer, ServingProcess } from './serving-process.ts';
import { CubeServers } from './stores/cube-servers.ts';
import { BUNDLE, ToyBundle, toTsv, toyRows } from './toy-bundle.ts';
import { ToyRepository, Traffic } from './toy-service.ts';

const toy = new ToyBundle({ version: '1', seed: 601, shardNum: 2 });

/** A second way to a server, that forwards until it falls silent: connections stay, nothing comes any more. */
class Way {
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

/** A cube.conf of a dict with one list of servers for each shard, as Cube's clients have it. */
async function startBefore(
  t: TestContext,
  flags: readonly string[],
): Promise<{ serving: ServingProcess; ways: readonly Way[] }> {
  const toys = new ToyRepository(t);
  await toys.publish(toy);
  await toys.activate('1');
  const servers = new CubeServers(BUNDLE, toys.location);
  t.after(() => servers.stop());
  await servers.load(await toys.repository.manifest(BUNDLE, '1'));
  const ways: Way[] = [];
  const nodes: object[] = [];
  for (const [replica] of servers.fleet.bundles.get(BUNDLE)![0]!.shards) {
    const way = new Way(replica!.data);
    ways.push(way);
    nodes.push({ ipport_list: `list://${replica!.data},${await way.open(t)}` });
  }
  const dict = { dict_name: BUNDLE, shard: 2, dup: 1, timeout: 200, retry: 3, nodes };
  const conf = { ...dict, backup_request: -1, type: 'ipport_list', load_balancer: 'rr' };
  const path = join(toys.folder, 'cube.conf');
  writeFileSync(path, JSON.stringify([conf]));
  const serving = await ServingProcess.start(t, [
    ...['--repository', toys.location, '--bundle', BUNDLE, '--store', 'remote', '--fleet', path],
    ...['--instances', '1', ...flags],
  ]);
  await serving.untilReady();
  return { serving, ways };
}

/** Answers to six requests, or to the first refused, after one way to each shard fell silent. */
async function askSilent(t: TestContext, flags: readonly string[]): Promise<readonly Answer[]> {
  const { serving, ways } = await startBefore(t, flags);
  const traffic = new Traffic(serving, [toy], 2);
  await traffic.untilAnswered('1');
  await traffic.stop();
  assert.deepEqual(traffic.refused, []);
  for (const way of ways) way.silent = true;
  const answers: Answer[] = [];
  while (answers.length < 6 && (answers.at(-1)?.status ?? 200) === 200) {
    answers.push(await serving.postTsv(toTsv(toyRows(30, answers.length + 1))));
  }
  return answers;
}

test('a cube.conf is served from as it is; a way that falls silent costs who waits for it', async (t) => {
  const answers = await askSilent(t, ['--timeout-ms', '2000']);
  const { status, body } = answers.at(-1)!;
  assert.notEqual(status, 200);
  assert.match(body.code, /DEADLINE_EXCEEDED|UNAVAILABLE/);
});

test('with a backup request the other way answers', async (t) => {
  const answers = await askSilent(t, ['--timeout-ms', '20000', '--backup-request', '20']);
  assert.deepEqual(
    answers.map(({ status }) => status),
    answers.map(() => 200),
  );
});
