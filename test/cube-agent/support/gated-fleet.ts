/**
 * A fleet of real processes for gated and watched rollouts: a shard server, its agent, serving on
 * canary and stable, and controllers. Every version differs from the first in one known way. Golden
 * rows and live rows share no feature, so that a version can be bad where the gate does not look.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { formatFleet } from '../../../lib/core/fleet.ts';
import { toArguments } from '../../../lib/platform/arguments.ts';
import type { RolloutEntry } from '../../../lib/repository/rollout-log.ts';
import { createReplica } from '../../client/support/test-fleet.ts';
import { ServingProcess } from '../../serving/support/serving-process.ts';
import {
  BUNDLE,
  hashKey,
  ToyBundle,
  type ToyRow,
  toTsv,
  toyRows,
} from '../../serving/support/toy-bundle.ts';
import { ToyRepository } from '../../serving/support/toy-service.ts';
import { RunningProcess, waitFor } from '../../support/processes.ts';

const POLL_MS = '200';
const SEED = 101;
const ROWS = 20;
export const REQUESTS = 25;
/** Long, since the machine is shared and a gate starts two processes. */
const TIMEOUT_MS = 180_000;

/** Rows with features f<first> … f<first + 19>. */
function rowsFrom(first: number, seed: number): ToyRow[] {
  return toyRows(ROWS, seed).map(({ dense, categorical }) => ({
    dense,
    categorical: categorical.map((text) =>
      text === '' ? '' : `f${first + (Number(text.slice(1)) % 20)}`,
    ),
  }));
}

const GOLDEN = rowsFrom(0, 31);
const LIVE = rowsFrom(20, 32);
const listKeys = (rows: readonly ToyRow[]): Set<bigint> =>
  new Set(rows.flatMap(({ categorical }) => categorical.map((text, slot) => hashKey(slot, text))));
const goldenKeys = listKeys(GOLDEN);
const LIVE_KEYS = [...listKeys(LIVE)].filter((key) => !goldenKeys.has(key));

/** A change that turns the first version into another. */
export type Change = (toy: ToyBundle) => void;

/** Changes all scores. */
export const negateScores: Change = ({ tables }) => {
  for (const row of tables[0]!.rows.values()) row.set(row.map((value) => -value));
};

/**
 * Removes every second live row and sets the others so that scores of live rows are minimal.
 */
export const removeLiveRows: Change = (toy) => {
  const rows = toy.tables[0]!.rows as Map<bigint, Float32Array>;
  LIVE_KEYS.forEach((key, i) => {
    if (i % 2 === 0) rows.delete(key);
  });
  const meanWith = (row: Float32Array, value: number): number => {
    row.fill(value);
    return LIVE.reduce((sum, live) => sum + toy.score(live)[1], 0);
  };
  for (const row of LIVE_KEYS.flatMap((key) => rows.get(key) ?? [])) {
    row.fill(meanWith(row, 20) < meanWith(row, -20) ? 20 : -20);
  }
};

/** Makes the graph fail on live rows. */
export const poisonLive: Change = ({ tables }) => {
  for (const key of LIVE_KEYS) tables[0]!.rows.get(key)?.fill(Number.NaN);
};

export interface ControllerOptions {
  readonly holdMs?: number;
  readonly watchMs?: number;
  readonly gate?: boolean;
  /** Lines under `limits:`. */
  readonly limits?: readonly string[];
}

export class GatedFleet {
  readonly toys: ToyRepository;
  readonly fleetFile: string;
  readonly canary: ServingProcess;
  readonly stable: ServingProcess;
  readonly #test: TestContext;

  private constructor(
    t: TestContext,
    toys: ToyRepository,
    fleetFile: string,
    serving: readonly ServingProcess[],
  ) {
    this.#test = t;
    this.toys = toys;
    this.fleetFile = fleetFile;
    [this.canary, this.stable] = serving as [ServingProcess, ServingProcess];
  }

