/**
 * A supervised child process: restarted with exponential backoff when it ends, given up when its
 * owner decides so, and stopped with its owner. The child reports over IPC when it listens. It
 * stops when asked over that channel or when the channel closes, so it never outlives a killed
 * owner.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import type { Socket } from 'node:net';
import { createInterface } from 'node:readline';
import { CubeError, requireDefined } from '../core/errors.ts';
import type { Clock } from './clock.ts';

const BACKOFF_MIN_MS = 200;
const BACKOFF_MAX_MS = 30_000;
/** After a run of this length the restart delay is reset. */
const STABLE_RUN_MS = 60_000;
const STOP_REQUEST = 'stop';
/** Environment variable with the child's number. */
const NUMBER = 'HYPERCUBE_CHILD_NUMBER';

/** Message from the child to its owner. */
export interface ListeningMessage {
  readonly listening: string;
}

export interface ProcessExit {
  /** Exit code; null when a signal ended the process or it could not be started. */
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  /** The child listened at least once, in this run or an earlier one. */
  readonly hasListened: boolean;
  /** Consecutive runs shorter than a minute, this one included. */
  readonly consecutiveShortRuns: number;
}

export interface SupervisedProcessOptions {
  /** Script and flags, run by this process's Node. */
  readonly args: readonly string[];
  /** What comes before Node in the command, such as a program that sets a policy; default: none. */
  readonly commandPrefix?: () => readonly string[];
  readonly clock: Clock;
  /** What `findChildNumber` of the child returns. */
  readonly number?: number;
  /** Whether the child gets an environment variable of this process; default: all of them. */
  readonly inheritsVariable?: (name: string) => boolean;
  /** Called with messages of the child other than `ListeningMessage`. */
  readonly onMessage?: (message: object) => void;
  /** Called with each line of output. */
  readonly onLine: (line: string) => void;
  readonly onListening: (address: string) => void;
  /**
   * @param waitMs delay until the restart
   * @returns why the process is given up; undefined restarts it
   */
  readonly onExit: (end: ProcessExit, waitMs: number) => string | undefined;
}

export type ProcessState = 'starting' | 'listening' | 'waiting' | 'given up' | 'stopped';

export class SupervisedProcess {
  readonly #options: SupervisedProcessOptions;
  readonly #stop = new AbortController();
  #child: ChildProcess | undefined;
  #hasServed = false;
  #shortRuns = 0;
  #state: ProcessState = 'stopped';
  #starts = 0;
  #ended: Promise<void> = Promise.resolve();

  constructor(options: SupervisedProcessOptions) {
    this.#options = options;
  }

  get state(): ProcessState {
    return this.#state;
  }

  get starts(): number {
    return this.#starts;
  }

  get pid(): number | undefined {
    return this.#state === 'starting' || this.#state === 'listening' ? this.#child?.pid : undefined;
  }

  /**
   * Resolves when the child listens. A child that was given up gets all its attempts again.
   * @throws CubeError UNAVAILABLE when it is given up
   */
  start(): Promise<void> {
    this.#shortRuns = 0;
    return new Promise((resolve, reject) => {
      this.#ended = this.#keepRunning(resolve).catch(reject);
    });
  }

  signal(signal: NodeJS.Signals): void {
    this.#child?.kill(signal);
  }

