/**
 * `npm run soak -- chaos`: kills and stops of servers, good and damaged versions, and rollbacks
 * under callers that know the rows of every version. Prints how many answers failed, were wrong, or
 * mixed versions, and how long the fleet took to be whole after each kill. Exits with 1 when an
 * answer was wrong or mixed, a rollback went to a version that had not served, the fleet did not
 * become whole, or a version that is mixed on purpose, tried first, was not noticed.
 */
import { parseArgs } from 'node:util';
import { makeTemporaryFolder, removePath } from '../../lib/platform/files.ts';
import { formatTable } from '../../lib/platform/terminal-output.ts';
import { Random } from '../simulation/random.ts';
import { ChaosRun } from './support/chaos-run.ts';

const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: String(Date.now() % 1e9) },
    minutes: { type: 'string', default: '2' },
  },
});
const seed = Number(values.seed);
const CANARY_MS_MAX = 60_000;

const print = (text: string): boolean => process.stdout.write(`${text}\n`);

function report({ answers, counts }: ChaosRun): boolean {
  const rows = [...answers].map(([name, { requests, failed, wrong, mixed, versions }]) => [
    name,
    ...[requests, failed, wrong, mixed, versions.length].map(String),
  ]);
  print(formatTable(['ANSWERS', 'REQUESTS', 'FAILED', 'WRONG', 'MIXED', 'VERSIONS'], rows));
  for (const [name, { firstProblem }] of answers) {
    if (firstProblem !== undefined) print(`first problem of ${name}: ${firstProblem}`);
  }
  const { kills, stops, good, damaged, rollbacks, wholeAfterMs, problems } = counts;
  print(`${kills} kills, ${stops} stops, ${good} good and ${damaged} damaged versions`);
  print(`${rollbacks} rollbacks`);
  const sorted = [...wholeAfterMs].sort((a, b) => a - b);
  const median = sorted[sorted.length >> 1] ?? Number.NaN;
  print(`whole after a kill: median ${median} ms, longest ${sorted.at(-1) ?? Number.NaN} ms`);
  print(`  each: ${wholeAfterMs.join(', ')}`);
  for (const problem of problems) print(problem);
  return (
    problems.length === 0 && [...answers.values()].every(({ wrong, mixed }) => wrong + mixed === 0)
  );
}

async function run(folder: string): Promise<number> {
  print(`seed ${seed}`);
  const chaos = await ChaosRun.start(folder, new Random(seed, 'chaos'));
  try {
    const missed = await chaos.findMissedCanary(CANARY_MS_MAX);
    if (missed.length > 0) {
      print(`a version mixed on purpose was not noticed by: ${missed.join(', ')}`);
      return 1;
    }
    await chaos.run(Number(values.minutes) * 60_000);
    return report(chaos) ? 0 : 1;
  } finally {
    await chaos.stop();
  }
}

const folder = makeTemporaryFolder('hypercube-chaos-');
try {
  process.exitCode = await run(folder);
} finally {
  removePath(folder);
}
