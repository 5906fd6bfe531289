/** Frequent deltas through real processes under lookups, and missing deltas. */
import assert from 'node:assert/strict';
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { ControlClient } from '../../../cube-agent/fleet/control-client.ts';
import { CubeClient } from '../../../lib/client/cube-client.ts';
import type { Manifest } from '../../../lib/core/manifest.ts';
import { layerPath } from '../../../lib/repository/layout.ts';
import { onTestEnd } from '../../repository/support/fixtures.ts';
import { packKeys } from '../../store/support/layers.ts';
import {
  RunningProcess as Process,
  type RunningProcess,
  startAgentProcess,
  waitFor,
} from '../../support/processes.ts';
import { computeRows, DeltaSource, listKeys } from '../support/delta-source.ts';
import { createWorkspace, type Workspace } from '../support/workspace.ts';

const SHARDS = 2;
const CHAIN_MAX = 8;
const by = { by: 'test', reason: 'test' };

interface Fleet {
  readonly place: Workspace;
  readonly source: DeltaSource;
  readonly addresses: readonly string[];
  readonly agent: RunningProcess;
}

async function startFleet(t: TestContext, graceMs: string): Promise<Fleet> {
  const place = createWorkspace(t);
  const servers = Array.from({ length: SHARDS }, (_, shard) => {
    const flags = ['--shard', String(shard), '--shard-num', String(SHARDS), '--port', '0'];
    return new Process(t, 'cube-server/main.js', [...flags, '--data-dir', place.dataDir]);
  });
  const findLine = (server: RunningProcess) => server.lines.find(({ msg }) => msg === 'listening');
  await waitFor('listening', () => servers.every((server) => findLine(server) !== undefined));
  const addresses = servers.map((server) => String(findLine(server)?.['address']));
  const source = new DeltaSource(place.folder, SHARDS);
  const flags = ['--retire-grace-ms', graceMs, '--keep-free', '0'];
  const agent = startAgentProcess(t, { ...place, servers: addresses }, ...flags);
  return { place, source, addresses, agent };
}

async function readActive(address: string): Promise<string> {
  const { bundles } = await new ControlClient(address).status();
  return bundles[0]?.active ?? '';
}

const allAt = (addresses: readonly string[], version: number) => async (): Promise<unknown> => {
  const active = await Promise.all(addresses.map(readActive));
  return active.every((candidate) => candidate === String(version)) || active;
};

const readMemory = async (addresses: readonly string[]): Promise<number> => {
  const all = await Promise.all(addresses.map((address) => new ControlClient(address).status()));
  return all.reduce((sum, { memory }) => sum + memory.usedBytes + memory.pooledBytes, 0);
};

/** Looks up all keys of the newest version that every shard has active, again and again. */
class Lookups {
  readonly seen = new Set<string>();
  answered = 0;
  manifest: Manifest | undefined;
  readonly #keys = listKeys(SHARDS);
  readonly #client: CubeClient;
  readonly #ended: Promise<void>;
  #stopped = false;

  constructor(t: TestContext, addresses: readonly string[]) {
    const shards = addresses.map((address) => [
      { data: address, control: address, group: 'default' },
    ]);
    const fleet = { bundles: new Map([['ctr', [{ shardNum: SHARDS, shards }]]]) };
    this.#client = new CubeClient({ fleet: () => fleet });
    onTestEnd(t, () => this.#client.close());
    this.#ended = this.#run();
    this.#ended.catch(() => undefined);
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    await this.#ended;
  }

  async #run(): Promise<void> {
    const keys = packKeys(this.#keys);
    while (!this.#stopped) {
      const { manifest } = this;
      if (manifest !== undefined) await this.#lookUp(manifest, keys);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }

  async #lookUp(manifest: Manifest, keys: Uint32Array): Promise<void> {
    const count = this.#keys.length;
    const rows = new Float32Array(count * 4);
    const group = { table: 't', keys, count, rows, outcomes: new Uint8Array(count) };
    const summary = await this.#client.lookup(manifest, [group], 10_000);
    assert.equal(summary.unavailable, 0, summary.reason);
    assert.equal(summary.version, manifest.version);
    assert.deepEqual(rows, computeRows(Number(manifest.version), this.#keys));
    this.seen.add(manifest.version);
    this.answered += 1;
  }
}

test('30 deltas, one every 0.3 s: no lookup fails or mixes, and memory stays flat', async (t) => {
  const { source, addresses, agent } = await startFleet(t, '2000');
  const lookups = new Lookups(t, addresses);
  const delaysMs: number[] = [];
  let first = 0;
  for (let version = 1; version <= 30; version++) {
    const startMs = performance.now();
    const manifest = await source.publish(version, CHAIN_MAX);
    await source.repository.activate('ctr', 'stable', { version: String(version), ...by });
    await waitFor(`active ${version}`, allAt(addresses, version));
    delaysMs.push(Math.round(performance.now() - startMs));
    lookups.manifest = manifest;
    await waitFor(`looked up ${version}`, () => lookups.seen.has(String(version)));
    if (version === 2) first = await readMemory(addresses);
    await new Promise((resolve) => setTimeout(resolve, 300 - (performance.now() - startMs)));
  }
  await lookups.stop();
  delaysMs.sort((a, b) => a - b);
  t.diagnostic(`published to active: median ${delaysMs[15]} ms, largest ${delaysMs.at(-1)} ms`);
  t.diagnostic(`${lookups.answered} lookups over ${lookups.seen.size} versions`);
  assert.equal(lookups.seen.size, 30);
  await waitFor('memory as before', async () => {
    const bytes = await readMemory(addresses);
    return bytes <= CHAIN_MAX * first || { bytes, first };
  });
  assert.ok(!agent.messages().some((message) => message.startsWith('cannot')));
});

test('with a missing delta the old version stays active until the next base', async (t) => {
  const { source, place, addresses, agent } = await startFleet(t, '0');
  for (const version of [1, 2]) {
    await source.publish(version, CHAIN_MAX);
    await source.repository.activate('ctr', 'stable', { version: String(version), ...by });
    await waitFor(`active ${version}`, allAt(addresses, version));
  }
  const manifest = await source.publish(3, CHAIN_MAX);
  const lost = manifest.tables[0]?.shards[1]?.at(-1)?.contentId ?? '';
  rmSync(join(place.repository, layerPath('ctr', 't', lost)));
  await source.repository.activate('ctr', 'stable', { version: '3', ...by });
  await waitFor('told', () => agent.messages().some((m) => m === `cannot fetch 3 t/${lost}`));
  assert.equal(await allAt(addresses, 2)(), true);

  const chains = source.chains;
  await source.publish(4, CHAIN_MAX);
  const gaps = source.chains.map((chain, shard) => [
    ...(chains[shard] ?? []).slice(0, 1),
    ...chain.slice(-1),
  ]);
  await source.publishChains(5, gaps);
  await source.repository.activate('ctr', 'stable', { version: '5', ...by });
  const refused = () =>
    agent.lines.find(({ msg }) => String(msg).startsWith('cannot load 5'))?.['error'];
  await waitFor('refused', () => refused() !== undefined);
  assert.match(String(refused()), /parent|goes on|belongs/i);
  assert.equal(await allAt(addresses, 2)(), true);

  await source.publish(6, 1);
  await source.repository.activate('ctr', 'stable', { version: '6', ...by });
  await waitFor('healed by the base', allAt(addresses, 6));
});
