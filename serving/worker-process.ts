/**
 * A worker process of serving: it accepts the connections that the main process hands over, and
 * answers a scrape of metrics with those of all workers.
 */
import type { Socket } from 'node:net';
import type { OnePortServer } from '../lib/rpc/one-port-server.ts';
import type { ServingMetrics } from './metrics/serving-metrics.ts';
import type { MessageFromWorker, MessageToWorker } from './worker-messages.ts';

const READY_POLL_MS = 50;

export interface WorkerParts {
  readonly port: OnePortServer;
  readonly metrics: ServingMetrics;
  readonly isReady: () => boolean;
}

export class WorkerProcess {
  readonly #parts: WorkerParts;
  readonly #scrapes: Map<number, (text: string) => void> = new Map();
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
    } else if (message.type === 'collect') {
      const { id } = message;
      void this.#parts.metrics
        .values()
        .then((values) => this.#post({ type: 'values', id, values }));
    } else if (message.type === 'metrics') {
      this.#scrapes.get(message.id)?.(message.text);
      this.#scrapes.delete(message.id);
    }
  }

  #scrape(): Promise<string> {
    const id = ++this.#lastId;
    return new Promise((resolve) => {
      this.#scrapes.set(id, resolve);
      this.#post({ type: 'scrape', id });
    });
  }
}
