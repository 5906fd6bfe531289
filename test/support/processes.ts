/** Starts processes of the product and records their output. */
import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { onTestEnd } from '../repository/support/fixtures.ts';

/** The folder dist/, independent of the working directory. */
export const DIST: string = join(import.meta.dirname, '..', '..');

export interface CommandResult {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** @param fault fault point at which the process is killed or fails (fault-point.ts) */
export function startProcess(
  script: string,
  args: readonly string[],
  fault?: string,
): ChildProcess {
  return spawn(process.execPath, [join(DIST, script), ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
    ...(fault === undefined ? {} : { env: { ...process.env, HYPERCUBE_FAULT: fault } }),
  });
}

/** Runs a command in a process of its own; `runCommand` in commands.ts is faster. */
export function runProcess(script: string, ...args: string[]): Promise<CommandResult> {
  return waitForExit(startProcess(script, args));
}

function waitForExit(child: ChildProcess): Promise<CommandResult> {
  const texts = { stdout: '', stderr: '' };
  child.stdout?.setEncoding('utf8').on('data', (text: string) => {
    texts.stdout += text;
  });
  child.stderr?.setEncoding('utf8').on('data', (text: string) => {
    texts.stderr += text;
  });
  return new Promise((resolve) => {
    child.once('close', (code) => resolve({ code, ...texts }));
  });
}

/** Runs a command that is killed or fails at a fault point. */
export const runCommandWithFault = (
  fault: string,
  script: string,
  ...args: string[]
): Promise<CommandResult> => waitForExit(startProcess(script, args, fault));

export const runAgentCommandWithFault = (
  fault: string,
  ...args: string[]
): Promise<CommandResult> => runCommandWithFault(fault, 'cube-agent/main.js', ...args);

/** A long-running process with its log lines; it is killed when the test ends. */
export class RunningProcess {
  readonly child: ChildProcess;
  readonly lines: Record<string, unknown>[] = [];
  readonly exit: Promise<number | null>;
  #pending = '';

  constructor(t: TestContext, script: string, args: readonly string[], fault?: string) {
    this.child = startProcess(script, args, fault);
    this.exit = new Promise((resolve) => this.child.once('exit', resolve));
    this.child.stderr?.setEncoding('utf8').on('data', (text: string) => this.#parseLines(text));
    onTestEnd(t, () => this.kill());
  }

  messages(): string[] {
    return this.lines.map((line) => String(line['msg']));
  }

  async kill(): Promise<void> {
    this.child.kill('SIGKILL');
    await this.exit;
  }

  #parseLines(text: string): void {
    this.#pending += text;
    const lines = this.#pending.split('\n');
    this.#pending = lines.pop() ?? '';
    for (const line of lines) {
      this.lines.push(
        line.startsWith('{') ? (JSON.parse(line) as Record<string, unknown>) : { msg: line },
      );
    }
  }
}

export function startAgentProcess(
  t: TestContext,
  options: { repository: string; dataDir: string; servers: readonly string[] },
  ...more: string[]
): RunningProcess {
  return new RunningProcess(t, 'cube-agent/main.js', [
    'run',
    '--repository',
    options.repository,
    '--bundle',
    'ctr',
    '--data-dir',
    options.dataDir,
    '--poll-ms',
    '50',
    '--retire-grace-ms',
    '0',
    ...options.servers.flatMap((server) => ['--server', server]),
    ...more,
  ]);
}

/**
 * Polls `check` until it returns true. An error of `check` counts as a value: what it reads may not
 * exist yet. The timeout allows for a busy machine.
 * @param what the expected state, for the error
 * @param pollMs the first pause; it grows to the fivefold, so that long waits take little CPU time
 * @throws Error with the last value of `check`
 */
export async function waitFor(
  what: string,
  check: () => unknown,
  timeoutMs = 120_000,
  pollMs = 20,
): Promise<void> {
  const endMs = performance.now() + timeoutMs;
  for (let pauseMs = pollMs; ; pauseMs = Math.min(5 * pollMs, 1.2 * pauseMs)) {
    const value = await Promise.resolve().then(check).catch(String);
    if (value === true) return;
    if (performance.now() > endMs) {
      throw new Error(
        `timed out after ${timeoutMs} ms: ${what}; last value: ${JSON.stringify(value)}`,
      );
    }
    await new Promise((resolve) => setTimeout(resolve, pauseMs));
  }
}
