/**
 * Runs the processes of the demo from `dist/`. Logs go to files, addresses are read from log lines,
 * and every process is stopped at the end, also after an error.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { appendLog } from '../../lib/platform/files.ts';

const dist = join(import.meta.dirname, '..', '..');
const START_TIMEOUT_MS = 60_000;
const STOP_TIMEOUT_MS = 10_000;
const LOG_TAIL_LINES = 8;

export interface CommandOutput {
  readonly stdout: string;
  readonly stderr: string;
}

/** A running server and the address it listens on. */
export interface ServerProcess {
  readonly name: string;
  readonly address: string;
  readonly process: ChildProcess;
}

function lastLines(text: string): string {
  return text.trimEnd().split('\n').slice(-LOG_TAIL_LINES).join('\n');
}

/**
 * The address in a `{"msg":"listening","address":"127.0.0.1:8000"}` log line; "" in that of a
 * process that listens nowhere (`"msg":"running"`); undefined in any other line.
 */
function parseListeningAddress(line: string): string | undefined {
  if (!line.includes('"listening"') && !line.includes('"running"')) return undefined;
  try {
    const entry = JSON.parse(line) as { msg?: string; address?: string };
    if (entry.msg === 'running') return '';
    return entry.msg === 'listening' ? entry.address : undefined;
  } catch {
    return undefined;
  }
}

export class Processes {
  readonly #logFolder: string;
  readonly #running = new Set<ChildProcess>();
  #stopping = false;

  constructor(logFolder: string) {
    this.#logFolder = logFolder;
  }

  #spawn(script: string, args: readonly string[]): ChildProcess {
    if (this.#stopping)
      throw new CubeError('STOPPING', `${script} was not started because the demo is stopping`);
    const child = spawn(process.execPath, [join(dist, script), ...args], {
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.#running.add(child);
    child.once('close', () => this.#running.delete(child));
    return child;
  }

  /**
   * Runs a command to its end. @throws CubeError UNAVAILABLE with its last output unless it exits
   * with 0
   */
  async run(script: string, args: readonly string[]): Promise<CommandOutput> {
    const child = this.#spawn(script, args);
    let stdout = '';
    let stderr = '';
    child.stdout?.setEncoding('utf8').on('data', (text: string) => {
      stdout += text;
    });
    child.stderr?.setEncoding('utf8').on('data', (text: string) => {
      stderr += text;
    });
    return new Promise((resolve, reject) => {
      child.once('error', reject);
      child.once('close', (code, signal) => {
        if (code === 0) resolve({ stdout, stderr });
        else
          reject(
            new CubeError('UNAVAILABLE', formatFailure(script, code, signal, stderr || stdout)),
          );
      });
    });
  }

  /**
   * Starts a server; resolves when its log says that it listens or has started. Its log goes to
   * `<name>.log`.
   */
  async start(name: string, script: string, args: readonly string[]): Promise<ServerProcess> {
    const child = this.#spawn(script, args);
    const log = join(this.#logFolder, `${name}.log`);
    let pending = '';
    let tail = '';
    return new Promise((resolve, reject) => {
      const timer = setTimeout(
        () =>
          reject(
            new CubeError(
              'UNAVAILABLE',
              `${name} did not start within ${START_TIMEOUT_MS / 1000} s; see ${log}`,
            ),
          ),
        START_TIMEOUT_MS,
      );
      const onText = (text: string): void => {
        appendLog(log, text);
        tail = lastLines(tail + text);
        pending += text;
        const lines = pending.split('\n');
        pending = lines.pop() ?? '';
        for (const line of lines) {
          const address = parseListeningAddress(line);
          if (address === undefined) continue;
          clearTimeout(timer);
          resolve({ name, address, process: child });
        }
      };
      child.stdout?.setEncoding('utf8').on('data', onText);
      child.stderr?.setEncoding('utf8').on('data', onText);
      child.once('close', (code, signal) => {
        clearTimeout(timer);
        const error = new CubeError('UNAVAILABLE', formatFailure(name, code, signal, tail));
        reject(error);
        if (!this.#stopping) this.onUnexpectedExit(error);
      });
    });
  }

  /** Called when a started server exits unexpectedly. */
  onUnexpectedExit: (error: CubeError) => void = () => undefined;

  /** Kills every process without waiting. */
  killAll(): void {
    for (const child of this.#running) child.kill('SIGKILL');
  }

  /**
   * Sends SIGTERM to all processes, newest first, and SIGKILL to those that remain. No process can
   * start afterwards.
   */
  async stopAll(): Promise<void> {
    this.#stopping = true;
    const children = [...this.#running].reverse();
    await Promise.all(
      children.map(
        (child) =>
          new Promise<void>((resolve) => {
            const timer = setTimeout(() => child.kill('SIGKILL'), STOP_TIMEOUT_MS);
            child.once('close', () => {
              clearTimeout(timer);
              resolve();
            });
            child.kill('SIGTERM');
          }),
      ),
    );
  }
}

function formatFailure(
  name: string,
  code: number | null,
  signal: NodeJS.Signals | null,
  output: string,
): string {
  return `${name} exited with ${signal ?? `exit code ${code}`}:\n${lastLines(output)}`;
}
