/**
 * The command line of the demo: options, working folder and shutdown. All processes are stopped and
 * temporary files removed.
 */
import { once } from 'node:events';
import { createServer } from 'node:net';
import { join, resolve } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { createCli, parseIntegerBetween, runCli } from '../../lib/platform/cli.ts';
import {
  listFolder,
  makeFolder,
  makeTemporaryFolder,
  removePath,
} from '../../lib/platform/files.ts';
import { type DemoOptions, runDemo } from './demo.ts';
import { Processes } from './processes.ts';
import { print } from './steps.ts';

const PARENT_POLL_MS = 250;

const root = join(import.meta.dirname, '..', '..', '..');

interface Flags {
  local?: boolean;
  once?: boolean;
  dir?: string;
  port?: number;
  traffic: number;
}

export function run(argv?: readonly string[]): Promise<number> {
  const program = createCli(
    'npm start --',
    'Prunes, publishes and serves the demo model, and reports predictions and a rollout. On a ' +
      'terminal it then serves until Ctrl-C.',
  )
    .option(
      '--local',
      'Use one serving process with a database on disk (--store local) instead of four shard ' +
        'servers',
    )
    .option('--once', 'Exit after the report; the default if the output is not a terminal')
    .option(
      '--dir <folder>',
      'Folder for working files, kept at the end (default: a temporary folder, removed at the end)',
    )
    .option(
      '--port <port>',
      'Port of the serving process (default: 8080, or a free port with --once)',
      parseIntegerBetween(0, 65_535),
    )
    .option(
      '--traffic <n>',
      'Rows per second to send while serving continues, so that the console has something to ' +
        'show; 0: none',
      parseIntegerBetween(0, 10_000),
      50,
    )
    .addHelpText(
      'after',
      `
Examples:
  npm start                        prune, shard, publish, start four shard servers, predict
  npm start -- --local             the same in one process, with a database on disk
  npm start -- --once --dir work   exit after the report and keep the files in ./work`,
    )
    .action(runCommand);
  return runCli(program, argv);
}

async function runCommand(flags: Flags): Promise<void> {
  const isOnce = flags.once ?? !process.stdout.isTTY;
  const port = flags.port ?? (isOnce ? 0 : 8080);
  await requireFreePort(port);
  const folder = createWorkingFolder(flags.dir);
  const processes = new Processes(join(folder, 'logs'));
  const stop = new AbortController();
  const options: DemoOptions = {
    folder,
    keepsFolder: flags.dir !== undefined,
    demo: join(root, 'data', 'demo'),
    local: flags.local ?? false,
    once: isOnce,
    port,
    traffic: flags.traffic,
  };
  const stopRequest = waitForStop(stop, processes);
  const job = runDemo(options, processes, stop.signal);
  let complete = false;
  try {
    await Promise.race([
      job,
      stopRequest,
      new Promise<never>((_, reject) => {
        processes.onUnexpectedExit = reject;
      }),
    ]);
  } finally {
    stop.abort();
    await processes.stopAll();
    // Wait for the job: only then does nothing write to the folder any more.
    complete = await job.then(
      () => true,
      () => false,
    );
    if (flags.dir === undefined) removePath(folder);
    else print(`The files are in ${folder}.`);
  }
  if (!complete) throw new CubeError('STOPPING', 'stopped before the report');
}

/** @throws CubeError CONFLICT before any work when another process uses the port */
async function requireFreePort(port: number): Promise<void> {
  const server = createServer();
  server.listen(port, '127.0.0.1');
  try {
    await once(server, 'listening');
  } catch (error) {
    const { message } = error as Error;
    throw new CubeError(
      'CONFLICT',
      `port ${port} cannot be used (${message}); choose another one: npm start -- --port <port>`,
    );
  }
  server.close();
}

/**
 * Creates the folder for working files. A given folder must be new or empty, so that user files are
 * never overwritten.
 */
function createWorkingFolder(named: string | undefined): string {
  if (named === undefined) {
    const folder = makeTemporaryFolder('hypercube-');
    makeFolder(join(folder, 'logs'));
    return folder;
  }
  const folder = resolve(named);
  if (listFolder(folder).length > 0) {
    throw new CubeError('CONFLICT', `--dir ${folder} is not empty: give a new or empty folder`);
  }
  makeFolder(join(folder, 'logs'));
  return folder;
}

/**
 * Aborts and resolves at the first Ctrl-C, SIGTERM or closed terminal, or when npm has ended,
 * because npm does not forward SIGTERM. A second signal kills the processes.
 */
function waitForStop(stop: AbortController, processes: Processes): Promise<void> {
  return new Promise((resolve) => {
    const onSignal = (): void => {
      if (stop.signal.aborted) {
        processes.killAll();
        return;
      }
      if (process.stdout.isTTY) print('\nStopping all processes …');
      stop.abort();
      resolve();
    };
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, onSignal);
    const parent = process.ppid;
    const watch = setInterval(() => {
      if (process.ppid === parent) return;
      clearInterval(watch);
      if (!stop.signal.aborted) onSignal();
    }, PARENT_POLL_MS);
    watch.unref();
  });
}
