/**
 * Child processes that run one script of this project to its end. They use no shell, so arguments
 * need no quoting.
 */
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { CubeError } from '../core/errors.ts';
import { startTimer } from './clock.ts';
import { waitForParentStop } from './supervised-process.ts';

/** Only the last lines of output are kept: they contain the reason of a failure. */
const LAST_LINES = 20;
const EXIT_STOPPED = 3;

export interface OneShotProcessOptions {
  /** Script and arguments, run by this process's Node. */
  readonly args: readonly string[];
  /** Aborting it sends SIGTERM. */
  readonly signal?: AbortSignal | undefined;
}

export interface OneShotProcessResult {
  /** Exit code; null when a signal ended the process. */
  readonly code: number | null;
  /** The last lines of both streams, newest last. */
  readonly lastLines: readonly string[];
}

/** @throws CubeError IO when the process cannot be started, STOPPING when the signal ended it */
export async function runOneShotProcess({
  args,
  signal,
}: OneShotProcessOptions): Promise<OneShotProcessResult> {
  const child = spawn(process.execPath, [...process.execArgv, ...args], {
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
  });
  const lastLines: string[] = [];
  for (const stream of [child.stdout, child.stderr]) {
    if (stream === null) continue;
    createInterface({ input: stream }).on('line', (line) => {
      lastLines.push(line);
      if (lastLines.length > LAST_LINES) lastLines.shift();
    });
  }
  const stop = (): void => {
    child.kill('SIGTERM');
  };
  signal?.addEventListener('abort', stop);
  if (signal?.aborted) stop();
  try {
    const code = await new Promise<number | null>((resolve, reject) => {
      child.once('error', reject);
      child.once('close', resolve);
    });
    if (signal?.aborted) throw new CubeError('STOPPING', 'stopped');
    return { code, lastLines };
  } catch (error) {
    if (error instanceof CubeError) throw error;
    throw new CubeError('IO', `cannot start ${args[0]}: ${(error as Error).message}`, {
      cause: error,
    });
  } finally {
    signal?.removeEventListener('abort', stop);
  }
}

/**
 * Called in a child process: exits when the parent ends, so that the parent's next run finds no
 * process still working. Does nothing without a parent that supervises it.
 */
export function exitWithParent(): void {
  void waitForParentStop()?.then(() => process.exit(EXIT_STOPPED));
}

export interface ChildCommandOptions {
  /** Aborting it sends SIGTERM. */
  readonly signal?: AbortSignal;
  /** Afterwards the process is killed. Default: no limit. */
  readonly timeoutMs?: number;
}

/** Characters kept from the end of each stream. */
const TEXT_MAX = 64 << 10;

export interface CommandResult {
  /** Exit code; null when a signal ended the process or it could not be started. */
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
  readonly timedOut: boolean;
}

/** @param args script and flags, run by this process's Node */
export function runChildCommand(
  args: readonly string[],
  { signal, timeoutMs = Number.POSITIVE_INFINITY }: ChildCommandOptions,
): Promise<CommandResult> {
  const child = spawn(process.execPath, [...process.execArgv, ...args], {
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    ...(signal === undefined ? {} : { signal, killSignal: 'SIGTERM' as const }),
  });
  const texts = { stdout: '', stderr: '' };
  let timedOut = false;
  // A process that waits in a call of the system does not handle SIGTERM.
  const timer = startTimer(() => {
    timedOut = child.kill('SIGKILL');
  }, timeoutMs);
  for (const name of ['stdout', 'stderr'] as const) {
    child[name]?.setEncoding('utf8').on('data', (text: string) => {
      texts[name] = (texts[name] + text).slice(-TEXT_MAX);
    });
  }
  return new Promise((resolve) => {
    const end = (code: number | null): void => {
      clearTimeout(timer);
      resolve({ code, ...texts, timedOut });
    };
    child.on('error', (error) => {
      texts.stderr += error.message;
      if (child.pid === undefined) end(null);
    });
    child.on('close', end);
  });
}
