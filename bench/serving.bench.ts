/**
 * The engine of serving against the graph alone (onnxruntime without lookups and batching). The
 * graph is the demo's: 26 slots of dim 10 and 13 dense values into layers of 400, 400, 400 and 2.
 * Each scenario is a process pinned to the cores that it prints, and starts with the graph alone on
 * the same core. Tables are in memory.
 */

import { spawnSync } from 'node:child_process';
import { loadavg } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { CubeError, requireDefined } from '../lib/core/errors.ts';
import { parseTsvKeys } from '../lib/core/tsv-keys.ts';
import { makeTemporaryFolder, removePath } from '../lib/platform/files.ts';
import { createLogger } from '../lib/platform/logs.ts';
import { openRepository, type Repository } from '../lib/repository/repository.ts';
import { LoadedBundle } from '../serving/engine/loaded-bundle.ts';
import { Predictor } from '../serving/engine/predictor.ts';
import { MemoryStore } from '../serving/stores/memory-store.ts';
import { type LoopResult, runClosedLoop, runGraphAlone } from './support/closed-loop.ts';
import { openLoop, percentile } from './support/cube-server-process.ts';
import { BUNDLE, publishModel, readBodies, readKeyedRows } from './support/demo-model.ts';

const SHARD_NUM = 2;
const BATCH = 64;
const SINGLES_IN_FLIGHT = 64;
const logger = createLogger('bench', { level: 'silent' });

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

/** Formats the rates of batches. */
function rows({ perSecond, perCpuSecond }: LoopResult): string {
  return `${rate(BATCH * perSecond)} rows/s, ${rate(BATCH * perCpuSecond)} per CPU second`;
}

function ms(value: number): string {
  return `${value.toFixed(3)} ms`;
}

function deadline(): { deadlineMs: number } {
  return { deadlineMs: performance.now() + 30_000 };
}

/** Repeats the requests of a list. */
function pickRequest<T>(requests: readonly T[], i: number): T {
  return requireDefined(requests[i % requests.length], 'a request');
}

/** Requests of 64 rows, two in flight. */
async function batches(folder: string): Promise<void> {
  const alone = await runGraphAlone(folder, BATCH);
  print('graph alone, 64 rows', rows(alone));
  const { bundle } = await openEngine(folder);
  const predictor = new Predictor();
  const keyed = readKeyedRows(folder, BATCH, bundle.features);
  const texts = readBodies(folder, BATCH);
  const scenarios: [string, (i: number) => Promise<unknown>][] = [
    ['keys', (i) => predictor.predict(bundle, pickRequest(keyed, i), deadline())],
    [
      'TSV',
      (i) => {
        const parsed = parseTsvKeys(pickRequest(texts, i), bundle.features, BATCH);
        return predictor.predict(bundle, parsed, deadline());
      },
    ],
  ];
  for (const [name, call] of scenarios) {
    const measured = await runClosedLoop(call, 2);
    const cpuShare = (100 * measured.perCpuSecond) / alone.perCpuSecond;
    const timeShare = (100 * measured.perSecond) / alone.perSecond;
    print(
      `engine, 64 rows as ${name}`,
      `${rows(measured)}: ${cpuShare.toFixed(0)} % of the graph alone by CPU time, ` +
        `${timeShare.toFixed(0)} % by wall-clock time`,
    );
  }
  await bundle.close();
}

