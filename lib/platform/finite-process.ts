/** A script of ours as a process of its own, run to its end or to its owner's: no shell, every argument as it is. */
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { CubeError } from '../core/errors.ts';
import { ownerLeft } from './kept-process.ts';

/** The end of what it wrote, where the reason stands. */
const LAST_LINES = 20;
const EXIT_STOPPED = 3;

export interface FiniteProcess {
  /** Script and arguments for this process's own Node. */
  readonly args: readonly string[];
  /** Ends it. */
  readonly signal?: AbortSignal | undefined;
}

export interface ProcessResult {
  /** Null: by a signal. */
  readonly code: number | null;
  /** The last lines that it wrote to either stream, newest last. */
  readonly lastLines: readonly string[];
}

/** @throws CubeError IO when it cannot be started; STOPPING when the signal ended it */
export async function runToEnd({ args, signal }: FiniteProcess): Promise<ProcessResult> {
  const child = spawn(process.execPath, [...process.execArgv, ...args], {
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
  });
  const lastLines: string[] = [];
  for (const stream of [child.stdout, child.stderr]) {
    createInterface({ input: stream! }).on('line', (line) => {
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
 * In such a process: ends it when its owner is gone, as if it had been killed too, so that the owner's next run finds nobody at
 * work. Does nothing where nobody waits for it.
 */
export function endWithOwner(): void {
  void ownerLeft()?.then(() => process.exit(EXIT_STOPPED));
}
