/**
 * Serving as several processes behind the same ports (`build_dag_each_worker`): this one listens
 * and hands each connection to a worker in turn. A worker that dies loses its connections and is
 * replaced; the ports stay open.
 */
import { createServer, type Server, type Socket } from 'node:net';
import { CubeError } from '../lib/core/errors.ts';
import { systemClock } from '../lib/platform/clock.ts';
import type { Stoppable } from '../lib/platform/lifecycle.ts';
import { type Logger, writeForwardedLine } from '../lib/platform/logs.ts';
import { mergeLabelled } from '../lib/platform/metrics.ts';
import { SupervisedProcess } from '../lib/platform/supervised-process.ts';
import { listenOn } from '../lib/rpc/listen.ts';
import type { LocalServiceConfig } from './config/local-services-config.ts';
import { LocalServices } from './local-services.ts';
import type {
  MessageFromWorker,
  MessageToWorker,
  WorkerError,
  WorkerPart,
} from './worker-messages.ts';

/** Connections that wait while no worker accepts any. */
const WAITING_MAX = 1_024;
/** A worker that does not answer a scrape is left out. */
const SCRAPE_TIMEOUT_MS = 2_000;

export interface WorkerProcessesOptions {
  readonly count: number;
  /** Services that all workers call. */
  readonly services: readonly LocalServiceConfig[];
  readonly host: string;
  readonly ports: readonly number[];
  /** Script and flags of a worker. */
  readonly args: readonly string[];
  readonly logger: Logger;
}

export class WorkerProcesses implements Stoppable {
  readonly #options: WorkerProcessesOptions;
  readonly #workers: readonly Worker[];
  readonly #servers: Server[] = [];
  readonly #waiting: Socket[] = [];
  readonly addresses: string[] = [];
  #next = 0;
  #isStopping = false;
  #releaseServices: () => Promise<void> = async () => undefined;
  #reloads: Promise<void> = Promise.resolve();

  constructor(options: WorkerProcessesOptions) {
    this.#options = options;
    this.#workers = Array.from({ length: options.count }, (_, number) => {
      return new Worker(number, options, {
        onChange: () => this.#handOutWaiting(),
        collect: () => this.#collect(),
        describe: () => this.#describe(),
        reload: () => this.reload(),
      });
    });
  }

  /** @throws CubeError IO when a port is taken; UNAVAILABLE when a worker cannot start */
  async start(): Promise<void> {
    const { host, ports, services, logger } = this.#options;
    try {
      for (const port of ports) {
        const server = createServer({ pauseOnConnect: true }, (socket) => this.#accept(socket));
        this.#servers.push(server);
        this.addresses.push(await listenOn(server, host, port));
      }
      this.#releaseServices = await new LocalServices(logger).use(services);
      await Promise.all(this.#workers.map((worker) => worker.process.start()));
    } catch (error) {
      await this.stop();
      throw error;
    }
  }

  /**
   * Reloads the files of all workers as one unit: they switch when each of them has built the
   * changed set. A worker that ends meanwhile starts with the changed files.
   * @throws CubeError why the previous ones stay active
   */
  reload(): Promise<void> {
    const reload = this.#reloads.catch(() => undefined).then(() => this.#reloadAll());
    this.#reloads = reload;
    return reload;
  }

  async #reloadAll(): Promise<void> {
    const open = this.#workers.filter(({ state }) => state !== 'closed');
    const errors = await Promise.all(open.map((worker) => worker.prepare()));
    const error = errors.find((one) => one !== undefined);
    for (const worker of open) worker.finishReload(error?.message);
    if (error !== undefined) throw new CubeError(error.code, error.message);
  }

  /** Closes the ports; the workers answer the requests in progress. */
  async stop(): Promise<void> {
    this.#isStopping = true;
    for (const server of this.#servers) server.close();
    for (const socket of this.#waiting.splice(0)) socket.destroy();
    await Promise.all(this.#workers.map((worker) => worker.stop()));
    await this.#releaseServices();
  }

  #accept(socket: Socket): void {
    socket.on('error', () => socket.destroy());
    const worker = this.#choose();
    if (worker !== undefined) worker.give(socket, () => this.#accept(socket));
    else if (this.#waiting.length < WAITING_MAX && !this.#isStopping) this.#waiting.push(socket);
    else socket.destroy();
  }

  /** The next worker that is ready, else one that says why it is not. */
  #choose(): Worker | undefined {
    const ready = this.#workers.filter(({ state }) => state === 'ready');
    const open = ready.length > 0 ? ready : this.#workers.filter(({ state }) => state === 'open');
    return open[this.#next++ % open.length];
  }

  #handOutWaiting(): void {
    for (const socket of this.#waiting.splice(0)) this.#accept(socket);
  }

  async #describe(): Promise<readonly object[]> {
    const all = await Promise.all(this.#workers.map((worker) => worker.collect('pipeline')));
    return all.filter((one) => one !== undefined);
  }

  async #collect(): Promise<string> {
    const parts = await Promise.all(
      this.#workers.map(async (worker) => ({
        label: String(worker.number),
        values: await worker.collect('metrics'),
      })),
    );
    const restarts = this.#workers.map(({ number, process: { starts } }) => ({
      labels: { worker: String(number) },
      value: starts - 1,
    }));
    return mergeLabelled('worker', parts, [
      {
        name: 'hypercube_pipeline_worker_restarts_total',
        help: 'Worker processes that ended and were replaced.',
        type: 'counter',
        aggregator: 'sum',
        values: restarts,
      },
    ]);
  }
}

