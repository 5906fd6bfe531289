/**
 * The cube-servers that an agent runs itself. A process that ends is restarted; one that keeps
 * ending soon after its start is given up. The servers end with their agent, even when it is
 * killed. The next agent starts them again; an earlier server that still finishes its requests
 * keeps its port until then.
 */

import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { toArguments } from '../../lib/platform/arguments.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Stoppable } from '../../lib/platform/lifecycle.ts';
import { getLogFormat, type Logger } from '../../lib/platform/logs.ts';
import {
  formatChildLine,
  type ProcessState,
  SupervisedProcess,
} from '../../lib/platform/supervised-process.ts';
import { toTlsFiles } from '../../lib/rpc/credential-options.ts';
import type { Operation } from '../fleet/problem.ts';
import type { AgentConfig, SupervisedServer } from './agent-config.ts';
import type { ProblemTracker } from './problem-tracker.ts';

/** dist/cube-server/main.js, seen from dist/cube-agent/host. */
const SERVER_SCRIPT = join(import.meta.dirname, '..', '..', 'cube-server', 'main.js');
/**
 * Pauses grow from 0.2 s to 30 s: two minutes in all, longer than an earlier process keeps a port.
 */
const SHORT_RUNS_MAX = 10;
const EXIT_USAGE = 2;

interface ProcessContext {
  readonly problems: ProblemTracker;
  /** Called when a server listens, after each of its starts. */
  readonly onListening: () => void;
  /** Makes a server start with the usual policy, whatever that of this process is. */
  readonly commandPrefix: () => readonly string[];
  readonly clock: Clock;
  readonly logger: Logger;
}

export interface ProcessReport {
  readonly state: ProcessState;
  readonly pid: number | undefined;
  readonly starts: number;
}

export class ServerProcesses implements Stoppable {
  /** Control address → process. */
  readonly #processes: ReadonlyMap<string, SupervisedProcess>;

  constructor(config: AgentConfig, context: ProcessContext) {
    this.#processes = new Map(
      config.supervised.map((server) => [
        server.control,
        createServerProcess(server, config, context),
      ]),
    );
  }

  start(): void {
    for (const process of this.#processes.values()) startProcess(process);
  }

  /** Starts the servers again that were given up. */
  retry(): void {
    for (const process of this.#processes.values()) {
      if (process.state === 'given up') startProcess(process);
    }
  }

  report(address: string): ProcessReport | undefined {
    const process = this.#processes.get(address);
    return process && { state: process.state, pid: process.pid, starts: process.starts };
  }

  /** Every server finishes its requests in flight first. */
  async stop(): Promise<void> {
    await Promise.all([...this.#processes.values()].map((process) => process.stop()));
  }
}

function startProcess(process: SupervisedProcess): void {
  // The reason of a failure is logged and listed as a problem.
  process.start().catch(() => undefined);
}

function createServerProcess(
  server: SupervisedServer,
  config: AgentConfig,
  { problems, onListening, commandPrefix, clock, logger }: ProcessContext,
): SupervisedProcess {
  const { shard, control } = server;
  const operation: Operation = { action: 'run-server', server: control };
  return new SupervisedProcess({
    args: [SERVER_SCRIPT, ...buildFlags(server, config)],
    commandPrefix,
    clock,
    onLine: (line) => {
      process.stderr.write(formatChildLine(line, `"server":"${control}"`, `server ${control}`));
    },
    onListening: (address) => {
      problems.resolve(operation);
      logger.info({ shard, server: control, address }, 'server listening');
      onListening();
    },
    onExit: ({ code, signal, consecutiveShortRuns }, waitMs) => {
      const ended = `cube-server of shard ${shard} ended (${signal ?? `exit ${code}`})`;
      const isGivenUp = code === EXIT_USAGE || consecutiveShortRuns >= SHORT_RUNS_MAX;
      const message = isGivenUp
        ? `${ended} ${consecutiveShortRuns} times soon after its start and was given up: ` +
          'see its log lines for the cause, then start it with POST /agent/v1/poke'
        : `${ended}; restarting it`;
      problems.record(operation, new CubeError('UNAVAILABLE', message));
      const run = { server: control, code, signal, shortRuns: consecutiveShortRuns, waitMs };
      logger.warn(run, message);
      return isGivenUp ? message : undefined;
    },
  });
}

function buildFlags(server: SupervisedServer, config: AgentConfig): string[] {
  const { shard, shardNum, host, port, adminPort, flags } = server;
  const { dataFolder, retireGraceMs, controlTokenFile } = config;
  const tls = toTlsFiles(config);
  return [
    ...toArguments({
      shard,
      shardNum,
      host,
      port,
      dataDir: dataFolder,
      retireGraceMs,
      adminPort,
      controlTokenFile,
      tlsCert: tls?.cert,
      tlsKey: tls?.key,
      tlsCa: tls?.ca,
      logFormat: getLogFormat(),
    }),
    ...flags,
  ];
}