  /**
   * Sends a message, with a connection if there is one, which stays open here too: Node would keep
   * one open for ever that the child does not take before it ends.
   * @param onSent called with the error when the child has not got it; not called when the child
   *   ends before it has taken earlier connections
   */
  send(message: object, socket: Socket | undefined, onSent: (error: Error | null) => void): void {
    if (this.#child?.connected) this.#child.send(message, socket, { keepOpen: true }, onSent);
    else onSent(new Error('the process has ended'));
  }

  /** Resolves when the child has ended, after its requests in flight. */
  async stop(): Promise<void> {
    this.#stop.abort();
    // The child may have ended already.
    if (this.#child?.connected) this.#child.send(STOP_REQUEST, () => undefined);
    await this.#ended;
    this.#state = 'stopped';
  }

  async #keepRunning(onListening: () => void): Promise<void> {
    const { clock, onExit } = this.#options;
    let waitMs = BACKOFF_MIN_MS;
    while (!this.#stop.signal.aborted) {
      const startMs = clock.nowMs();
      const { code, signal } = await this.#run(onListening);
      if (this.#stop.signal.aborted) return;
      const isShort = clock.nowMs() - startMs < STABLE_RUN_MS;
      this.#shortRuns = isShort ? this.#shortRuns + 1 : 0;
      if (!isShort) waitMs = BACKOFF_MIN_MS;
      const end = {
        code,
        signal,
        hasListened: this.#hasServed,
        consecutiveShortRuns: this.#shortRuns,
      };
      const why = onExit(end, waitMs);
      this.#state = why === undefined ? 'waiting' : 'given up';
      if (why !== undefined) throw new CubeError('UNAVAILABLE', why);
      await clock.sleep(waitMs, this.#stop.signal);
      waitMs = Math.min(2 * waitMs, BACKOFF_MAX_MS);
    }
  }

  #run(onListening: () => void): Promise<{ code: number | null; signal: NodeJS.Signals | null }> {
    const { args, commandPrefix, number, inheritsVariable = () => true } = this.#options;
    const variables = Object.entries(process.env).filter(([name]) => inheritsVariable(name));
    if (number !== undefined) variables.push([NUMBER, String(number)]);
    const prefix = commandPrefix?.() ?? [];
    const command = [...prefix, process.execPath, ...process.execArgv, ...args];
    const child = spawn(requireDefined(command[0], 'a command'), command.slice(1), {
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
      env: Object.fromEntries(variables),
    });
    this.#child = child;
    this.#state = 'starting';
    this.#starts += 1;
    for (const stream of [child.stdout, child.stderr]) {
      if (stream === null) continue;
      createInterface({ input: stream }).on('line', this.#options.onLine);
    }
    child.on('message', (message: ListeningMessage | object) => {
      if (!('listening' in message)) {
        this.#options.onMessage?.(message);
        return;
      }
      const { listening } = message;
      this.#hasServed = true;
      this.#state = 'listening';
      this.#options.onListening(listening);
      onListening();
    });
    return new Promise((resolve) => {
      child.on('error', () => resolve({ code: null, signal: null }));
      child.on('close', (code, signal) => resolve({ code, signal }));
    });
  }
}

/**
 * Labels a line of output with its process. JSON stays JSON. @param mark JSON fields, such as
 * `"shard":3`
 */
export function formatChildLine(line: string, mark: string, name: string): string {
  return line.startsWith('{"') ? `{${mark},${line.slice(1)}\n` : `${name}: ${line}\n`;
}

/** The number that the owner gave this process; undefined: none, or there is no owner. */
export function findChildNumber(): number | undefined {
  const text = process.env[NUMBER];
  return text === undefined || process.send === undefined ? undefined : Number(text);
}

/** Called in a supervised process; does nothing without a supervisor. */
export function reportListening(address: string): void {
  if (process.connected) process.send?.({ listening: address } satisfies ListeningMessage);
}

/**
 * Called in a supervised process: resolves when the owner has ended or asks it to stop. No signal
 * is used: terminals and service managers signal all processes of a group, and a second signal
 * would end the child at once. Undefined without a supervisor.
 */
export function waitForParentStop(): Promise<string> | undefined {
  if (process.send === undefined) return undefined;
  return new Promise((resolve) => {
    const leave = (): void => resolve('supervisor');
    process.on('message', (message) => {
      if (message === STOP_REQUEST) leave();
    });
    process.on('disconnect', leave);
    if (!process.connected) leave();
    // The channel must not keep a stopped process alive.
    process.channel?.unref();
  });
}
