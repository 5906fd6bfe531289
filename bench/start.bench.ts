/**
 * Starts of the programs: CPU time of all threads until a process says that it listens, the median
 * of several starts that alternate with those of an empty Node program. Then a fleet of four
 * servers, an agent and serving is killed whole and started again: time until predictions are
 * possible. Run it with `npm run bench -- start`; it reads CPU times from /proc, so it needs Linux.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { formatFleet } from '../lib/core/fleet.ts';
import { toArguments } from '../lib/platform/arguments.ts';
import { makeFolder, makeTemporaryFolder, removePath, replaceFile } from '../lib/platform/files.ts';
import { freePort } from '../test/platform/support/free-port.ts';
import { Processes } from '../tools/demo/processes.ts';
import { BUNDLE, publishModel } from './support/demo-model.ts';

const STARTS = 5;
const SHARD_NUM = 4;
const DIST = join(import.meta.dirname, '..');
const NS_PER_MS = 1e6;
const EMPTY = ['-e', 'console.log("listening"); setTimeout(() => {}, 60_000)'];

function print(line: string): void {
  process.stdout.write(`${line}\n`);
}

/** Milliseconds of CPU that all threads of a process have used so far. */
function readCpuMs(pid: number): number {
  const threads = readdirSync(`/proc/${pid}/task`);
  const times = threads.map((thread) =>
    Number(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'utf8').split(' ')[0]),
  );
  return times.reduce((sum, ns) => sum + ns, 0) / NS_PER_MS;
}

async function waitForStart(child: ChildProcess): Promise<void> {
  let log = '';
  await new Promise<void>((resolve, reject) => {
    const onText = (text: Buffer): void => {
      log += text;
      if (/\b(listening|running)\b/.test(log)) resolve();
    };
    child.stdout?.on('data', onText);
    child.stderr?.on('data', onText);
    child.once('exit', () => reject(new Error(`the process ended: ${log}`)));
  });
}

/** @returns CPU milliseconds until the process listens */
async function measureStart(args: readonly string[]): Promise<number> {
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  const exit = once(child, 'exit');
  try {
    await waitForStart(child);
    return readCpuMs(child.pid ?? 0);
  } finally {
    child.kill('SIGKILL');
    await exit;
  }
}

function findMedian(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[values.length >> 1] ?? Number.NaN;
}

async function comparePrograms(folder: string): Promise<void> {
  const repository = { repository: join(folder, 'empty'), bundle: BUNDLE };
  makeFolder(repository.repository);
  const run = (program: string, ...args: string[]): string[] => [
    join(DIST, program, 'main.js'),
    ...args,
  ];
  const dataDir = join(folder, 'data');
  const programs: Record<string, readonly string[]> = {
    'empty Node program': EMPTY,
    'cube-server': run('cube-server', ...toArguments({ shard: 0, shardNum: 1, port: 0, dataDir })),
    'cube-agent run': run(
      'cube-agent',
      'run',
      ...toArguments({ ...repository, dataDir, server: '127.0.0.1:1' }),
    ),
    'serving without a model': run('serving', ...toArguments({ ...repository, port: 0 })),
  };
  const times = new Map(Object.keys(programs).map((name) => [name, [] as number[]]));
  for (let i = 0; i < STARTS; i++) {
    for (const [name, args] of Object.entries(programs)) {
      times.get(name)?.push(await measureStart(args));
    }
  }
  const baseMs = findMedian(times.get('empty Node program') ?? []);
  for (const [name, values] of times) {
    const ms = findMedian(values);
    const ratio = (ms / baseMs).toFixed(1);
    print(`${name.padEnd(24)} ${ms.toFixed(0).padStart(5)} ms of CPU, ${ratio} × Node's`);
  }
}

async function startFleet(folder: string, firstPort: number): Promise<Processes> {
  const processes = new Processes(join(folder, 'logs'));
  const channel = { repository: join(folder, 'repo'), bundle: BUNDLE, pollMs: 200 };
  const dataDir = join(folder, 'host');
  const addresses = Array.from({ length: SHARD_NUM }, (_, i) => `127.0.0.1:${firstPort + 1 + i}`);
  const shards = addresses.map((data) => [{ data, control: data, group: 'default' }]);
  const fleet = join(folder, 'fleet.json');
  const layouts = [{ shardNum: SHARD_NUM, shards }];
  replaceFile(fleet, formatFleet({ bundles: new Map([[BUNDLE, layouts]]) }));
  const starts: [string, string[]][] = [
    ...addresses.map((_, shard): [string, string[]] => {
      const port = firstPort + 1 + shard;
      return ['cube-server', toArguments({ shard, shardNum: SHARD_NUM, port, dataDir })];
    }),
    ['cube-agent', ['run', ...toArguments({ ...channel, dataDir, server: addresses })]],
    ['serving', toArguments({ ...channel, store: 'remote', fleet, port: firstPort })],
  ];
  await Promise.all(
    starts.map(([name, args], i) => processes.start(`${name}-${i}`, `${name}/main.js`, args)),
  );
  while (!(await fetch(`http://127.0.0.1:${firstPort}/readyz`)).ok) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return processes;
}

async function measureFleet(folder: string): Promise<void> {
  await publishModel(folder, SHARD_NUM);
  makeFolder(join(folder, 'logs'));
  const port = await freePort(SHARD_NUM + 1);
  let fleet = await startFleet(folder, port);
  const times: number[] = [];
  for (let i = 0; i < STARTS; i++) {
    fleet.killAll();
    await fleet.stopAll();
    const startMs = performance.now();
    fleet = await startFleet(folder, port);
    times.push(performance.now() - startMs);
  }
  fleet.killAll();
  await fleet.stopAll();
  const all = times.map((ms) => ms.toFixed(0)).join(', ');
  print(`fleet killed whole       ready after ${findMedian(times).toFixed(0)} ms (${all})`);
}

const folder = makeTemporaryFolder('hypercube-bench-start-');
try {
  await comparePrograms(folder);
  await measureFleet(folder);
} finally {
  removePath(folder);
}
