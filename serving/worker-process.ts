/**
 * A worker process of serving: it accepts the connections that the main process hands over, and
 * answers scrapes of metrics and the console with the figures of all workers.
 */
import type { Socket } from 'node:net';
import { CubeError } from '../lib/core/errors.ts';
import type { OnePortServer } from '../lib/rpc/one-port-server.ts';
import type { ServingMetrics } from './metrics/serving-metrics.ts';
import type { OpStatus } from './pipeline/engine.ts';
import type { PipelineDescription, PipelineHistory } from './pipeline/pipeline-history.ts';
import type { PreparedSet, ServedGraphs } from './served-graphs.ts';
import type { MessageFromWorker, MessageToWorker } from './worker-messages.ts';

const READY_POLL_MS = 50;

export interface WorkerParts {
  readonly port: OnePortServer;
  readonly metrics: ServingMetrics;
  readonly isReady: () => boolean;
  readonly graphs: ServedGraphs;
  /** The pipeline of this process. */
  readonly history: PipelineHistory;
}

export class WorkerProcess {
  readonly #parts: WorkerParts;
  readonly #scrapes: Map<number, (text: string) => void> = new Map();
  readonly #descriptions: Map<number, (pipelines: readonly object[]) => void> = new Map();
  readonly #reloads: Map<number, (error: CubeError | undefined) => void> = new Map();
  #prepared: PreparedSet | undefined;
  #lastId = 0;
  #isLeaving = false;
  #readyTimer: NodeJS.Timeout | undefined;

  constructor(parts: WorkerParts) {
    this.#parts = parts;
  }

  async start(): Promise<void> {
    const { port, metrics } = this.#parts;
    await port.open();
    process.on('message', (message: MessageToWorker, socket?: Socket) => {
      this.#handle(message, socket);
    });
    // Nothing else keeps a worker without connections alive.
    process.channel?.ref();
    metrics.setScrape(() => this.#scrape());
    this.#post({ type: 'state', isReady: false });
    this.#readyTimer = setInterval(() => this.#reportReady(), READY_POLL_MS).unref();
  }

  /** Tells the main process that this one accepts no more connections. */
  leave(): void {
    this.#isLeaving = true;
    clearInterval(this.#readyTimer);
    this.#post({ type: 'leaving' });
    process.channel?.unref();
  }

  /** Reloads all workers. @throws CubeError why their previous files stay active */
  async reload(): Promise<void> {
    const id = ++this.#lastId;
    const error = await new Promise<CubeError | undefined>((resolve) => {
      this.#reloads.set(id, resolve);
      this.#post({ type: 'reload', id });
    });
    if (error !== undefined) throw error;
  }

  /** The pipeline with the figures of all workers. */
  async describe(): Promise<PipelineDescription> {
    const own = this.#parts.history.describe();
    if (this.#isLeaving || !process.connected) return own;
    const id = ++this.#lastId;
    const all = await new Promise<readonly object[]>((resolve) => {
      this.#descriptions.set(id, resolve);
      this.#post({ type: 'describe', id });
    });
    return mergeDescriptions(own, all as readonly PipelineDescription[]);
  }

  #post(message: MessageFromWorker): void {
    if (process.connected) process.send?.(message, undefined, undefined, () => undefined);
  }

  #reportReady(): void {
    if (!this.#parts.isReady()) return;
    clearInterval(this.#readyTimer);
    this.#post({ type: 'state', isReady: true });
  }

  #handle(message: MessageToWorker, socket: Socket | undefined): void {
    if (message.type === 'connection') {
      // A connection that was closed on the way comes without its socket.
      if (this.#isLeaving) socket?.destroy();
      else if (socket !== undefined) this.#parts.port.adopt(socket);
      this.#post({ type: 'taken', id: message.id });
    } else if (message.type === 'collect') {
      void this.#sendPart(message);
    } else if (message.type === 'metrics') {
      this.#scrapes.get(message.id)?.(message.text);
      this.#scrapes.delete(message.id);
    } else if (message.type === 'described') {
      this.#descriptions.get(message.id)?.(message.pipelines);
      this.#descriptions.delete(message.id);
    } else if (message.type === 'reloaded') {
      const { id, error } = message;
      this.#reloads.get(id)?.(error && new CubeError(error.code, error.message));
      this.#reloads.delete(id);
    } else {
      void this.#handleReload(message);
    }
  }

  async #sendPart({ id, part }: Extract<MessageToWorker, { type: 'collect' }>): Promise<void> {
    const { metrics, history } = this.#parts;
    const values = part === 'metrics' ? await metrics.values() : history.describe();
    this.#post({ type: 'values', id, values });
  }

  async #handleReload(
    message: Extract<MessageToWorker, { type: 'prepare' | 'commit' | 'discard' }>,
  ): Promise<void> {
    const { graphs } = this.#parts;
    if (message.type === 'prepare') {
      const { id } = message;
      try {
        this.#prepared = await graphs.prepare();
        this.#post({ type: 'prepared', id });
      } catch (thrown) {
        const { code, message: text } = CubeError.from(thrown);
        this.#post({ type: 'prepared', id, error: { code, message: text } });
      }
      return;
    }
    const prepared = this.#prepared;
    this.#prepared = undefined;
    if (message.type === 'commit') prepared?.commit();
    else if (prepared !== undefined) await prepared.discard(message.problem);
  }

  #scrape(): Promise<string> {
    const id = ++this.#lastId;
    return new Promise((resolve) => {
      this.#scrapes.set(id, resolve);
      this.#post({ type: 'scrape', id });
    });
  }
}

/** Sums of worker processes, which may differ in ops for a moment. @param own decides the ops */
function mergeDescriptions(
  own: PipelineDescription,
  all: readonly PipelineDescription[],
): PipelineDescription {
  const running = all.reduce((sum, one) => sum + one.running, 0);
  const ops = own.ops.map((op) => {
    const same = all.flatMap((one) => one.ops.find(({ name }) => name === op.name) ?? []);
    const sum = (count: (one: OpStatus) => number): number =>
      same.reduce((total, one) => total + count(one), 0);
    return {
      ...op,
      concurrency: sum(({ concurrency }) => concurrency),
      requests: sum(({ requests }) => requests),
      executions: sum(({ executions }) => executions),
      busyMs: sum(({ busyMs }) => busyMs),
      running: sum((one) => one.running),
      queued: sum(({ queued }) => queued),
      queueCapacity: sum(({ queueCapacity }) => queueCapacity),
      restarts: sum(({ restarts }) => restarts),
    };
  });
  return { running, ops };
}