  /** Starts a fleet with version 1 on both channels. */
  static async start(t: TestContext): Promise<GatedFleet> {
    const toys = new ToyRepository(t);
    const dataDir = join(toys.folder, 'data');
    await publishChanged(toys, '1', () => undefined);
    for (const channel of ['canary', 'stable']) await toys.activate('1', channel);
    const place = ['--shard', '0', '--shard-num', '1', '--port', '0', '--data-dir', dataDir];
    const server = new RunningProcess(t, 'cube-server/main.js', place);
    const findAddress = () => server.lines.find(({ msg }) => msg === 'listening')?.['address'];
    await waitFor('listening', () => findAddress() !== undefined, TIMEOUT_MS);
    const address = String(findAddress());
    const fleetFile = join(toys.folder, 'fleet.json');
    const bundles = new Map([[BUNDLE, [{ shardNum: 1, shards: [[createReplica(address)]] }]]]);
    writeFileSync(fleetFile, formatFleet({ bundles }));
    new RunningProcess(t, 'cube-agent/main.js', [
      'run',
      ...toArguments({
        repository: toys.location,
        bundle: BUNDLE,
        dataDir,
        channel: ['stable', 'canary'],
        pollMs: POLL_MS,
        keepFree: 0,
        server: address,
      }),
    ]);
    const serving = await Promise.all(
      ['canary', 'stable'].map((channel) =>
        ServingProcess.start(
          t,
          toArguments({
            repository: toys.location,
            bundle: BUNDLE,
            channel,
            store: 'remote',
            fleet: fleetFile,
            instances: 1,
            timeoutMs: 20_000,
            pollMs: POLL_MS,
          }),
        ),
      ),
    );
    const fleet = new GatedFleet(t, toys, fleetFile, serving);
    for (const one of serving) await one.waitUntilActive('1');
    return fleet;
  }

  publish(version: string, change: Change): Promise<void> {
    return publishChanged(this.toys, version, change);
  }

  /** Starts a controller that rolls out to canary and stable and watches both. */
  startController({
    holdMs = 0,
    watchMs = 0,
    gate = true,
    limits = [],
  }: ControllerOptions): RunningProcess {
    const { location, folder } = this.toys;
    const serving = [this.canary, this.stable].map(({ url }) => url.replace('http://', ''));
    const config = join(folder, 'controller.yaml');
    const lines = [
      `repository: ${location}`,
      `fleet: ${this.fleetFile}`,
      `poll-ms: ${POLL_MS}`,
      'bundles:',
      `  - name: ${BUNDLE}`,
      `    gate: ${gate}`,
      `    watch-ms: ${watchMs}`,
      `    channels: [{name: canary, hold-ms: ${holdMs}}, {name: stable}]`,
      '    gate-flags: [--rate, "400", --requests, "1", --timeout-ms, "20000",',
      // Latency is not checked, since the machine is shared.
      '      --limit, latencyP50RatioMax=none, --limit, latencyP99RatioMax=none]',
      `    serving: [${serving.map((address) => `"${address}"`).join(', ')}]`,
      '    limits:',
      '      requests-min: 20',
      ...limits.map((line) => `      ${line}`),
    ];
    writeFileSync(config, `${lines.join('\n')}\n`);
    return new RunningProcess(this.#test, 'cube-agent/main.js', ['controller', '--config', config]);
  }

  readHistory(version: string): Promise<RolloutEntry[]> {
    return this.toys.repository.rolloutLog(BUNDLE, version).readHistory();
  }

  /**
   * Waits for the state.
   * @returns all states up to it
   */
  async waitForState(version: string, state: string): Promise<string> {
    const states = async () => (await this.readHistory(version)).map((entry) => entry.state);
    const seen = async () => ((await states()).at(-1) === state ? true : states());
    await waitFor(`${version} is ${state}`, seen, TIMEOUT_MS);
    return (await states()).join(' ');
  }

  /** Versions of a channel's history, oldest first. */
  async listVersions(channel: string): Promise<string> {
    const { history } = await this.toys.repository.readChannel(BUNDLE, channel);
    return history.map(({ version }) => version).join(' ');
  }
}

/**
 * Sends requests with live rows; with `isMixed` every second request has golden rows.
 * @returns the number of answered requests
 */
export async function sendRequests(serving: ServingProcess, isMixed = false): Promise<number> {
  let answered = 0;
  for (let i = 0; i < REQUESTS; i++) {
    const rows = isMixed && i % 2 === 0 ? GOLDEN : LIVE;
    const { status } = await serving.postTsv(toTsv(rows));
    if (status === 200) answered += 1;
  }
  return answered;
}

async function publishChanged(toys: ToyRepository, version: string, change: Change): Promise<void> {
  const toy = new ToyBundle({ version, seed: SEED, shardNum: 1 });
  change(toy);
  const lines = GOLDEN.map(({ dense, categorical }) =>
    JSON.stringify({
      dense: dense.map((value) => (Number.isNaN(value) ? null : value)),
      categorical: categorical.map((value) => (value === '' ? null : value)),
    }),
  );
  await toys.publish(toy, { 'golden.jsonl': new TextEncoder().encode(`${lines.join('\n')}\n`) });
}
