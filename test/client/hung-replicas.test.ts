/**
 * Replicas that hang (SIGSTOP) or die (SIGKILL) while lookups go on, with real cube-servers and the
 * client's defaults: no lookup fails, traffic leaves the replica after a few requests, and it
 * returns by itself.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { CubeClient } from '../../lib/client/cube-client.ts';
import type { ReplicaStats } from '../../lib/client/replica.ts';
import { OUTCOME_UNAVAILABLE } from '../../lib/core/lookup-group.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { CubeServers } from '../serving/stores/support/cube-servers.ts';
import { TestRepository } from '../serving/stores/support/test-repository.ts';
import { waitFor } from '../support/processes.ts';
import { assertLookup, createGroup, createOracleTable, range } from './support/oracle.ts';

const SHARDS = 2;
const TABLE = createOracleTable('t', 4, range(0, 50), { defaultRow: [1, 2, 3, 4] });
const VERSION = { bundle: 'ctr', version: '1', shardNum: SHARDS, tables: [TABLE] };
const KEYS = range(0, 60);
/** A lookup that waits for a replica that hangs fails after this time. */
const TIMEOUT_MS = 10_000;

/** Two shards with two replicas each, shared by all tests, and a client with default options. */
class Fixture {
  readonly #repository: TestRepository;
  readonly #manifest: Manifest;
  readonly servers: CubeServers;
  readonly client: CubeClient;
  readonly logged: string[] = [];
  /** Why keys were unavailable, for each lookup that had any. */
  readonly reasons: string[] = [];

  private constructor(repository: TestRepository, manifest: Manifest, servers: CubeServers) {
    this.#repository = repository;
    this.#manifest = manifest;
    this.servers = servers;
    const log = (_fields: object, text: string): void => void this.logged.push(text);
    const { fleet } = servers;
    this.client = new CubeClient({ fleet: () => fleet, logger: { info: log, warn: log } });
  }

  static async start(): Promise<Fixture> {
    const repository = await TestRepository.create();
    const manifest = await repository.publish(VERSION);
    const servers = new CubeServers('ctr', join(repository.folder, 'repo'), {
      replicas: 2,
      areProcesses: true,
    });
    await servers.load(manifest);
    const fixture = new Fixture(repository, manifest, servers);
    assert.equal((await fixture.client.checkLoaded(manifest, 60_000)).loaded, true);
    return fixture;
  }

  /** Looks up some times, a few milliseconds apart. @returns the number of unavailable keys */
  async lookUp(times: number, timeoutMs = TIMEOUT_MS): Promise<number> {
    const lookups: Promise<number>[] = [];
    for (let i = 0; i < times; i++) {
      lookups.push(this.#lookUpOnce(timeoutMs));
      await sleep(4);
    }
    return (await Promise.all(lookups)).reduce((sum, unavailable) => sum + unavailable, 0);
  }

  getReplica(address: string): ReplicaStats {
    const replica = this.client.stats().replicas.find(({ endpoint }) => endpoint === address);
    assert.ok(replica);
    return replica;
  }

  async stop(): Promise<void> {
    this.client.close();
    await this.servers.stop();
    await this.#repository.remove();
  }

  async #lookUpOnce(timeoutMs: number): Promise<number> {
    const group = createGroup(TABLE, KEYS);
    const summary = await this.client.lookup(this.#manifest, [group], timeoutMs);
    const isDown = (_shard: number, outcome: number) => outcome === OUTCOME_UNAVAILABLE;
    assertLookup(VERSION, [{ table: TABLE, keys: KEYS, group }], summary, isDown);
    if (summary.unavailable > 0) this.reasons.push(summary.reason ?? '');
    return summary.unavailable;
  }
}

const fixture = await Fixture.start();
after(() => fixture.stop());
const { servers, client } = fixture;

test('a shard that hangs is waited for until its circuits open, then only probed', async () => {
  const replicas = [servers.getAddress(1, 0), servers.getAddress(1, 1)];
  assert.equal(await fixture.lookUp(20), 0);
  for (const address of replicas) servers.signal(address, 'SIGSTOP');
  await waitFor('both circuits are open', async () => {
    await fixture.lookUp(1, 250);
    return replicas.every((address) => fixture.getReplica(address).circuitOpen);
  });
  const { requests } = client.stats();
  fixture.reasons.length = 0;
  assert.ok((await fixture.lookUp(30, 120_000)) > 0);
  assert.equal(fixture.reasons.length, 30);
  // No lookup waited for its deadline.
  for (const reason of fixture.reasons) {
    assert.match(reason, /nothing is sent until a probe is answered/);
  }
  const { backups } = client.stats();
  assert.ok(client.stats().requests <= requests + 30 + backups, 'only the other shard was called');
  for (const address of replicas) servers.signal(address, 'SIGCONT');
  await waitFor('the circuits close without lookups', () =>
    replicas.every((address) => !fixture.getReplica(address).circuitOpen),
  );
  assert.equal(await fixture.lookUp(20), 0);
  assert.ok(fixture.logged.includes('replica failed'));
  assert.ok(fixture.logged.includes('replica recovered'));
});

test('a replica of each shard that hangs, then the other one killed: no lookup fails', async () => {
  const hung = [servers.getAddress(0, 0), servers.getAddress(1, 1)];
  const killed = [servers.getAddress(0, 1), servers.getAddress(1, 0)];
  const count = (address: string): number => fixture.getReplica(address).requests;
  assert.equal(await fixture.lookUp(40), 0);
  const before = hung.map(count);
  for (const address of hung) servers.signal(address, 'SIGSTOP');
  assert.equal(await fixture.lookUp(200), 0);
  hung.forEach((address, i) => {
    const requests = count(address) - before[i]!;
    assert.ok(requests < 60, `${requests} of 200 lookups were sent to a replica that hangs`);
  });
  for (const address of hung) servers.signal(address, 'SIGCONT');
  const afterwards = hung.map(count);
  await waitFor('the replicas get lookups again', async () => {
    assert.equal(await fixture.lookUp(5), 0);
    return hung.every((address, i) => count(address) > afterwards[i]! + 20);
  });
  const [unavailable] = await Promise.all([
    fixture.lookUp(40),
    ...killed.map((address) => servers.kill(address)),
  ]);
  assert.equal(unavailable, 0);
  assert.equal(await fixture.lookUp(40), 0);
});
