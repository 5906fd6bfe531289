/**
 * Serving against the bare run of its own graph, which has the demo's shape: 26 slots of dim 10 and 13 dense values into 400, 400, 400
 * and 2. Each scenario is a process of its own, pinned to the cores that it says, and starts with the bare run on the same core:
 * figures are ratios to that. Tables are in memory unless a line says otherwise.
 */
import { spawnSync } from 'node:child_process';
import { loadavg } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { CubeError } from '../lib/core/errors.ts';
import { parseTsvKeys } from '../lib/core/tsv-keys.ts';
import { makeTemporaryFolder, removePath } from '../lib/platform/files.ts';
import { createLogger } from '../lib/platform/logs.ts';
import { openRepository, type Repository } from '../lib/repository/repository.ts';
import { Predictor } from '../serving/engine/predictor.ts';
import { LoadedBundle } from '../serving/models/bundle.ts';
import { MemoryStore } from '../serving/stores/memory-store.ts';
import { openLoop, percentile } from './bench-server.ts';
import { BUNDLE, bodies, keyedBodies, publishModel } from './serving-model.ts';
import { bareRun, closedLoop, type Measured } from './serving-runs.ts';

const SHARD_NUM = 2;
const BATCH = 64;
const SINGLES_IN_FLIGHT = 64;
const logger = createLogger('bench', 'silent');

interface Engine {
  readonly repository: Repository;
  readonly store: MemoryStore;
  readonly bundle: LoadedBundle;
  load(version: string): Promise<LoadedBundle>;
}

async function openEngine(folder: string, instances = 1): Promise<Engine> {
  const repository = openRepository(join(folder, 'repo'));
  const store = new MemoryStore({ repository, budgetBytes: 2 ** 30 });
  const load = (version: string): Promise<LoadedBundle> =>
    LoadedBundle.load({ repository, bundle: BUNDLE, store, instances, logger }, version);
  return { repository, store, bundle: await load('1'), load };
}

function print(name: string, text: string): void {
  process.stdout.write(`${name.padEnd(44)}${text}\n`);
}

function rate(value: number): string {
  return Math.round(value).toLocaleString('en').padStart(9);
}

/** Of batches. */
function rows({ perSecond, perCpuSecond }: Measured): string {
  return `${rate(BATCH * perSecond)} rows/s, ${rate(BATCH * perCpuSecond)} for each CPU second`;
}

function ms(value: number): string {
  return `${value.toFixed(3)} ms`;
}

function deadline(): { deadlineMs: number } {
  return { deadlineMs: performance.now() + 30_000 };
}

/** Requests of 64 rows, two in flight. */
async function batches(folder: string): Promise<void> {
  const bare = await bareRun(folder, BATCH);
  print('bare run, 64 rows', rows(bare));
  const { bundle } = await openEngine(folder);
  const predictor = new Predictor();
  const keyed = keyedBodies(folder, BATCH, bundle.features);
  const texts = bodies(folder, BATCH);
  const scenarios: [string, (i: number) => Promise<unknown>][] = [
    ['keys', (i) => predictor.predict(bundle, keyed[i % keyed.length]!, deadline())],
    [
      'TSV',
      (i) => {
        const parsed = parseTsvKeys(texts[i % texts.length]!, bundle.features, BATCH);
        return predictor.predict(bundle, parsed, deadline());
      },
    ],
  ];
  for (const [name, call] of scenarios) {
    const measured = await closedLoop(call, 2);
    const share = (100 * measured.perCpuSecond) / bare.perCpuSecond;
    const inTime = (100 * measured.perSecond) / bare.perSecond;
    print(
      `engine, 64 rows as ${name}`,
      `${rows(measured)}: ${share.toFixed(0)} % of bare by CPU time, ${inTime.toFixed(0)} % by the clock`,
    );
  }
  await bundle.close();
}

/** Requests of one row: many at a time, and one at a time. */
async function singles(folder: string): Promise<void> {
  const bareMs = percentile((await bareRun(folder, 1)).latencies, 0.5);
  print('bare run, 1 row', `p50 ${ms(bareMs)}`);
  const { bundle } = await openEngine(folder);
  const predictor = new Predictor();
  const keyed = keyedBodies(folder, 1, bundle.features);
  const call = (i: number): Promise<unknown> =>
    predictor.predict(bundle, keyed[i % keyed.length]!, deadline());
  const many = await closedLoop(call, SINGLES_IN_FLIGHT);
  print(
    `engine, 1 row, ${SINGLES_IN_FLIGHT} in flight`,
    `${rate(many.perSecond)} requests/s, ${rate(many.perCpuSecond)} for each CPU second, p50 ${ms(percentile(many.latencies, 0.5))}, p99 ${ms(percentile(many.latencies, 0.99))}, ` +
      `${(bundle.stats.rows / bundle.stats.executions).toFixed(1)} rows a batch`,
  );
  const one = await closedLoop(call, 1);
  const p50 = percentile(one.latencies, 0.5);
  print('engine, 1 row, one at a time', `p50 ${ms(p50)}, ${ms(p50 - bareMs)} over the bare run`);
  await bundle.close();
}

