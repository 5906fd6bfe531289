/** Options of the demo, its working folder, and its end: everything stopped, nothing left behind. */
import { join, resolve } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { createCli, integerBetween, runCli } from '../../lib/platform/cli.ts';
import {
  listFolder,
  makeFolder,
  makeTemporaryFolder,
  removePath,
} from '../../lib/platform/files.ts';
import { type DemoOptions, runMainJob } from './main-job.ts';
import { Processes } from './processes.ts';
import { say } from './steps.ts';

const PARENT_POLL_MS = 250;

const root = join(import.meta.dirname, '..', '..', '..');

interface Flags {
  local?: boolean;
  once?: boolean;
  dir?: string;
  port?: number;
}

export function run(argv?: readonly string[]): Promise<number> {
  const program = createCli(
    'npm start --',
    'From a trained CTR model with its embeddings inside to live predictions, then keeps serving.',
  )
    .option('--local', 'one serving process with the embedded store, instead of four shard servers')
    .option('--once', 'stop after the report (the default when the output is not a terminal)')
    .option(
      '--dir <folder>',
      'working files, kept at the end (default: a temporary folder, removed)',
    )
    .option(
      '--port <port>',
      'port of the serving process (default: 8080, or any free one with --once)',
      integerBetween(0, 65_535),
    )
    .addHelpText(
      'after',
      `
Examples:
  npm start                        prune, shard, publish, four servers, live predictions
  npm start -- --local             the same on the embedded store, in one process
  npm start -- --once --dir work   stop after the report and keep the files in ./work`,
    )
    .action(act);
  return runCli(program, argv);
}

async function act(flags: Flags): Promise<void> {
  const once = flags.once ?? !process.stdout.isTTY;
  const folder = workingFolder(flags.dir);
  const processes = new Processes(join(folder, 'logs'));
  const stop = new AbortController();
  const options: DemoOptions = {
    folder,
    demo: join(root, 'data', 'demo'),
    local: flags.local ?? false,
    once,
    port: flags.port ?? (once ? 0 : 8080),
  };
  const asked = stopRequest(stop, processes);
  const job = runMainJob(options, processes, stop.signal);
  let complete = false;
  try {
    await Promise.race([
      job,
      asked,
      new Promise<never>((_, reject) => {
        processes.onUnexpectedExit = reject;
      }),
    ]);
  } finally {
    stop.abort();
    await processes.stopAll();
    // Only when the job has ended too does nothing write to the folder any more.
    complete = await job.then(
      () => true,
      () => false,
    );
    if (flags.dir === undefined) removePath(folder);
    else say(`Files are kept in ${folder}.`);
  }
  if (!complete) throw new CubeError('STOPPING', 'stopped before the report');
}

/** The folder for working files: a named one must be new or empty, so that nothing of the user's is touched. */
function workingFolder(named: string | undefined): string {
  if (named === undefined) {
    const folder = makeTemporaryFolder('hypercube-');
    makeFolder(join(folder, 'logs'));
    return folder;
  }
  const folder = resolve(named);
  if (listFolder(folder).length > 0) {
    throw new CubeError('CONFLICT', `--dir ${folder} is not empty: name a new or an empty folder`);
  }
  makeFolder(join(folder, 'logs'));
  return folder;
}

/**
 * Aborts and resolves at the first Ctrl-C, SIGTERM or closed terminal, or when npm is gone (it does not hand a SIGTERM on);
 * a second signal does not wait for the processes.
 */
function stopRequest(stop: AbortController, processes: Processes): Promise<void> {
  return new Promise((resolve) => {
    const onSignal = (): void => {
      if (stop.signal.aborted) {
        processes.killAll();
        return;
      }
      if (process.stdout.isTTY) say('\nStopping everything …');
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
