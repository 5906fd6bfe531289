/**
 * One cube-server process for each of several shards: started on ports counted up, restarted with growing pauses when
 * they end, stopped and drained together. A shard that never comes up ends the supervisor; one that has served is
 * tried again for ever.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import { CubeError } from '../lib/core/errors.ts';
import { systemClock } from '../lib/platform/clock.ts';
import { runService, type Stoppable } from '../lib/platform/lifecycle.ts';
import type { Logger } from '../lib/platform/logs.ts';
import { type ListeningReport, STOP_REQUEST } from './supervised.ts';

const BACKOFF_MIN_MS = 200;
const BACKOFF_MAX_MS = 30_000;
/** Served for so long, it starts again without a pause that earlier failures earned. */
const STEADY_MS = 60_000;
/** A shard that has never served is given up after so many starts. */
const STARTS_MAX = 5;
const EXIT_USAGE = 2;
/** Above what a shard process allows itself. */
const STOP_GRACE_MS = 35_000;

export interface SupervisorOptions {
  readonly shard: readonly number[];
  readonly port: number;
  readonly adminPort?: number;
}

/** Keeps the process of one shard running. */
class ShardProcess {
  readonly #shard: number;
  readonly #flags: readonly string[];
  readonly #logger: Logger;
  readonly #stop = new AbortController();
  #child: ChildProcess | undefined;
  #hasServed = false;
  #backoffMs = BACKOFF_MIN_MS;
  #ended: Promise<void> = Promise.resolve();

  /** @param flags those of the supervisor, with the shard's own after them */
  constructor(shard: number, flags: readonly string[], logger: Logger) {
    this.#shard = shard;
    this.#flags = flags;
    this.#logger = logger;
  }

  /** Resolves when the shard listens. @throws CubeError when it will not start */
  start(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#ended = this.#keepRunning(resolve).catch(reject);
    });
  }

  signal(signal: NodeJS.Signals): void {
    this.#child?.kill(signal);
  }

  async stop(): Promise<void> {
    this.#stop.abort();
    // To one that has ended nothing can be said, and nothing needs to be.
    if (this.#child?.connected) this.#child.send(STOP_REQUEST, () => undefined);
    await this.#ended;
  }

  async #keepRunning(onListening: () => void): Promise<void> {
    for (let start = 1; !this.#stop.signal.aborted; start++) {
      const startMs = systemClock.nowMs();
      const { code, signal } = await this.#run(onListening);
      if (this.#stop.signal.aborted) return;
      const ranMs = systemClock.nowMs() - startMs;
      if (!this.#hasServed && (code === EXIT_USAGE || start >= STARTS_MAX)) {
        throw new CubeError('UNAVAILABLE', `shard ${this.#shard} does not start (exit ${code})`);
      }
      if (ranMs >= STEADY_MS) this.#backoffMs = BACKOFF_MIN_MS;
      const waitMs = this.#backoffMs;
      this.#backoffMs = Math.min(2 * waitMs, BACKOFF_MAX_MS);
      const shard = this.#shard;
      this.#logger.warn({ shard, code, signal, waitMs }, 'shard process ended; starting it again');
      await systemClock.sleep(waitMs, this.#stop.signal);
    }
  }

  #run(onListening: () => void): Promise<{ code: number | null; signal: NodeJS.Signals | null }> {
    const child = spawn(process.execPath, [...process.execArgv, process.argv[1]!, ...this.#flags], {
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    });
    this.#child = child;
    for (const stream of [child.stdout, child.stderr]) this.#copyLines(stream!);
    child.on('message', (message: ListeningReport) => {
      this.#hasServed = true;
      this.#logger.info({ shard: this.#shard, address: message.listening }, 'shard listening');
      onListening();
    });
    return new Promise((resolve) => {
      child.on('error', () => resolve({ code: null, signal: null }));
      child.on('close', (code, signal) => resolve({ code, signal }));
    });
  }

  /** Every line says its shard; JSON stays JSON. */
  #copyLines(stream: Readable): void {
    createInterface({ input: stream }).on('line', (line) => {
      const shard = this.#shard;
      const marked = line.startsWith('{"')
        ? `{"shard":${shard},${line.slice(1)}`
        : `shard ${shard}: ${line}`;
      process.stderr.write(`${marked}\n`);
    });
  }
}

class Supervisor implements Stoppable {
  readonly #shards: readonly ShardProcess[];

  constructor({ shard: shards, port, adminPort }: SupervisorOptions, logger: Logger) {
    this.#shards = shards.map((shard, i) => {
      const flags = [...process.argv.slice(2), '--shard', String(shard)];
      flags.push('--port', String(nth(port, i)));
      if (adminPort !== undefined) flags.push('--admin-port', String(nth(adminPort, i)));
      return new ShardProcess(shard, flags, logger);
    });
  }

  async start(): Promise<void> {
    await Promise.all(this.#shards.map((shard) => shard.start()));
  }

  signal(signal: NodeJS.Signals): void {
    for (const shard of this.#shards) shard.signal(signal);
  }

  async stop(): Promise<void> {
    await Promise.all(this.#shards.map((shard) => shard.stop()));
  }
}

/** Port 0 stays "any free one". */
function nth(port: number, i: number): number {
  return port === 0 ? 0 : port + i;
}

/** @throws CubeError INVALID_ARGUMENT when there are no such ports, or one would have two uses */
export function checkPorts({ shard: shards, port, adminPort = 0 }: SupervisorOptions): void {
  const count = shards.length;
  const last = Math.max(port, adminPort) + count - 1;
  if (last > 65_535) {
    throw new CubeError('INVALID_ARGUMENT', `${count} ports up to ${last}: too high`);
  }
  if (port === 0 || adminPort === 0 || Math.abs(port - adminPort) >= count) return;
  const what = count === 1 ? 'are the same port' : `overlap: each of ${count} shards has its own`;
  throw new CubeError('INVALID_ARGUMENT', `--port ${port} and --admin-port ${adminPort} ${what}`);
}

/** Runs until told to stop. @throws CubeError UNAVAILABLE when a shard never starts; the others are stopped then */
export async function supervise(options: SupervisorOptions, logger: Logger): Promise<void> {
  const supervisor = new Supervisor(options, logger);
  const drain = (): void => supervisor.signal('SIGHUP');
  process.on('SIGHUP', drain);
  const start = async (): Promise<Supervisor> => {
    try {
      await supervisor.start();
    } catch (error) {
      await supervisor.stop();
      throw error;
    }
    logger.info({ shards: options.shard }, 'all shards listening');
    return supervisor;
  };
  try {
    await runService(start, logger, { graceMs: STOP_GRACE_MS });
  } finally {
    process.off('SIGHUP', drain);
  }
}
