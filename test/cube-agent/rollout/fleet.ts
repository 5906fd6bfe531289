/** A small fleet for rollouts: stand-in servers, one real agent for them, fleet.json, and the commands on it. */

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { formatFleet } from '../../../lib/core/fleet.ts';
import type { RolloutState } from '../../../lib/core/rollout.ts';
import { freePort } from '../../platform/free-port.ts';
import { startServers } from '../control-server.ts';
import { type Host, makeHost, start } from '../host.ts';
import { agent, agentWithFault, type Finished, type Running, until } from '../processes.ts';

export interface RolloutFleet extends Host {
  readonly fleetFile: string;
  readonly agent: Running;
  /** `cube-agent rollout` of a version of bundle ctr. */
  rollOut(version: string, ...more: string[]): Promise<Finished>;
  /** The same, killed or failing at a fault point. */
  rollOutWithFault(fault: string, version: string, ...more: string[]): Promise<Finished>;
}

/** Two shards with two replicas each, on one host. */
export async function makeFleet(t: TestContext): Promise<RolloutFleet> {
  const host = await makeHost(t, 2);
  const servers = [...host.servers, ...(await startServers(t, 2, host.dataDir))];
  const whole = { ...host, servers };
  const address = `127.0.0.1:${await freePort()}`;
  const running = start(t, whole, servers, '--listen', address);
  await until('the agent listens', () => running.messages().includes('listening'));
  const fleetFile = join(host.folder, 'fleet.json');
  const replica = (i: number) => {
    const { address: data } = servers[i]!;
    return { data, control: data, group: 'default', agent: address };
  };
  const shards = [0, 1].map((shard) => [replica(shard), replica(shard + 2)]);
  const bundles = new Map([['ctr', [{ shardNum: 2, shards }]]]);
  writeFileSync(fleetFile, formatFleet({ bundles }));
  const args = (version: string, more: readonly string[]): string[] => [
    ...['rollout', '--repository', host.location, '--bundle', 'ctr', '--version', version],
    ...['--fleet', fleetFile, '--no-gate', '--watch-ms', '0', '--by', 'test', ...more],
  ];
  return {
    ...whole,
    fleetFile,
    agent: running,
    rollOut: (version, ...more) => agent(...args(version, more)),
    rollOutWithFault: (fault, version, ...more) => agentWithFault(fault, ...args(version, more)),
  };
}

/** The states of a version's rollout so far, in order. */
export async function statesOf(host: Host, version: string): Promise<RolloutState[]> {
  const history = await host.repository.rollout('ctr', version).history();
  return history.map(({ state }) => state);
}
