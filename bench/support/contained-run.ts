/**
 * Runs scripts that start processes and write temporary folders, such as benchmarks, so that
 * nothing of them remains: each script leads a process group of its own, and its temporary files
 * are in one folder. When the script ends or the run is interrupted, the group is killed and the
 * folder removed.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { constants } from 'node:os';
import { TemporaryFolder } from '../../lib/platform/temporary-folder.ts';

export interface ScriptRun {
  /** Printed before the output of the script. */
  readonly title?: string;
  /** Script and arguments, run by this process's Node. */
  readonly args: readonly string[];
}

/** Signals of the terminal, of service managers, and of a closed pipe as after `| head`. */
const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
/** A shell reports a process that a signal ended with this exit code plus the signal. */
const EXIT_SIGNAL_BASE = 128;
const GROUP_END_TIMEOUT_MS = 10_000;
const GROUP_POLL_MS = 20;

/**
 * Runs scripts one after another. An interruption ends the running one and skips the rest.
 * @returns 0, 1 if a script failed, or 128 + signal if the run was interrupted
 */
export async function runScripts(runs: readonly ScriptRun[]): Promise<number> {
  const interruption = new Interruption();
  let code = 0;
  try {
    for (const { title, args } of runs) {
      if (interruption.exitCode !== undefined) break;
      if (title !== undefined) process.stdout.write(`\n# ${title}\n\n`);
      if ((await runContained(args, interruption)) !== 0) code = 1;
    }
    return interruption.exitCode ?? code;
  } finally {
    interruption.release();
  }
}

/** The first signal or closed pipe. */
class Interruption {
  exitCode: number | undefined;
  /** Called once, when the interruption happens. */
  onInterrupted: () => void = () => undefined;
  readonly #signals = SIGNALS.map((name) => [name, () => this.#end(name)] as const);
  readonly #onStdoutError = (error: NodeJS.ErrnoException): void => {
    if (error.code !== 'EPIPE') throw error;
    this.#end('SIGPIPE');
  };

  constructor() {
    for (const [name, listener] of this.#signals) process.on(name, listener);
    process.stdout.on('error', this.#onStdoutError);
  }

  /** The listener for stdout stays: a late error of a closed pipe must not throw. */
  release(): void {
    for (const [name, listener] of this.#signals) process.off(name, listener);
  }

  #end(signal: NodeJS.Signals): void {
    if (this.exitCode !== undefined) return;
    this.exitCode = EXIT_SIGNAL_BASE + constants.signals[signal];
    this.onInterrupted();
  }
}

/** @returns the script's exit code; null if it was killed */
async function runContained(
  args: readonly string[],
  interruption: Interruption,
): Promise<number | null> {
  const folder = new TemporaryFolder('run');
  const { path } = folder;
  const child = spawn(process.execPath, args, {
    detached: true,
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, TMPDIR: path, TMP: path, TEMP: path },
  });
  try {
    // Not inherited: only this process may learn that the pipe is closed, and it stops everything.
    child.stdout.pipe(process.stdout, { end: false });
    interruption.onInterrupted = () => signalGroup(child, 'SIGKILL');
    if (interruption.exitCode !== undefined) signalGroup(child, 'SIGKILL');
    const [code] = (await once(child, 'exit')) as [number | null];
    return code;
  } finally {
    await endGroup(child);
    folder.remove();
  }
}

/** Kills what the script left behind and waits until it has ended. */
async function endGroup(child: ChildProcess): Promise<void> {
  const endMs = performance.now() + GROUP_END_TIMEOUT_MS;
  while (signalGroup(child, 'SIGKILL') && performance.now() < endMs) {
    await new Promise((resolve) => setTimeout(resolve, GROUP_POLL_MS));
  }
}

/** @returns false if the group has no process any more */
function signalGroup({ pid }: ChildProcess, signal: NodeJS.Signals): boolean {
  try {
    return pid !== undefined && process.kill(-pid, signal);
  } catch {
    return false;
  }
}
