/**
 * `npm run soak -- damage`: random damage to layer files of every layout and dtype, in memory and
 * on disk. Prints how many trials were refused, right and wrong. Exits with 1 when a row was wrong,
 * or when damage with correct checksums, tried first, was not counted as wrong.
 */
import { parseArgs } from 'node:util';
import { makeTemporaryFolder, removePath } from '../../lib/platform/files.ts';
import { formatTable } from '../../lib/platform/terminal-output.ts';
import { DamageTrials } from '../store/support/damage-trials.ts';

const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: String(Date.now() % 1e9) },
    minutes: { type: 'string', default: '2' },
  },
});
const seed = Number(values.seed);
const PROBLEMS_PRINTED = 20;

async function findMissedCanary(folder: string): Promise<string | undefined> {
  const canary = new DamageTrials(folder, seed, 'small');
  for (const storage of ['memory', 'disk'] as const) await canary.runCanary(storage);
  await canary.close();
  return [...canary.counts.entries()].find(([, { wrong }]) => wrong !== 1)?.[0];
}

async function run(folder: string): Promise<number> {
  const missed = await findMissedCanary(folder);
  if (missed !== undefined) {
    process.stdout.write(`damage with correct checksums was not counted as wrong: ${missed}\n`);
    return 1;
  }
  const trials = new DamageTrials(folder, seed);
  const endMs = performance.now() + Number(values.minutes) * 60_000;
  while (performance.now() < endMs) await trials.run();
  await trials.close();
  const rows = [...trials.counts]
    .sort()
    .map(([name, { trials: count, refused, right, wrong }]) => [
      name,
      ...[count, refused, right, wrong].map(String),
    ]);
  const sums = [1, 2, 3, 4].map((at) => rows.reduce((sum, row) => sum + Number(row[at]), 0));
  rows.push(['all', ...sums.map(String)]);
  const columns = ['LAYERS', 'TRIALS', 'REFUSED', 'RIGHT', 'WRONG'];
  process.stdout.write(`seed ${seed}\n${formatTable(columns, rows)}\n`);
  for (const problem of trials.problems.slice(0, PROBLEMS_PRINTED)) {
    process.stdout.write(`${problem}\n`);
  }
  return trials.problems.length === 0 ? 0 : 1;
}

const folder = makeTemporaryFolder('hypercube-damage-');
try {
  process.exitCode = await run(folder);
} finally {
  removePath(folder);
}
