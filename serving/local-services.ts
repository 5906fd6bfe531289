/**
 * Model services on this machine that a pipeline's config.yml describes: child processes, one for
 * each endpoint, restarted when they die. Pipelines share them, so that a reload keeps those that
 * it does not change.
 */
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { CubeError } from '../lib/core/errors.ts';
import { systemClock } from '../lib/platform/clock.ts';
import {
  DECRYPT_COMMAND_VARIABLE,
  DECRYPT_FILE_VARIABLE,
} from '../lib/platform/encryption-options.ts';
import { type Logger, writeForwardedLine } from '../lib/platform/logs.ts';
import { SupervisedProcess } from '../lib/platform/supervised-process.ts';
import { formatEndpoint } from '../lib/rpc/endpoint.ts';
import type { LocalServiceConfig } from './config/local-services-config.ts';

const SCRIPT: string = join(import.meta.dirname, 'main.js');
const POLL_MS = 50;
const STATUS_TIMEOUT_MS = 5_000;
/** Services have these variables of serving too; others are settings of the pipeline's process. */
const SHARED_VARIABLES = ['HYPERCUBE_DEBUG', DECRYPT_FILE_VARIABLE, DECRYPT_COMMAND_VARIABLE];

export class LocalServices {
  readonly #logger: Logger;
  readonly #services = new Map<string, LocalService>();

  constructor(logger: Logger) {
    this.#logger = logger;
  }

  /**
   * Starts the services that do not run yet, and waits until their models are loaded.
   * @returns a function that ends the use; services without users stop
   * @throws CubeError why a service cannot serve; none of them is used then
   */
  async use(configs: readonly LocalServiceConfig[]): Promise<() => Promise<void>> {
    const used: LocalService[] = [];
    const release = async (): Promise<void> => {
      await Promise.all(used.map((service) => this.#release(service)));
    };
    try {
      for (const config of configs) used.push(this.#acquire(config));
      await Promise.all(used.map(({ ready }) => ready));
    } catch (error) {
      await release();
      throw error;
    }
    return release;
  }

  #acquire(config: LocalServiceConfig): LocalService {
    const address = formatEndpoint(config.host, config.port);
    const known = this.#services.get(address);
    if (known !== undefined && !isDeepStrictEqual(known.config.flags, config.flags)) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `op ${config.op}: ${address} serves another model or precision; choose another port`,
      );
    }
    const service = known ?? new LocalService(config, address, this.#logger);
    service.users++;
    this.#services.set(address, service);
    return service;
  }

  async #release(service: LocalService): Promise<void> {
    service.users--;
    if (service.users > 0) return;
    this.#services.delete(service.address);
    await service.stop();
  }
}

class LocalService {
  readonly config: LocalServiceConfig;
  readonly address: string;
  readonly ready: Promise<void>;
  readonly #process: SupervisedProcess;
  #lastLine = '';
  #isStopping = false;
  users = 0;

  constructor(config: LocalServiceConfig, address: string, logger: Logger) {
    this.config = config;
    this.address = address;
    const { op, host, port, flags } = config;
    const own = ['--host', host, '--port', String(port), '--log-format', 'json'];
    this.#process = new SupervisedProcess({
      args: [SCRIPT, ...own, ...flags],
      inheritsVariable: isServiceVariable,
      clock: systemClock,
      onLine: (line) => {
        this.#lastLine = line;
        forwardLine(logger, line, op);
      },
      onListening: () => undefined,
      onExit: ({ code, signal, hasListened }, waitMs) => {
        if (!hasListened) {
          return `op ${op}: the service at ${address} cannot start: ${readMessage(this.#lastLine)}`;
        }
        logger.error({ op, address, code, signal, waitMs }, 'service of an op ended; it restarts');
        return undefined;
      },
    });
    this.ready = this.#start();
    // Each pipeline that uses it sees the failure.
    this.ready.catch(() => undefined);
  }

  async stop(): Promise<void> {
    this.#isStopping = true;
    await this.#process.stop();
  }

  async #start(): Promise<void> {
    await this.#process.start();
    while (!this.#isStopping) {
      const { ready, failure } = await this.#readStatus();
      if (ready) return;
      if (failure !== undefined) {
        throw new CubeError('UNAVAILABLE', `op ${this.config.op}: ${this.address}: ${failure}`);
      }
      await systemClock.sleep(POLL_MS);
    }
  }

  async #readStatus(): Promise<{ readonly ready: boolean; readonly failure?: string }> {
    try {
      const signal = AbortSignal.timeout(STATUS_TIMEOUT_MS);
      const response = await fetch(`http://${this.address}/v1/status`, { signal });
      if (!response.ok) return { ready: false, failure: `HTTP status ${response.status}` };
      const status = (await response.json()) as {
        readonly ready: boolean;
        readonly failed?: readonly { readonly message: string }[];
      };
      const message = status.failed?.[0]?.message;
      return { ready: status.ready, ...(message !== undefined && { failure: message }) };
    } catch {
      // It died and restarts, or is slow.
      return { ready: false };
    }
  }
}

function isServiceVariable(name: string): boolean {
  return !name.startsWith('HYPERCUBE_') || SHARED_VARIABLES.includes(name);
}

function forwardLine(logger: Logger, line: string, op: string): void {
  try {
    const { name: _name, time: _time, pid: servicePid, msg, ...fields } = JSON.parse(line);
    const text = `service of op ${op}: ${msg}`;
    writeForwardedLine(logger, JSON.stringify({ ...fields, op, servicePid, msg: text }));
  } catch {
    logger.info({ op }, line);
  }
}

/** The message of a line of a log, or the line. */
function readMessage(line: string): string {
  try {
    const { err, error, msg } = JSON.parse(line);
    return String(err?.message ?? error ?? msg);
  } catch {
    return line;
  }
}
