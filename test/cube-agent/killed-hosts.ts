/** Two hosts of one fleet under lookups: the agent and the servers of one are killed again and again, the other's are not. */
import assert from 'node:assert/strict';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { allKeys, DeltaSource } from './deltas.ts';
import { FleetTraffic } from './fleet-traffic.ts';
import { by } from './host.ts';
import { makePlace, type Place } from './place.ts';
import { until } from './processes.ts';
import { SupervisedHost } from './supervised-host.ts';

/** Between two lookups of a lane: enough of them to meet every switch, few enough to leave the machine to the servers. */
const PAUSE_MS = 100;

/** Each as HYPERCUBE_FAULT has them. */
export interface HostKill {
  /** Of the host's agent, at the next switch. */
  readonly agent: string;
  /** Of the server that comes up with the next agent, then or at the switch after it. */
  readonly server: string;
}

export class KilledHosts {
  readonly #place: Place;
  readonly #source: DeltaSource;
  readonly #killed: SupervisedHost;
  readonly #other: SupervisedHost;
  readonly #traffic: FleetTraffic;
  #version = 2;
  #kills = 0;

  private constructor(
    place: Place,
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

  /** Both hosts have versions 1 and 2; only the other one runs. */
  static async start(t: TestContext, shardNum: number): Promise<KilledHosts> {
    const place = makePlace(t);
    const source = new DeltaSource(place.folder, shardNum);
    const killed = await SupervisedHost.make(t, place, 'killed', shardNum);
    const other = await SupervisedHost.make(t, place, 'other', shardNum);
    const fleet = join(place.folder, 'fleet.json');
    const shards = killed.addresses.map((data, shard) => [
      { data },
      { data: other.addresses[shard] },
    ]);
    writeFileSync(fleet, JSON.stringify({ format: 1, bundles: { ctr: [{ shardNum, shards }] } }));
    for (const version of [1, 2]) await point(source, version);
    for (const host of [killed, other]) host.start();
    for (const host of [killed, other]) await host.untilAt('2', ['1', '2']);
    await killed.agent.kill();
    const traffic = new FleetTraffic(t, fleet, source.repository, allKeys(shardNum), PAUSE_MS);
    return new KilledHosts(place, source, [killed, other], traffic);
  }

  /** The agent is killed, then a server under the next agent; both hosts end up whole. */
  async kill({ agent, server }: HostKill): Promise<void> {
    this.#killed.start(agent);
    await this.#killed.untilAt(String(this.#version), this.#two());
    await this.#want();
    await this.#killed.untilKilled();
    this.#kills += 1;
    const once = join(this.#place.folder, `once-${this.#kills}`);
    this.#killed.start(`${server}@${once}`);
    await this.#untilWhole();
    if (!existsSync(once)) {
      await this.#want();
      await until(`killed at ${server}`, () => existsSync(once));
      await this.#untilWhole();
    }
    await this.#killed.agent.kill();
  }

  /** One agent more, and the end: nothing runs any more, every lookup was answered whole. */
  async end(): Promise<void> {
    await this.#killed.untilNoServer();
    this.#killed.start();
    await this.#untilWhole();
    const last = String(this.#version);
    await until('lookups', () => this.#traffic.count(last) >= 5);
    await this.#traffic.stop();
    for (const host of [this.#killed, this.#other]) {
      host.agent.child.kill('SIGTERM');
      assert.equal(await host.agent.exit, 0);
      await host.untilNoServer();
    }
  }

  async #want(): Promise<void> {
    this.#version += 1;
    await point(this.#source, this.#version);
  }

  /** What a host holds: the channel's pointer and the version before it. */
  #two(): string[] {
    return [String(this.#version - 1), String(this.#version)];
  }

  async #untilWhole(): Promise<void> {
    const two = this.#two();
    for (const host of [this.#other, this.#killed]) {
      await host.untilAt(String(this.#version), two);
      await host.untilTidy(two);
    }
  }
}

async function point(source: DeltaSource, version: number): Promise<void> {
  await source.publish(version, 1);
  await source.repository.activate('ctr', 'stable', { version: String(version), ...by });
}
