/**
 * Keys per CPU second of a large table against one of 10 M rows: both are in memory, each in a
 * server of its own, and the calls alternate between them. The servers share one core, and the
 * client has another; keys are cold. Then a loop in C with prefetch looks the same kind of keys up
 * in the same layers: its ratio is what the machine's memory makes of the size. Prints Linux's
 * setting of huge pages: it changes the figures of both tables, above all their loads.
 *
 * npm run bench -- large-table --table-rows 100000000
 */
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { makeTemporaryFolder, removePath } from '../lib/platform/files.ts';
import { readHugePageMode } from '../lib/platform/machine.ts';
import { findMedian } from './support/alternating-rounds.ts';
import { CLookup } from './support/c-lookup.ts';
import { drawKeys, pinSelf } from './support/cube-server-process.ts';
import { LoadedPoint } from './support/scale-point.ts';

const CLIENT_CORE = 1;
const BASE_ROWS = 10_000_000;
const KEYS = 260;
const ROUNDS = 7;
const ROUND_MS = 2_000;
const GOAL = 0.85;
const C_ROUNDS = 3;
const C_KEYS = 2_000_000;

/** Millions of keys for each CPU second of the server. */
async function measureRate(loaded: LoadedPoint): Promise<number> {
  const { calls, cpuSeconds } = await loaded.measureCalls(ROUND_MS);
  return (calls * KEYS) / cpuSeconds / 1e6;
}

async function startPoint(rows: number): Promise<LoadedPoint> {
  const shape = { rows, shards: 1, tables: 1, deltas: 0 };
  const loaded = await LoadedPoint.start({ ...shape, versions: 1, keys: KEYS, connections: 1 });
  const { buildSeconds, loadSeconds } = loaded;
  const { residentMiB } = await loaded.measureMemory();
  process.stdout.write(
    `${rows.toLocaleString('en')} rows: built in ${buildSeconds.toFixed(1)} s, ` +
      `loaded in ${loadSeconds.toFixed(1)} s, ${Math.round(residentMiB)} MiB resident\n`,
  );
  return loaded;
}

/** Prints the time per key of the loop in C, in rounds that alternate between the tables. */
function measureC(points: readonly LoadedPoint[]): void {
  const folder = makeTemporaryFolder('hypercube-bench-');
  try {
    const program = CLookup.compile(folder);
    if (program === undefined) {
      process.stdout.write('C with prefetch: skipped, because gcc is missing or fails\n');
      return;
    }
    const times = points.map((): number[] => []);
    for (let round = 0; round < C_ROUNDS; round++) {
      for (const [i, { layerPath, point }] of points.entries()) {
        const keys = drawKeys(C_KEYS, point.rows);
        times[i]?.push(...program.measure(layerPath, keys, [KEYS]));
      }
    }
    const [base = Number.NaN, large = Number.NaN] = times.map(findMedian);
    process.stdout.write(
      `C with prefetch, ns per key:       ${base.toFixed(1)} and ${large.toFixed(1)}, ` +
        `ratio ${(base / large).toFixed(2)}\n`,
    );
  } finally {
    removePath(folder);
  }
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: { 'table-rows': { type: 'string', default: '100000000' } },
  });
  pinSelf(CLIENT_CORE);
  process.stdout.write(`huge pages: ${readHugePageMode() ?? 'unknown'}\n`);
  const points: LoadedPoint[] = [];
  try {
    for (const rows of [BASE_ROWS, Number(values['table-rows'])])
      points.push(await startPoint(rows));
    const rates = points.map((): number[] => []);
    for (let round = 0; round <= ROUNDS; round++) {
      for (const [i, point] of points.entries()) {
        const rate = await measureRate(point);
        // The first round warms up.
        if (round > 0) rates[i]?.push(rate);
      }
    }
    const [base = [], large = []] = rates;
    const ratios = large.map((rate, round) => rate / (base[round] ?? Number.NaN));
    const show = (list: readonly number[]): string => list.map((one) => one.toFixed(2)).join(' ');
    process.stdout.write(
      `M keys per CPU second, 10 M rows:  ${findMedian(base).toFixed(2)} (${show(base)})\n` +
        `the large table:                   ${findMedian(large).toFixed(2)} (${show(large)})\n` +
        `ratio of each round, median:       ${findMedian(ratios).toFixed(2)} ` +
        `(${show(ratios)}), goal ${GOAL}\n`,
    );
    measureC(points);
  } finally {
    await Promise.all(points.map((point) => point.stop()));
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main();
