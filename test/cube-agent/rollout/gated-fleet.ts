/**
 * A whole fleet of real processes for rollouts that are gated and watched: a shard server, its agent, serving on the canary
 * and on stable, and controllers. Versions differ from the first in one known way each; golden rows and live rows share no
 * feature, so that a version may be bad where the gate does not look.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { formatFleet } from '../../../lib/core/fleet.ts';
import type { RolloutEntry } from '../../../lib/repository/rollout-log.ts';
import { replicaAt } from '../../client/test-fleet.ts';
import { ServingProcess } from '../../serving/serving-process.ts';
import { BUNDLE, keyOf, ToyBundle, type ToyRow, toTsv, toyRows } from '../../serving/toy-bundle.ts';
import { ToyRepository } from '../../serving/toy-service.ts';
import { Running, until } from '../processes.ts';

const POLL_MS = '200';
const SEED = 101;
const ROWS = 20;
export const REQUESTS = 25;
/** Generous: the machine is shared, and a gate starts two processes. */
const LIMIT_MS = 180_000;

/** Rows over features f<first> … f<first + 19>. */
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
const keysOf = (rows: readonly ToyRow[]): Set<bigint> =>
  new Set(rows.flatMap(({ categorical }) => categorical.map((text, slot) => keyOf(slot, text))));
const goldenKeys = keysOf(GOLDEN);
const LIVE_KEYS = [...keysOf(LIVE)].filter((key) => !goldenKeys.has(key));

/** What makes another version of the first. */
export type Change = (toy: ToyBundle) => void;

/** All scores are others. */
export const negateAll: Change = ({ tables }) => {
  for (const row of tables[0]!.rows.values()) row.set(row.map((value) => -value));
};

/** Every other live feature is forgotten; with the rest, scores of live rows are as low as they get. */
export const forgetLive: Change = (toy) => {
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

/** The graph fails on live rows. */
export const poisonLive: Change = ({ tables }) => {
  for (const key of LIVE_KEYS) tables[0]!.rows.get(key)?.fill(Number.NaN);
};

export interface ControllerWish {
  readonly holdMs?: number;
  readonly watchMs?: number;
  readonly gate?: boolean;
  /** Lines of `limits:`. */
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

  /** With version 1 on both channels. */
  static async start(t: TestContext): Promise<GatedFleet> {
    const toys = new ToyRepository(t);
    const dataDir = join(toys.folder, 'data');
    await publishChanged(toys, '1', () => undefined);
    for (const channel of ['canary', 'stable']) await toys.activate('1', channel);
    const place = ['--shard', '0', '--shard-num', '1', '--port', '0', '--data-dir', dataDir];
    const server = new Running(t, 'cube-server/main.js', place);
    const addressOf = () => server.lines.find(({ msg }) => msg === 'listening')?.['address'];
    await until('listening', () => addressOf() !== undefined, LIMIT_MS);
    const address = String(addressOf());
    const fleetFile = join(toys.folder, 'fleet.json');
    const bundles = new Map([[BUNDLE, [{ shardNum: 1, shards: [[replicaAt(address)]] }]]]);
    writeFileSync(fleetFile, formatFleet({ bundles }));
    new Running(t, 'cube-agent/main.js', [
      ...['run', '--repository', toys.location, '--bundle', BUNDLE, '--data-dir', dataDir],
      ...['--channel', 'stable', '--channel', 'canary', '--poll-ms', POLL_MS],
      ...['--keep-free', '0', '--server', address],
    ]);
    const serving = await Promise.all(
      ['canary', 'stable'].map((channel) =>
        ServingProcess.start(t, [
          ...['--repository', toys.location, '--bundle', BUNDLE, '--channel', channel],
          ...['--store', 'remote', '--fleet', fleetFile, '--instances', '1'],
          ...['--timeout-ms', '20000', '--poll-ms', POLL_MS],
        ]),
      ),
    );
    const fleet = new GatedFleet(t, toys, fleetFile, serving);
    for (const one of serving) await one.untilActive('1');
    return fleet;
  }

  publish(version: string, change: Change): Promise<void> {
    return publishChanged(this.toys, version, change);
  }

  /** A controller that rolls out over canary and stable, and watches both. */
  control({ holdMs = 0, watchMs = 0, gate = true, limits = [] }: ControllerWish): Running {
    const { location, folder } = this.toys;
    const serving = [this.canary, this.stable].map(({ url }) => url.replace('http://', ''));
    const config = join(folder, 'controller.yaml');
    const lines = [
      ...[`repository: ${location}`, `fleet: ${this.fleetFile}`, `poll-ms: ${POLL_MS}`, 'bundles:'],
      ...[`  - name: ${BUNDLE}`, `    gate: ${gate}`, `    watch-ms: ${watchMs}`],
      `    channels: [{name: canary, hold-ms: ${holdMs}}, {name: stable}]`,
      '    gate-flags: [--rate, "400", --requests, "1", --timeout-ms, "20000",',
      // How long answers take on a shared machine says nothing of a version.
      '      --limit, latencyP50RatioMax=none, --limit, latencyP99RatioMax=none]',
      `    serving: [${serving.map((address) => `"${address}"`).join(', ')}]`,
      ...['    limits:', '      requests-min: 20', ...limits.map((line) => `      ${line}`)],
    ];
    writeFileSync(config, `${lines.join('\n')}\n`);
    return new Running(this.#test, 'cube-agent/main.js', ['controller', '--config', config]);
  }

  history(version: string): Promise<RolloutEntry[]> {
    return this.toys.repository.rollout(BUNDLE, version).history();
  }

  /** Waits for the state. @returns all states up to it */
  async untilState(version: string, state: string): Promise<string> {
    const states = async () => (await this.history(version)).map((entry) => entry.state);
    const seen = async () => ((await states()).at(-1) === state ? true : states());
    await until(`${version} is ${state}`, seen, LIMIT_MS);
    return (await states()).join(' ');
  }

  /** Versions that a channel pointed to, in order. */
  async way(channel: string): Promise<string> {
    const { history } = await this.toys.repository.channel(BUNDLE, channel);
    return history.map(({ version }) => version).join(' ');
  }
}

/** Requests of live rows, and of golden ones in turn where `isMixed`. @returns how many were answered */
export async function ask(serving: ServingProcess, isMixed = false): Promise<number> {
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
