/**
 * A command of ours as a child process, run to its end: what it does wrong, or how long it hangs, is its own affair. One that asks
 * `ownerLeft` (kept-process.ts) learns when this process was killed.
 */
import { spawn } from 'node:child_process';

/** Of each stream the end is kept. */
const TEXT_MAX = 64 << 10;

export interface CommandEnd {
  /** Null: ended by a signal, or not started. */
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/**
 * @param args script and flags for this process's own Node
 * @param signal sends it SIGTERM
 */
export function runChildCommand(
  args: readonly string[],
  signal?: AbortSignal,
): Promise<CommandEnd> {
  const child = spawn(process.execPath, [...process.execArgv, ...args], {
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    ...(signal === undefined ? {} : { signal, killSignal: 'SIGTERM' as const }),
  });
  const texts = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr'] as const) {
    child[name]!.setEncoding('utf8').on('data', (text: string) => {
      texts[name] = (texts[name] + text).slice(-TEXT_MAX);
    });
  }
  return new Promise((resolve) => {
    child.on('error', (error) => {
      texts.stderr += error.message;
      if (child.pid === undefined) resolve({ code: null, ...texts });
    });
    child.on('close', (code) => resolve({ code, ...texts }));
  });
}
