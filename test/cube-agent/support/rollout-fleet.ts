/** A small fleet for rollouts: stand-in servers, one real agent, fleet.json, and commands on it. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { formatFleet } from '../../../lib/core/fleet.ts';
import type { RolloutState } from '../../../lib/core/rollout.ts';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { freePort } from '../../platform/support/free-port.ts';
import { runAgentCommand } from '../../support/commands.ts';
import {
  type CommandResult,
  type RunningProcess,
  runAgentCommandWithFault,
  waitFor,
} from '../../support/processes.ts';
import { startServers } from './control-server.ts';
import { createHost, type Host, startAgent } from './host.ts';

export interface RolloutHost extends Host {
  readonly fleetFile: string;
  readonly agent: RunningProcess;
  readonly agentAddress: string;
  /** `cube-agent rollout` of a version of bundle ctr. */
  rollOut(version: string, ...more: string[]): Promise<CommandResult>;
  /** The same command with a fault injected. */
  rollOutWithFault(fault: string, version: string, ...more: string[]): Promise<CommandResult>;
}

/** Two shards with two replicas each, on one host. */
export async function createFleet(t: TestContext): Promise<RolloutHost> {
  const host = await createHost(t, 2);
  const servers = [...host.servers, ...(await startServers(t, 2, host.dataDir))];
  const whole = { ...host, servers };
  const address = `127.0.0.1:${await freePort()}`;
  const running = startAgent(t, whole, servers, '--listen', address);
  await waitFor('the agent listens', () => running.messages().includes('listening'));
  const fleetFile = join(host.folder, 'fleet.json');
  const replica = (i: number) => {
    const { address: data } = servers[i]!;
    return { data, control: data, group: 'default', agent: address };
  };
  const shards = [0, 1].map((shard) => [replica(shard), replica(shard + 2)]);
  const bundles = new Map([['ctr', [{ shardNum: 2, shards }]]]);
  writeFileSync(fleetFile, formatFleet({ bundles }));
  const args = (version: string, more: readonly string[]): string[] => [
    'rollout',
    ...toArguments({
      repository: host.location,
      bundle: 'ctr',
      version,
      fleet: fleetFile,
      noGate: true,
      watchMs: 0,
      by: 'test',
    }),
    ...more,
  ];
  return {
    ...whole,
    fleetFile,
    agent: running,
    agentAddress: address,
    rollOut: (version, ...more) => runAgentCommand(...args(version, more)),
    rollOutWithFault: (fault, version, ...more) =>
      runAgentCommandWithFault(fault, ...args(version, more)),
  };
}

/** The states of a version's rollout so far, in order. */
export async function listStates(host: Host, version: string): Promise<RolloutState[]> {
  const history = await host.repository.rolloutLog('ctr', version).readHistory();
  return history.map(({ state }) => state);
}
