/**
 * Runs one cube-server process for each of several shards, on consecutive ports. Processes are
 * restarted with exponential backoff, and stopped and drained together. A shard that never starts
 * ends the supervisor; one that has served is restarted without limit.
 */
import { CubeError, requireDefined } from '../lib/core/errors.ts';
import { systemClock } from '../lib/platform/clock.ts';
import { runService, type Stoppable } from '../lib/platform/lifecycle.ts';
import { getLogFormat, type Logger } from '../lib/platform/logs.ts';
import { formatChildLine, SupervisedProcess } from '../lib/platform/supervised-process.ts';

/** A shard that has never served is given up after this many starts. */
const STARTS_MAX = 5;
const EXIT_USAGE = 2;
/** Longer than the shard processes' own grace period. */
const STOP_GRACE_MS = 35_000;

export interface SupervisorOptions {
  readonly shard: readonly number[];
  readonly port: number;
  readonly adminPort?: number;
}

/** @param flags of the supervisor, followed by the shard's own */
function createShardProcess(
  shard: number,
  flags: readonly string[],
  logger: Logger,
): SupervisedProcess {
  return new SupervisedProcess({
    args: [requireDefined(process.argv[1], 'the path of the program'), ...flags],
    clock: systemClock,
    onLine: (line) => {
      process.stderr.write(formatChildLine(line, `"shard":${shard}`, `shard ${shard}`));
    },
    onListening: (address) => logger.info({ shard, address }, 'shard listening'),
    onExit: ({ code, signal, hasListened, consecutiveShortRuns }, waitMs) => {
      if (!hasListened && (code === EXIT_USAGE || consecutiveShortRuns >= STARTS_MAX)) {
        return `shard ${shard} did not start (exit code ${code}); see its log above`;
      }
      logger.warn({ shard, code, signal, waitMs }, 'shard process ended; restarting it');
      return undefined;
    },
  });
}

class Supervisor implements Stoppable {
  readonly #shards: readonly SupervisedProcess[];

  constructor({ shard: shards, port, adminPort }: SupervisorOptions, logger: Logger) {
    this.#shards = shards.map((shard, i) => {
      const flags = [...process.argv.slice(2), '--shard', String(shard)];
      flags.push('--log-format', getLogFormat());
      flags.push('--port', String(getShardPort(port, i)));
      if (adminPort !== undefined) flags.push('--admin-port', String(getShardPort(adminPort, i)));
      return createShardProcess(shard, flags, logger);
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

/** Port 0 selects any free port. */
function getShardPort(port: number, i: number): number {
  return port === 0 ? 0 : port + i;
}

/** @throws CubeError INVALID_ARGUMENT when ports are out of range or would be used twice */
export function checkPorts({ shard: shards, port, adminPort = 0 }: SupervisorOptions): void {
  const count = shards.length;
  const last = Math.max(port, adminPort) + count - 1;
  if (last > 65_535) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${count} shards need ports up to ${last}; the highest port is 65535`,
    );
  }
  if (port === 0 || adminPort === 0 || Math.abs(port - adminPort) >= count) return;
  const what = count === 1 ? 'are the same port' : `overlap: each of ${count} shards needs its own`;
  throw new CubeError('INVALID_ARGUMENT', `--port ${port} and --admin-port ${adminPort} ${what}`);
}

/**
 * Runs until stopped. @throws CubeError UNAVAILABLE when a shard never starts; the others are then
 * stopped
 */
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
