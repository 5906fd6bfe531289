/**
 * Two hosts of one fleet under lookups: the agent and the servers of one host are killed
 * repeatedly.
 */
import assert from 'node:assert/strict';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { waitFor } from '../../support/processes.ts';
import { DeltaSource, listKeys } from './delta-source.ts';
import { FleetTraffic } from './fleet-traffic.ts';
import { AUDIT } from './host.ts';
import { SupervisedHost } from './supervised-host.ts';
import { createWorkspace, type Workspace } from './workspace.ts';

/**
 * Pause between two lookups of a worker: short enough to meet every switch, long enough to leave
 * the machine to the servers.
 */
const PAUSE_MS = 100;

/** Faults in the syntax of HYPERCUBE_FAULT. */
export interface HostKill {
  /** Fault of the host's agent, at the next switch. */
  readonly agent: string;
  /** Fault of a server of the next agent, at its start or at the switch after it. */
  readonly server: string;
}

export class KilledHosts {
  readonly #place: Workspace;
  readonly #source: DeltaSource;
  readonly #killed: SupervisedHost;
  readonly #other: SupervisedHost;
  readonly #traffic: FleetTraffic;
  #version = 2;
  #kills = 0;

  private constructor(
    place: Workspace,
    source: DeltaSource,
    [killed, other]: readonly [SupervisedHost, SupervisedHost],
    traffic: FleetTraffic,
  ) {
    this.#place = place;
    this.#source = source;
    this.#killed = killed;
    this.#other = other;
    this.#traffic = traffic;
  }

  /** Both hosts have versions 1 and 2; only the other host runs. */
  static async start(t: TestContext, shardNum: number): Promise<KilledHosts> {
    const place = createWorkspace(t);
    const source = new DeltaSource(place.folder, shardNum);
    const killed = await SupervisedHost.create(t, place, 'killed', shardNum);
    const other = await SupervisedHost.create(t, place, 'other', shardNum);
    const fleet = join(place.folder, 'fleet.json');
    const shards = killed.addresses.map((data, shard) => [
      { data },
      { data: other.addresses[shard] },
    ]);
    writeFileSync(fleet, JSON.stringify({ format: 1, bundles: { ctr: [{ shardNum, shards }] } }));
    for (const version of [1, 2]) await publishAndActivate(source, version);
    for (const host of [killed, other]) host.start();
    for (const host of [killed, other]) await host.waitUntilActive('2', ['1', '2']);
    await killed.agent.kill();
    const traffic = new FleetTraffic(t, fleet, source.repository, listKeys(shardNum), PAUSE_MS);
    return new KilledHosts(place, source, [killed, other], traffic);
  }

  /** Kills the agent, then a server of the next agent; both hosts must recover. */
  async kill({ agent, server }: HostKill): Promise<void> {
    this.#killed.start(agent);
    await this.#killed.waitUntilActive(String(this.#version), this.#two());
    await this.#want();
    await this.#killed.waitUntilKilled();
    this.#kills += 1;
    const once = join(this.#place.folder, `once-${this.#kills}`);
    this.#killed.start(`${server}@${once}`);
    await this.#untilWhole();
    if (!existsSync(once)) {
      await this.#want();
      await waitFor(`killed at ${server}`, () => existsSync(once));
      await this.#untilWhole();
    }
    await this.#killed.agent.kill();
  }

  /** Recovers, stops both hosts, and checks that every lookup was answered. */
  async finish(): Promise<void> {
    await this.#killed.waitUntilNoServer();
    this.#killed.start();
    await this.#untilWhole();
    const last = String(this.#version);
    await waitFor('lookups', () => this.#traffic.count(last) >= 5);
    await this.#traffic.stop();
    for (const host of [this.#killed, this.#other]) {
      host.agent.child.kill('SIGTERM');
      assert.equal(await host.agent.exit, 0);
      await host.waitUntilNoServer();
    }
  }

  async #want(): Promise<void> {
    this.#version += 1;
    await publishAndActivate(this.#source, this.#version);
  }

  /** The versions that a host must have: the pointer and its predecessor. */
  #two(): string[] {
    return [String(this.#version - 1), String(this.#version)];
  }

  async #untilWhole(): Promise<void> {
    const two = this.#two();
    for (const host of [this.#other, this.#killed]) {
      await host.waitUntilActive(String(this.#version), two);
      await host.waitUntilOnlyFiles(two);
    }
  }
}

async function publishAndActivate(source: DeltaSource, version: number): Promise<void> {
  await source.publish(version, 1);
  await source.repository.activate('ctr', 'stable', { version: String(version), ...AUDIT });
}
