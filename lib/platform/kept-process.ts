/**
 * A process of ours that is kept running: started again with growing pauses when it ends, given up when its owner says so,
 * stopped with its owner. It tells over IPC when it listens, and leaves when that channel says so or closes, so it never
 * outlives an owner that was killed.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { CubeError } from '../core/errors.ts';
import type { Clock } from './clock.ts';

const BACKOFF_MIN_MS = 200;
const BACKOFF_MAX_MS = 30_000;
/** Ran for so long, it starts again without the pause that earlier failures earned. */
const STEADY_MS = 60_000;
const STOP_REQUEST = 'stop';

/** What a process tells its owner. */
export interface ListeningReport {
  readonly listening: string;
}

export interface ProcessEnd {
  /** Null: by a signal, or it could not be started. */
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  /** It listened once, in this run or an earlier one. */
  readonly hasServed: boolean;
  /** Runs in a row, this one included, that were over within a minute. */
  readonly shortRuns: number;
}

export interface KeptProcessOptions {
  /** Script and flags for this process's own Node. */
  readonly args: readonly string[];
  readonly clock: Clock;
  /** Each line that it writes. */
  readonly onLine: (line: string) => void;
  readonly onListening: (address: string) => void;
  /** @param waitMs until it is started again. @returns why it is not, or undefined */
  readonly onEnd: (end: ProcessEnd, waitMs: number) => string | undefined;
}

export type ProcessState = 'starting' | 'listening' | 'waiting' | 'given up' | 'stopped';

export class KeptProcess {
  readonly #options: KeptProcessOptions;
  readonly #stop = new AbortController();
  #child: ChildProcess | undefined;
  #hasServed = false;
  #shortRuns = 0;
  #state: ProcessState = 'stopped';
  #starts = 0;
  #ended: Promise<void> = Promise.resolve();

  constructor(options: KeptProcessOptions) {
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

  /** Resolves when it listens. @throws CubeError UNAVAILABLE when it is given up */
  start(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#ended = this.#keepRunning(resolve).catch(reject);
    });
  }

  signal(signal: NodeJS.Signals): void {
    this.#child?.kill(signal);
  }

  /** Resolves when it has ended, after what was in flight. */
  async stop(): Promise<void> {
    this.#stop.abort();
    // To one that has ended nothing can be said, and nothing needs to be.
    if (this.#child?.connected) this.#child.send(STOP_REQUEST, () => undefined);
    await this.#ended;
    this.#state = 'stopped';
  }

  async #keepRunning(onListening: () => void): Promise<void> {
    const { clock, onEnd } = this.#options;
    let waitMs = BACKOFF_MIN_MS;
    while (!this.#stop.signal.aborted) {
      const startMs = clock.nowMs();
      const { code, signal } = await this.#run(onListening);
      if (this.#stop.signal.aborted) return;
      const isShort = clock.nowMs() - startMs < STEADY_MS;
      this.#shortRuns = isShort ? this.#shortRuns + 1 : 0;
      if (!isShort) waitMs = BACKOFF_MIN_MS;
      const end = { code, signal, hasServed: this.#hasServed, shortRuns: this.#shortRuns };
      const why = onEnd(end, waitMs);
      this.#state = why === undefined ? 'waiting' : 'given up';
      if (why !== undefined) throw new CubeError('UNAVAILABLE', why);
      await clock.sleep(waitMs, this.#stop.signal);
      waitMs = Math.min(2 * waitMs, BACKOFF_MAX_MS);
    }
  }

  #run(onListening: () => void): Promise<{ code: number | null; signal: NodeJS.Signals | null }> {
    const child = spawn(process.execPath, [...process.execArgv, ...this.#options.args], {
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    });
    this.#child = child;
    this.#state = 'starting';
    this.#starts += 1;
    for (const stream of [child.stdout, child.stderr]) {
      createInterface({ input: stream! }).on('line', this.#options.onLine);
    }
    child.on('message', ({ listening }: ListeningReport) => {
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

/** Every line says whose it is; JSON stays JSON. @param mark JSON fields, such as `"shard":3` */
export function markedLine(line: string, mark: string, name: string): string {
  return line.startsWith('{"') ? `{${mark},${line.slice(1)}\n` : `${name}: ${line}\n`;
}

/** In a kept process: does nothing where nobody keeps it. */
export function reportListening(address: string): void {
  if (process.connected) process.send?.({ listening: address } satisfies ListeningReport);
}

/**
 * In a kept process: resolves when its owner has gone or wants it to stop. No signal: a terminal or a service manager sends
 * its own to all processes of a group, and a second one would end us at once. Undefined where nobody keeps it.
 */
export function ownerLeft(): Promise<string> | undefined {
  if (process.send === undefined) return undefined;
  return new Promise((resolve) => {
    const leave = (): void => resolve('supervisor');
    for (const event of ['message', 'disconnect']) process.on(event, leave);
    if (!process.connected) leave();
    // The channel must not keep a stopped process alive.
    process.channel?.unref();
  });
}
