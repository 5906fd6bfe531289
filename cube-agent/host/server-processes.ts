/**
 * The cube-servers that an agent starts itself: one process for each, restarted when it ends, given up when it flaps. They
 * end with their agent, also one that was killed; the next agent starts them again, and those that still finish what is
 * in flight keep their port until then.
 */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import { KeptProcess, markedLine, type ProcessState } from '../../lib/platform/kept-process.ts';
import type { Stoppable } from '../../lib/platform/lifecycle.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { tlsFilesOf } from '../../lib/rpc/credential-options.ts';
import type { AgentConfig, SupervisedServer } from './agent-config.ts';
import type { Problems } from './problems.ts';

/** dist/cube-server/main.js, seen from dist/cube-agent/host. */
const SERVER_SCRIPT = join(import.meta.dirname, '..', '..', 'cube-server', 'main.js');
/** With pauses from 0.2 s up to 30 s this is two minutes: longer than an earlier process may keep the port. */
const SHORT_RUNS_MAX = 10;
const EXIT_USAGE = 2;

export interface ProcessReport {
  readonly state: ProcessState;
  readonly pid: number | undefined;
  readonly starts: number;
}

export class ServerProcesses implements Stoppable {
  /** Control address → process. */
  readonly #processes: ReadonlyMap<string, KeptProcess>;

  constructor(config: AgentConfig, problems: Problems, clock: Clock, logger: Logger) {
    this.#processes = new Map(
      config.supervised.map((server) => [
        server.control,
        serverProcess(server, { config, problems, clock, logger }),
      ]),
    );
  }

  start(): void {
    for (const process of this.#processes.values()) startOne(process);
  }

  /** Starts again what was given up. */
  retry(): void {
    for (const process of this.#processes.values()) {
      if (process.state === 'given up') startOne(process);
    }
  }

  report(address: string): ProcessReport | undefined {
    const process = this.#processes.get(address);
    return process && { state: process.state, pid: process.pid, starts: process.starts };
  }

  /** Each finishes what is in flight. */
  async stop(): Promise<void> {
    await Promise.all([...this.#processes.values()].map((process) => process.stop()));
  }
}

function startOne(process: KeptProcess): void {
  // Why one was given up is among the problems, and in the log.
  process.start().catch(() => undefined);
}

function serverProcess(
  server: SupervisedServer,
  more: { config: AgentConfig; problems: Problems; clock: Clock; logger: Logger },
): KeptProcess {
  const { config, problems, clock, logger } = more;
  const { shard, control } = server;
  const what = `run the server at ${control}`;
  return new KeptProcess({
    args: [SERVER_SCRIPT, ...flagsOf(server, config)],
    clock,
    onLine: (line) => {
      process.stderr.write(markedLine(line, `"server":"${control}"`, `server ${control}`));
    },
    onListening: (address) => {
      problems.clear(what);
      logger.info({ shard, server: control, address }, 'server listening');
    },
    onEnd: ({ code, signal, shortRuns }, waitMs) => {
      const ended = `cube-server of shard ${shard} ended (${signal ?? `exit ${code}`})`;
      const isGivenUp = code === EXIT_USAGE || shortRuns >= SHORT_RUNS_MAX;
      const why = isGivenUp
        ? `${ended}, ${shortRuns} times soon after it started: given up; its log lines say why, ` +
          'POST /agent/v1/poke starts it again'
        : `${ended}; starting it again`;
      problems.add(what, new CubeError('UNAVAILABLE', why));
      logger.warn({ server: control, code, signal, shortRuns, waitMs }, why);
      return isGivenUp ? why : undefined;
    },
  });
}

function flagsOf(server: SupervisedServer, config: AgentConfig): string[] {
  const { shard, shardNum, host, port, adminPort, flags } = server;
  const { dataFolder, retireGraceMs, controlTokenFile } = config;
  const tls = tlsFilesOf(config);
  return [
    ...['--shard', String(shard), '--shard-num', String(shardNum)],
    ...['--host', host, '--port', String(port), '--data-dir', dataFolder],
    ...['--retire-grace-ms', String(retireGraceMs)],
    ...(adminPort === undefined ? [] : ['--admin-port', String(adminPort)]),
    ...(controlTokenFile === undefined ? [] : ['--control-token-file', controlTokenFile]),
    ...(tls === undefined
      ? []
      : ['--tls-cert', tls.cert, '--tls-key', tls.key, '--tls-ca', tls.ca]),
    ...flags,
  ];
}