interface WorkerEvents {
  /** The pipelines of all workers that answer. */
  readonly describe: () => Promise<readonly object[]>;
  /** The worker accepts connections, or has become ready. */
  readonly onChange: () => void;
  /** The metrics of all workers. */
  readonly collect: () => Promise<string>;
  /** A control call asks for a reload. */
  readonly reload: () => Promise<void>;
}

interface GivenConnection {
  readonly socket: Socket;
  /** Called when the worker has not got the connection. */
  readonly onFailure: () => void;
  /** It is on its way to the worker. Before, it waits until the worker has taken the last one. */
  isSent: boolean;
}

class Worker {
  readonly number: number;
  readonly process: SupervisedProcess;
  readonly #events: WorkerEvents;
  readonly #pending: Map<number, (values: object | undefined) => void> = new Map();
  readonly #preparing: Map<number, (error: WorkerError | undefined) => void> = new Map();
  /** Connections that the worker has not taken, by the numbers of their messages. */
  readonly #given: Map<number, GivenConnection> = new Map();
  #lastId = 0;
  /** `open`: it accepts connections, but its models are not loaded. */
  state: 'closed' | 'open' | 'ready' = 'closed';

  constructor(number: number, { args, logger }: WorkerProcessesOptions, events: WorkerEvents) {
    this.number = number;
    this.#events = events;
    this.process = new SupervisedProcess({
      args,
      number,
      clock: systemClock,
      onLine: (line) => forwardLine(logger, line, number),
      onListening: () => undefined,
      onMessage: (message) => this.#handle(message as MessageFromWorker),
      onExit: ({ code, signal, hasListened }, waitMs) => {
        this.#close();
        if (!hasListened) return `worker process ${number} could not start (exit code ${code})`;
        const fields = { worker: number, code, signal, waitMs };
        logger.error(fields, 'worker process ended; its requests have failed');
        return undefined;
      },
    });
  }

  /** Closes the connections that it has not taken, too. */
  async stop(): Promise<void> {
    await this.process.stop();
    this.#close();
  }

