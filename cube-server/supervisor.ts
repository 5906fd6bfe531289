/**
 * One cube-server process for each of several shards: started on ports counted up, restarted with growing pauses when
 * they end, stopped and drained together. A shard that never comes up ends the supervisor; one that has served is
 * tried again for ever.
 */
import { CubeError } from '../lib/core/errors.ts';
import { systemClock } from '../lib/platform/clock.ts';
import { KeptProcess, markedLine } from '../lib/platform/kept-process.ts';
import { runService, type Stoppable } from '../lib/platform/lifecycle.ts';
import type { Logger } from '../lib/platform/logs.ts';

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

/** @param flags those of the supervisor, with the shard's own after them */
function shardProcess(shard: number, flags: readonly string[], logger: Logger): KeptProcess {
  return new KeptProcess({
    args: [process.argv[1]!, ...flags],
    clock: systemClock,
    onLine: (line) => {
      process.stderr.write(markedLine(line, `"shard":${shard}`, `shard ${shard}`));
    },
    onListening: (address) => logger.info({ shard, address }, 'shard listening'),
    onEnd: ({ code, signal, hasServed, shortRuns }, waitMs) => {
      if (!hasServed && (code === EXIT_USAGE || shortRuns >= STARTS_MAX)) {
        return `shard ${shard} does not start (exit ${code})`;
      }
      logger.warn({ shard, code, signal, waitMs }, 'shard process ended; starting it again');
      return undefined;
    },
  });
}

class Supervisor implements Stoppable {
  readonly #shards: readonly KeptProcess[];

  constructor({ shard: shards, port, adminPort }: SupervisorOptions, logger: Logger) {
    this.#shards = shards.map((shard, i) => {
      const flags = [...process.argv.slice(2), '--shard', String(shard)];
      flags.push('--port', String(nth(port, i)));
      if (adminPort !== undefined) flags.push('--admin-port', String(nth(adminPort, i)));
      return shardProcess(shard, flags, logger);
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