/** Two model instances beside one, on both cores. */
async function instances(folder: string): Promise<void> {
  const perSecond: number[] = [];
  for (const count of [1, 2]) {
    const { bundle } = await openEngine(folder, count);
    const predictor = new Predictor();
    const keyed = keyedBodies(folder, BATCH, bundle.features);
    const call = (i: number): Promise<unknown> =>
      predictor.predict(bundle, keyed[i % keyed.length]!, deadline());
    const measured = await closedLoop(call, 4 * count);
    perSecond.push(measured.perSecond);
    print(
      `engine, ${count} instance(s), 64 rows as keys`,
      `${rate(BATCH * measured.perSecond)} rows/s`,
    );
    await bundle.close();
  }
  print('two instances against one', `${(perSecond[1]! / perSecond[0]!).toFixed(2)} (budget 1.7)`);
}

/** Open loop at a quarter of what the engine can, quiet and while versions come and go. */
async function versionSwitch(folder: string): Promise<void> {
  const engine = await openEngine(folder);
  const predictor = new Predictor();
  const rows = keyedBodies(folder, 1, engine.bundle.features);
  let active = engine.bundle;
  let next = 0;
  let failures = new Map<string, number>();
  const call = async (): Promise<void> => {
    try {
      await predictor.predict(active, rows[next++ % rows.length]!, deadline());
    } catch (error) {
      const { code } = CubeError.from(error);
      failures.set(code, (failures.get(code) ?? 0) + 1);
    }
  };
  const capacity = await closedLoop(call, SINGLES_IN_FLIGHT);
  const ratios: number[] = [];
  const load = {
    perSecond: Math.floor(capacity.perSecond / 4),
    forMs: 4_000,
    between: 'sleep',
  } as const;
  for (let round = 1; round <= 3; round++) {
    const quiet = await openLoop(call, load);
    const until = { done: false };
    const switching = keepSwitching(engine, active, until, (bundle) => {
      active = bundle;
    });
    const busy = await openLoop(call, load);
    until.done = true;
    const switches = await switching;
    const [before, during] = [percentile(quiet, 0.99), percentile(busy, 0.99)];
    ratios.push(during / before);
    const failed = [...failures].map(([code, times]) => `${times} ${code}`).join(', ') || 'none';
    print(
      `p99, ${load.perSecond} requests/s, ${switches} switches`,
      `quiet ${ms(before)}, during ${ms(during)}: ${(during / before).toFixed(2)}; failed: ${failed}`,
    );
    failures = new Map();
  }
  ratios.sort((a, b) => a - b);
  print('p99 during switches against quiet, median', `${ratios[1]!.toFixed(2)} (budget 1.2)`);
  await active.close();
}

/** Loads the other version, sends requests to it, retires the one before, again and again. @returns how often */
async function keepSwitching(
  engine: Engine,
  first: LoadedBundle,
  until: { done: boolean },
  activate: (bundle: LoadedBundle) => void,
): Promise<number> {
  let active = first;
  let switches = 0;
  while (!until.done) {
    const loaded = await engine.load(active.version === '1' ? '2' : '1');
    activate(loaded);
    await active.retire();
    active = loaded;
    switches++;
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
  return switches;
}

const SCENARIOS: Readonly<
  Record<string, { cores: string; run: (folder: string) => Promise<void> }>
> = {
  batches: { cores: '0', run: batches },
  singles: { cores: '0', run: singles },
  instances: { cores: '0,1', run: instances },
  switch: { cores: '0,1', run: versionSwitch },
};

async function main(): Promise<void> {
  const folder = makeTemporaryFolder('hypercube-bench-');
  try {
    await publishModel(folder, SHARD_NUM);
    for (const [name, { cores }] of Object.entries(SCENARIOS)) {
      process.stdout.write(`\n${name}, on core ${cores}, load ${loadavg()[0]!.toFixed(1)}\n`);
      const command = [process.execPath, import.meta.filename, name, folder];
      const pinned = ['taskset', '-c', cores, ...command];
      const { status } = spawnSync(pinned[0]!, pinned.slice(1), { stdio: 'inherit' });
      if (status !== 0) process.exitCode = 1;
    }
  } finally {
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const [scenario, folder = ''] = process.argv.slice(2);
  if (scenario === undefined) await main();
  else await SCENARIOS[scenario]!.run(folder);
}