  /** @param onFailure called when the worker has not got the connection */
  give(socket: Socket, onFailure: () => void): void {
    const id = ++this.#lastId;
    const given: GivenConnection = { socket, onFailure, isSent: false };
    this.#given.set(id, given);
    const message: MessageToWorker = { type: 'connection', id };
    this.process.send(message, socket, (error) => {
      if (error === null) {
        given.isSent = true;
        return;
      }
      this.#given.delete(id);
      if (socket.destroyed) return;
      this.state = 'closed';
      onFailure();
    });
  }

  #take(id: number): void {
    // The worker has the connection, so this closes nothing but the copy of this process.
    this.#given.get(id)?.socket.destroy();
    this.#given.delete(id);
  }

  /** @returns undefined when the worker does not answer */
  collect(part: WorkerPart): Promise<object | undefined> {
    if (this.state === 'closed') return Promise.resolve(undefined);
    const id = ++this.#lastId;
    return new Promise((resolve) => {
      const timer = setTimeout(() => settle(undefined), SCRAPE_TIMEOUT_MS);
      const settle = (values: object | undefined): void => {
        clearTimeout(timer);
        this.#pending.delete(id);
        resolve(values);
      };
      this.#pending.set(id, settle);
      this.#send({ type: 'collect', id, part });
    });
  }

  /** @returns why the worker cannot use the changed files; undefined: it can, or has ended */
  prepare(): Promise<WorkerError | undefined> {
    const id = ++this.#lastId;
    return new Promise((resolve) => {
      this.#preparing.set(id, resolve);
      this.#send({ type: 'prepare', id });
    });
  }

  /** @param problem undefined: every worker has built the changed set */
  finishReload(problem: string | undefined): void {
    this.#send(problem === undefined ? { type: 'commit' } : { type: 'discard', problem });
  }

  #send(message: MessageToWorker): void {
    this.process.send(message, undefined, () => undefined);
  }

  #handle(message: MessageFromWorker): void {
    if (message.type === 'state') {
      this.state = message.isReady ? 'ready' : 'open';
      this.#events.onChange();
    } else if (message.type === 'taken') {
      this.#take(message.id);
    } else if (message.type === 'leaving') {
      this.state = 'closed';
    } else if (message.type === 'values') {
      this.#pending.get(message.id)?.(message.values);
    } else if (message.type === 'scrape') {
      const { id } = message;
      void this.#events.collect().then((text) => this.#send({ type: 'metrics', id, text }));
    } else if (message.type === 'describe') {
      const { id } = message;
      void this.#events
        .describe()
        .then((pipelines) => this.#send({ type: 'described', id, pipelines }));
    } else if (message.type === 'prepared') {
      this.#preparing.get(message.id)?.(message.error);
      this.#preparing.delete(message.id);
    } else if (message.type === 'reload') {
      void this.#reload(message.id);
    }
  }

  async #reload(id: number): Promise<void> {
    try {
      await this.#events.reload();
      this.#send({ type: 'reloaded', id });
    } catch (thrown) {
      const { code, message } = CubeError.from(thrown);
      this.#send({ type: 'reloaded', id, error: { code, message } });
    }
  }

  #close(): void {
    this.state = 'closed';
    for (const settle of this.#preparing.values()) settle(undefined);
    this.#preparing.clear();
    for (const settle of this.#pending.values()) settle(undefined);
    const given = [...this.#given];
    this.#given.clear();
    for (const [, { socket, onFailure, isSent }] of given) {
      // The worker may have read a part of its request.
      if (isSent) socket.destroy();
      else if (!socket.destroyed) onFailure();
    }
  }
}

/** A line of a worker's log, in the log of this process. */
function forwardLine(logger: Logger, line: string, worker: number): void {
  try {
    const { name: _name, time: _time, pid: workerPid, ...fields } = JSON.parse(line);
    writeForwardedLine(logger, JSON.stringify({ ...fields, worker, workerPid }));
  } catch {
    logger.info({ worker }, line);
  }
}
