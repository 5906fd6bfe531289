/**
 * A fleet as an operator runs it: each host has a cube-agent, which runs the host's servers, and a
 * replica of every shard. One serving process uses the fleet. Commands are those of the operator's
 * terminal, each in a process of its own unless one is given.
 */

import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { requireDefined } from '../../lib/core/errors.ts';
import { formatFleet, type Replica } from '../../lib/core/fleet.ts';
import { toArguments } from '../../lib/platform/arguments.ts';
import { makeFolder, replaceFile } from '../../lib/platform/files.ts';
import { freePort } from '../../test/platform/support/free-port.ts';
import { Processes, type ServerProcess } from '../../tools/demo/processes.ts';
import { BUNDLE } from './demo-model.ts';
import type { OperatorProcess } from './operator-process.ts';

const SERVER_MEMORY = '1GiB';
/** Short, because versions come and go within seconds here. */
const RETIRE_GRACE_MS = 1_000;
const SERVING_POLL_MS = 100;

export interface FleetShape {
  readonly hosts: number;
  readonly shardNum: number;
}

export class RolloutFleet {
  readonly #folder: string;
  readonly #processes: Processes;
  readonly #agents: ServerProcess[] = [];
  /** `http://host:port` of serving. */
  url = '';
  #operator: OperatorProcess | undefined;

  private constructor(folder: string) {
    this.#folder = folder;
    this.#processes = new Processes(join(folder, 'logs'));
    makeFolder(join(folder, 'logs'));
  }

  /** Starts a fleet of `<folder>/repository`, which must have an active version. */
  static async start(folder: string, { hosts, shardNum }: FleetShape): Promise<RolloutFleet> {
    const fleet = new RolloutFleet(folder);
    try {
      const first = await freePort(hosts * (shardNum + 1));
      const shards: Replica[][] = Array.from({ length: shardNum }, () => []);
      for (let host = 0; host < hosts; host++) {
        const agentPort = first + host * (shardNum + 1);
        const serverPorts = Array.from({ length: shardNum }, (_, shard) => agentPort + 1 + shard);
        const agent = `127.0.0.1:${agentPort}`;
        serverPorts.forEach((port, shard) => {
          const data = `127.0.0.1:${port}`;
          requireDefined(shards[shard], 'a shard').push({
            data,
            control: data,
            group: `host-${host}`,
            agent,
          });
        });
        const config = fleet.#writeConfig(host, agent, serverPorts);
        const args = ['run', '--config', config];
        fleet.#agents.push(
          await fleet.#processes.start(`host-${host}`, 'cube-agent/main.js', args),
        );
      }
      replaceFile(
        fleet.path,
        formatFleet({ bundles: new Map([[BUNDLE, [{ shardNum, shards }]]]) }),
      );
      return fleet;
    } catch (error) {
      await fleet.stop();
      throw error;
    }
  }

  /** The path of fleet.json. */
  get path(): string {
    return join(this.#folder, 'fleet.json');
  }

  /** Starts serving and waits until it is ready. */
  async startServing(): Promise<void> {
    const { address } = await this.#processes.start(
      'serving',
      'serving/main.js',
      toArguments({
        repository: this.#repository,
        bundle: BUNDLE,
        port: 0,
        instances: 1,
        store: 'remote',
        fleet: this.path,
        pollMs: SERVING_POLL_MS,
      }),
    );
    this.url = `http://${address}`;
    while (!(await fetch(`${this.url}/readyz`)).ok) {
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }

  /** Runs `cube-agent activate`, and waits until every server has the version. */
  async activate(version: number): Promise<void> {
    await this.#runAndWait('activate', '--version', String(version), '--reason', 'bench');
  }

  /** Runs `cube-agent rollout`, which stages the version on every replica first. */
  async rollOut(version: number): Promise<void> {
    const policy = ['--no-gate', '--watch-ms', '0', '--wait'];
    await this.#runCommand('rollout', '--version', String(version), ...policy);
  }

  /** Runs `cube-agent rollback` to the previous version, which every server still has loaded. */
  async rollBack(): Promise<void> {
    await this.#runAndWait('rollback', '--reason', 'bench');
  }

  /** Runs all further commands in this process, which is ended with the fleet. */
  useOperator(operator: OperatorProcess): void {
    this.#operator?.end();
    this.#operator = operator;
  }

  /** Lets the agents, not their servers, run only while nothing else wants a core. */
  runAgentsWhenIdle(): void {
    for (const { process } of this.#agents) {
      spawnSync('chrt', ['--all-tasks', '--idle', '--pid', '0', `${process.pid}`]);
    }
  }

  async stop(): Promise<void> {
    this.#operator?.end();
    await this.#processes.stopAll();
  }

  get #repository(): string {
    return join(this.#folder, 'repository');
  }

  async #runAndWait(command: string, ...args: string[]): Promise<void> {
    await this.#runCommand(command, ...args, '--wait', '--timeout-ms', '60000');
  }

  async #runCommand(command: string, ...args: string[]): Promise<void> {
    const target = ['--repository', this.#repository, '--bundle', BUNDLE, '--fleet', this.path];
    const all = [command, ...target, ...args];
    if (this.#operator === undefined) await this.#processes.run('cube-agent/main.js', all);
    else await this.#operator.run(all);
  }

  #writeConfig(host: number, agent: string, ports: readonly number[]): string {
    const path = join(this.#folder, `host-${host}.yaml`);
    const flags = `[--memory, ${SERVER_MEMORY}]`;
    const servers = ports.map(
      (port, shard) =>
        `  - { shard: ${shard}, shard-num: ${ports.length}, port: ${port}, flags: ${flags} }`,
    );
    const lines = [
      `repository: ${this.#repository}`,
      `data-dir: ${join(this.#folder, `host-${host}`)}`,
      `bundles: [{ name: ${BUNDLE}, channels: [stable] }]`,
      `listen: ${agent}`,
      `retire-grace-ms: ${RETIRE_GRACE_MS}`,
      'supervise: true',
      'servers:',
      ...servers,
    ];
    replaceFile(path, `${lines.join('\n')}\n`);
    return path;
  }
}