/** Requests of one row: many at a time, and one at a time. */
async function singles(folder: string): Promise<void> {
  const aloneMs = percentile((await runGraphAlone(folder, 1)).latencies, 0.5);
  print('graph alone, 1 row', `p50 ${ms(aloneMs)}`);
  const { bundle } = await openEngine(folder);
  const predictor = new Predictor();
  const keyed = readKeyedRows(folder, 1, bundle.features);
  const call = (i: number): Promise<unknown> =>
    predictor.predict(bundle, pickRequest(keyed, i), deadline());
  const many = await runClosedLoop(call, SINGLES_IN_FLIGHT);
  print(
    `engine, 1 row, ${SINGLES_IN_FLIGHT} in flight`,
    `${rate(many.perSecond)} requests/s, ${rate(many.perCpuSecond)} per CPU second, ` +
      `p50 ${ms(percentile(many.latencies, 0.5))}, p99 ${ms(percentile(many.latencies, 0.99))}, ` +
      `${(bundle.stats.rows / bundle.stats.executions).toFixed(1)} rows per batch`,
  );
  const one = await runClosedLoop(call, 1);
  const p50 = percentile(one.latencies, 0.5);
  print(
    'engine, 1 row, one at a time',
    `p50 ${ms(p50)}, ${ms(p50 - aloneMs)} more than the graph alone`,
  );
  await bundle.close();
}

/** Two model instances against one, on both cores. */
async function instances(folder: string): Promise<void> {
  const perSecond: number[] = [];
  for (const count of [1, 2]) {
    const { bundle } = await openEngine(folder, count);
    const predictor = new Predictor();
    const keyed = readKeyedRows(folder, BATCH, bundle.features);
    const call = (i: number): Promise<unknown> =>
      predictor.predict(bundle, pickRequest(keyed, i), deadline());
    const measured = await runClosedLoop(call, 4 * count);
    perSecond.push(measured.perSecond);
    print(
      `engine, ${count} instance(s), 64 rows as keys`,
      `${rate(BATCH * measured.perSecond)} rows/s`,
    );
    await bundle.close();
  }
  const [one = 0, two = 0] = perSecond;
  print('two instances against one', `${(two / one).toFixed(2)} times the rows/s (budget 1.7)`);
}

/**
 * Open loop at a quarter of the engine's capacity, first quiet, then while versions are loaded and
 * retired.
 */
async function versionSwitch(folder: string): Promise<void> {
  const engine = await openEngine(folder);
  const predictor = new Predictor();
  const rows = readKeyedRows(folder, 1, engine.bundle.features);
  let active = engine.bundle;
  let next = 0;
  let failures = new Map<string, number>();
  const call = async (): Promise<void> => {
    try {
      await predictor.predict(active, pickRequest(rows, next++), deadline());
    } catch (error) {
      const { code } = CubeError.from(error);
      failures.set(code, (failures.get(code) ?? 0) + 1);
    }
  };
  const capacity = await runClosedLoop(call, SINGLES_IN_FLIGHT);
  const ratios: number[] = [];
  const load = {
    perSecond: Math.floor(capacity.perSecond / 4),
    forMs: 4_000,
    waitBy: 'sleep',
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
      `p99 at ${load.perSecond} requests/s, ${switches} switches`,
      `quiet ${ms(before)}, during ${ms(during)}: ` +
        `${(during / before).toFixed(2)}; failed: ${failed}`,
    );
    failures = new Map();
  }
  print('p99 during switches against quiet, median', `${median(ratios).toFixed(2)} (budget 1.2)`);
  await active.close();
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[values.length >> 1] ?? Number.NaN;
}

/**
 * Loads the other version, activates it and retires the previous one, again and again. @returns the
 * number of switches
 */
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
    process.stdout.write(
      'The engine of serving (lookups, batching, graph) against running its graph alone.\n',
    );
    await publishModel(folder, SHARD_NUM);
    for (const [name, { cores }] of Object.entries(SCENARIOS)) {
      process.stdout.write(
        `\n${name}, on core ${cores}, machine load ${loadavg()[0]?.toFixed(1)}\n`,
      );
      const args = ['-c', cores, process.execPath, import.meta.filename, name, folder];
      const { status } = spawnSync('taskset', args, { stdio: 'inherit' });
      if (status !== 0) process.exitCode = 1;
    }
  } finally {
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const [scenario, folder = ''] = process.argv.slice(2);
  if (scenario === undefined) await main();
  else await SCENARIOS[scenario]?.run(folder);
}
