/** Real cube-agent processes, and what they write. */
import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { atEnd } from '../repository/fixtures.ts';

/** dist/, wherever the tests run from. */
const DIST = join(import.meta.dirname, '..', '..');

export interface Finished {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** @param fault where the process shall be killed or fail (lib/platform/fault-point.ts) */
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

/** A command, run to its end. */
export function runCommand(script: string, ...args: string[]): Promise<Finished> {
  return finished(startProcess(script, args));
}

function finished(child: ChildProcess): Promise<Finished> {
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

export const agent = (...args: string[]): Promise<Finished> =>
  runCommand('cube-agent/main.js', ...args);

/** The same, killed or failing at a fault point. */
export const runCommandWithFault = (
  fault: string,
  script: string,
  ...args: string[]
): Promise<Finished> => finished(startProcess(script, args, fault));

export const agentWithFault = (fault: string, ...args: string[]): Promise<Finished> =>
  runCommandWithFault(fault, 'cube-agent/main.js', ...args);

/** A long-running process, its log lines, and its end with the test. */
export class Running {
  readonly child: ChildProcess;
  readonly lines: Record<string, unknown>[] = [];
  readonly exit: Promise<number | null>;
  #pending = '';

  constructor(t: TestContext, script: string, args: readonly string[], fault?: string) {
    this.child = startProcess(script, args, fault);
    this.exit = new Promise((resolve) => this.child.once('exit', resolve));
    this.child.stderr?.setEncoding('utf8').on('data', (text: string) => this.#take(text));
    atEnd(t, () => this.kill());
  }

  messages(): string[] {
    return this.lines.map((line) => String(line['msg']));
  }

  async kill(): Promise<void> {
    this.child.kill('SIGKILL');
    await this.exit;
  }

  #take(text: string): void {
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

export function runAgent(
  t: TestContext,
  where: { repository: string; dataDir: string; servers: readonly string[] },
  ...more: string[]
): Running {
  return new Running(t, 'cube-agent/main.js', [
    ...['run', '--repository', where.repository, '--bundle', 'ctr', '--data-dir', where.dataDir],
    ...['--poll-ms', '50', '--retire-grace-ms', '0'],
    ...where.servers.flatMap((server) => ['--server', server]),
    ...more,
  ]);
}

/** Waits until `seen` says so, also on a busy machine. @throws with what was last seen, before the test's own timeout */
export async function until(
  what: string,
  seen: () => unknown,
  timeoutMs = 120_000,
  everyMs = 20,
): Promise<void> {
  const endMs = performance.now() + timeoutMs;
  for (;;) {
    const value = await seen();
    if (value === true) return;
    if (performance.now() > endMs) {
      throw new Error(`not seen in time: ${what}; last: ${JSON.stringify(value)}`);
    }
    await new Promise((resolve) => setTimeout(resolve, everyMs));
  }
}
