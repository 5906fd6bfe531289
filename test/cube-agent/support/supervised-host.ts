/**
 * A host as in production: an agent that runs its own cube-servers. Either may be killed at a fault
 * point.
 */
import { readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { ControlClient } from '../../../cube-agent/fleet/control-client.ts';
import type { ControlStatus } from '../../../proto/control.ts';
import { freePort } from '../../platform/support/free-port.ts';
import { RunningProcess, waitFor } from '../../support/processes.ts';
import type { Workspace } from './workspace.ts';

const TIMEOUT_MS = 60_000;
/** Polling takes processor time from the servers. */
const POLL_MS = 100;

export class SupervisedHost {
  /** Server addresses by shard. */
  readonly addresses: readonly string[];
  readonly dataDir: string;
  readonly #t: TestContext;
  readonly #config: string;
  #agent: RunningProcess | undefined;
  /** Process ids of all servers seen so far. */
  readonly #pids = new Set<number>();

  private constructor(t: TestContext, dataDir: string, addresses: readonly string[]) {
    this.#t = t;
    this.dataDir = dataDir;
    this.addresses = addresses;
    this.#config = `${dataDir}.yaml`;
  }

  static async create(
    t: TestContext,
    { folder, repository }: Workspace,
    name: string,
    shardNum: number,
  ): Promise<SupervisedHost> {
    const ports = await Promise.all(Array.from({ length: shardNum }, () => freePort()));
    const addresses = ports.map((port) => `127.0.0.1:${port}`);
    const host = new SupervisedHost(t, join(folder, name), addresses);
    const lines = [
      `repository: ${repository}`,
      `data-dir: ${host.dataDir}`,
      'bundles: [{ name: ctr }]',
      'poll-ms: 200',
      'retire-grace-ms: 0',
      'keep-free: 0',
      'supervise: true',
      'servers:',
      ...ports.map(
        (port, shard) => `  - { shard: ${shard}, shard-num: ${shardNum}, port: ${port} }`,
      ),
    ];
    writeFileSync(host.#config, `${lines.join('\n')}\n`);
    return host;
  }

  get agent(): RunningProcess {
    if (this.#agent === undefined) throw new Error('start the host first');
    return this.#agent;
  }

  /**
   * @param fault of the agent, or of its servers, which have its environment
   *   (lib/platform/fault-point.ts)
   */
  start(fault?: string): void {
    const flags = ['run', '--config', this.#config];
    this.#agent = new RunningProcess(this.#t, 'cube-agent/main.js', flags, fault);
  }

  /** Waits until every server has the version active and only these versions loaded. */
  async waitUntilActive(version: string, held: readonly string[]): Promise<void> {
    const wanted = JSON.stringify({ active: version, held });
    await waitFor(
      `${version} whole at ${this.dataDir}`,
      async () => {
        const seen = await Promise.all(this.addresses.map((address) => this.#seen(address)));
        return seen.every((one) => one === wanted) || [...seen, this.agent.messages().slice(-5)];
      },
      TIMEOUT_MS,
      POLL_MS,
    );
  }

  async waitUntilKilled(): Promise<void> {
    const isKilled = () => this.agent.child.signalCode === 'SIGKILL';
    await waitFor('killed', () => isKilled() || this.agent.messages().slice(-5));
  }

  /** Waits until the disk has exactly the files of these versions. */
  async waitUntilOnlyFiles(versions: readonly string[]): Promise<void> {
    await waitFor(`only ${versions} in ${this.dataDir}`, () => this.#isTidy(versions));
  }

  /** Waits until all servers seen so far have ended. */
  async waitUntilNoServer(): Promise<void> {
    await waitFor('no server', () => [...this.#pids].filter(isAlive).length === 0);
  }

  async #seen(address: string): Promise<string> {
    try {
      const status = await new ControlClient(address).status();
      this.#pids.add(status.pid);
      return JSON.stringify(toServerState(status));
    } catch (error) {
      return String(error);
    }
  }

  #isTidy(versions: readonly string[]): true | readonly string[] {
    const files = readdirSync(this.dataDir, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map(({ parentPath, name }) => join(parentPath, name).slice(this.dataDir.length + 1));
    const kept = files.filter(
      (path) => !/^ctr\/agent\/((stable|candidate)\.json|\.claim\/owner\.json)$/.test(path),
    );
    const manifests = versions.map((version) => `ctr/versions/${version}/manifest.json`);
    const layers = kept.filter((path) => /^ctr\/layers\/t\/[0-9a-f]{32}\.cube$/.test(path));
    const isWhole = manifests.every((path) => kept.includes(path));
    const expected = versions.length + versions.length * this.addresses.length;
    const isAll = layers.length === versions.length * this.addresses.length;
    return (isWhole && isAll && kept.length === expected) || kept;
  }
}

function toServerState({ bundles }: ControlStatus): { active: string; held: string[] } {
  const bundle = bundles.find((one) => one.bundle === 'ctr');
  const held = (bundle?.versions ?? []).map(({ version }) => version);
  return { active: bundle?.active ?? '', held: held.sort((a, b) => Number(a) - Number(b)) };
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
