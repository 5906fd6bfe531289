/**
 * The processes of the demo: started from `dist/`, their logs kept in files, found by the address they print, and all
 * stopped at the end whatever happened.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { appendLog } from '../../lib/platform/files.ts';

const dist = join(import.meta.dirname, '..', '..');
const START_TIMEOUT_MS = 60_000;
const STOP_TIMEOUT_MS = 10_000;
const LOG_TAIL_LINES = 8;

export interface Finished {
  readonly stdout: string;
  readonly stderr: string;
}

/** A long-running process that printed where it listens. */
export interface Server {
  readonly name: string;
  readonly address: string;
  readonly process: ChildProcess;
}

function lastLines(text: string): string {
  return text.trimEnd().split('\n').slice(-LOG_TAIL_LINES).join('\n');
}

/**
 * The address in a `{"msg":"listening","address":"127.0.0.1:8000"}` log line; "" in that of a process that listens
 * nowhere (`"msg":"running"`); undefined in any other line.
 */
function startedAddress(line: string): string | undefined {
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
    if (this.#stopping) throw new CubeError('STOPPING', `${script} is not started: stopping`);
    const child = spawn(process.execPath, [join(dist, script), ...args], {
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.#running.add(child);
    child.once('close', () => this.#running.delete(child));
    return child;
  }

  /** Runs a command to its end. @throws CubeError UNAVAILABLE with its last words unless it exits with 0 */
  async run(script: string, args: readonly string[]): Promise<Finished> {
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
        else reject(new CubeError('UNAVAILABLE', failure(script, code, signal, stderr || stdout)));
      });
    });
  }

  /**
   * Starts a server; resolves when it says that it listens, or has started. Its log goes to `<name>.log`.
   */
  async start(name: string, script: string, args: readonly string[]): Promise<Server> {
    const child = this.#spawn(script, args);
    const log = join(this.#logFolder, `${name}.log`);
    let pending = '';
    let tail = '';
    return new Promise((resolve, reject) => {
      const timer = setTimeout(
        () => reject(new CubeError('UNAVAILABLE', `${name} did not start in time; see ${log}`)),
        START_TIMEOUT_MS,
      );
      const onText = (text: string): void => {
        appendLog(log, text);
        tail = lastLines(tail + text);
        pending += text;
        const lines = pending.split('\n');
        pending = lines.pop() ?? '';
        for (const line of lines) {
          const address = startedAddress(line);
          if (address === undefined) continue;
          clearTimeout(timer);
          resolve({ name, address, process: child });
        }
      };
      child.stdout?.setEncoding('utf8').on('data', onText);
      child.stderr?.setEncoding('utf8').on('data', onText);
      child.once('close', (code, signal) => {
        clearTimeout(timer);
        const error = new CubeError('UNAVAILABLE', failure(name, code, signal, tail));
        reject(error);
        if (!this.#stopping) this.onUnexpectedExit(error);
      });
    });
  }

  /** Called when a server that had started ends by itself. */
  onUnexpectedExit: (error: CubeError) => void = () => undefined;

  /** Does not wait for anybody. */
  killAll(): void {
    for (const child of this.#running) child.kill('SIGKILL');
  }

  /** SIGTERM to all, newest first; SIGKILL to those that stay. Nothing starts any more, no log is written. */
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

function failure(
  name: string,
  code: number | null,
  signal: NodeJS.Signals | null,
  words: string,
): string {
  return `${name} ended with ${signal ?? `exit code ${code}`}:\n${lastLines(words)}`;
}
