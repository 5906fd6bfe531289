/**
 * The threads that serve beside the main one. What they shall hold is kept here, so that one that died is started
 * again with all of it. An order is done when every living thread has done it: a dead one reads no memory any more.
 */
import { Worker } from 'node:worker_threads';
import { CubeError, type ErrorCode } from '../lib/core/errors.ts';
import { systemClock } from '../lib/platform/clock.ts';
import type { Logger } from '../lib/platform/logs.ts';
import type { ResidentStore } from '../lib/store/resident-store.ts';
import type { SharedVersion } from '../lib/store/shared-version.ts';
import type { VersionRequest } from '../proto/control.ts';
import type { HeldVersions } from './held-versions.ts';
import type {
  FromThread,
  HttpCall,
  HttpResult,
  ThreadOptions,
  ThreadOrder,
  ThreadUse,
  ToThread,
} from './thread-protocol.ts';
import type { ServingThreads } from './version-control.ts';

const RESTART_MS = 1000;
/** What a thread hands on is not answered any more. */
const STOPPING: HttpResult = {
  status: 503,
  headers: { 'content-type': 'application/json' },
  body: new TextEncoder().encode('{"code":"STOPPING","error":"the server is stopping"}'),
};

export interface ServingThreadPoolOptions {
  /** Beside the main one. */
  readonly count: number;
  readonly each: Omit<ThreadOptions, 'thread'>;
  readonly store: ResidentStore;
  readonly held: HeldVersions;
  /** Answers what a thread hands on. */
  readonly answer: (call: HttpCall) => Promise<HttpResult>;
  readonly logger: Logger;
}

interface Waiting {
  readonly resolve: (answer: unknown) => void;
  readonly reject: (error: CubeError) => void;
}

/** One thread and what it was asked. */
class ServingThread {
  readonly #worker: Worker;
  readonly #waiting = new Map<number, Waiting>();
  readonly ended: Promise<void>;
  #lastId = 0;
  #alive = true;

  constructor(options: ThreadOptions, answer: ServingThreadPoolOptions['answer'], logger: Logger) {
    const { thread } = options;
    const worker = new Worker(new URL('./serving-worker.js', import.meta.url), {
      ...{ name: `serving-${thread}`, workerData: options },
    });
    this.#worker = worker;
    worker.on('message', (message: FromThread) => {
      if (message.type !== 'call') this.#settle(message);
      else {
        void answer(message.call)
          .catch(() => STOPPING)
          .then((result) => this.#post(message.id, result));
      }
    });
    worker.on('error', (error) => logger.error({ err: error, thread }, 'serving thread failed'));
    this.ended = new Promise((resolve) => {
      worker.on('exit', () => {
        this.#alive = false;
        // Whatever it was told to stop using, it has stopped using.
        for (const { resolve: done } of this.#waiting.values()) done(undefined);
        this.#waiting.clear();
        resolve();
      });
    });
  }

  /** @returns undefined from a thread that has ended */
  order(order: ThreadOrder): Promise<unknown> {
    if (!this.#alive) return Promise.resolve(undefined);
    const id = ++this.#lastId;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.#worker.postMessage({ type: 'order', id, order } satisfies ToThread);
    });
  }

  #post(id: number, result: HttpResult): void {
    if (this.#alive) this.#worker.postMessage({ type: 'result', id, result } satisfies ToThread);
  }

  #settle(message: Exclude<FromThread, { type: 'call' }>): void {
    const waiting = this.#waiting.get(message.id);
    this.#waiting.delete(message.id);
    if (message.type === 'done') waiting?.resolve(message.answer);
    else waiting?.reject(new CubeError(message.code as ErrorCode, message.message));
  }
}

export class ServingThreadPool implements ServingThreads {
  readonly #options: ServingThreadPoolOptions;
  readonly #threads: ServingThread[] = [];
  readonly #versions = new Map<string, SharedVersion>();
  readonly #active = new Map<string, VersionRequest>();
  #draining = false;
  #stopping = false;

  constructor(options: ServingThreadPoolOptions) {
    this.#options = options;
  }

  /** @throws CubeError IO when a thread cannot listen */
  async start(): Promise<void> {
    const numbers = Array.from({ length: this.#options.count }, (_, i) => i + 1);
    await Promise.all(numbers.map((thread) => this.#start(thread)));
  }

  async hold(request: VersionRequest): Promise<void> {
    const shared = this.#options.store.share(request.bundle, request.version);
    this.#versions.set(nameOf(request), shared);
    try {
      await this.#orderAll({ kind: 'hold', shared });
    } catch (error) {
      await this.drop(request);
      throw error;
    }
  }

  async activate(request: VersionRequest): Promise<void> {
    this.#active.set(request.bundle, request);
    await this.#orderAll({ kind: 'activate', request });
  }

  async drop(request: VersionRequest): Promise<void> {
    this.#versions.delete(nameOf(request));
    await this.#orderAll({ kind: 'drop', request });
  }

  async drain(draining: boolean): Promise<void> {
    this.#draining = draining;
    await this.#orderAll({ kind: 'drain', draining });
  }

  async observeUse(): Promise<void> {
    const answers = (await this.#orderAll({ kind: 'observe' })) as (ThreadUse[] | undefined)[];
    for (const use of answers.flatMap((uses) => uses ?? [])) {
      const version = this.#options.held.find(use);
      if (version !== undefined) version.lookups += use.lookups;
    }
  }

  /** Metric values of each thread. */
  async metrics(): Promise<object[]> {
    const answers = await this.#orderAll({ kind: 'metrics' });
    return answers.filter((values): values is object => typeof values === 'object');
  }

  async stop(): Promise<void> {
    this.#stopping = true;
    await this.#orderAll({ kind: 'stop' });
    await Promise.all(this.#threads.map(({ ended }) => ended));
  }

  /** With everything that it shall hold, before it listens. */
  async #start(number: number): Promise<void> {
    const { each, answer, logger } = this.#options;
    const thread = new ServingThread({ ...each, thread: number }, answer, logger);
    this.#threads[number - 1] = thread;
    const orders: ThreadOrder[] = [
      ...[...this.#versions.values()].map((shared): ThreadOrder => ({ kind: 'hold', shared })),
      ...[...this.#active.values()].map((request): ThreadOrder => ({ kind: 'activate', request })),
      ...[{ kind: 'drain', draining: this.#draining } as const, { kind: 'listen' } as const],
    ];
    try {
      // Posted in one go: what is ordered from now on comes after.
      await Promise.all(orders.map((order) => thread.order(order)));
    } catch (error) {
      void thread.order({ kind: 'stop' });
      throw error;
    }
    void thread.ended.then(() => this.#restart(number));
  }

  async #restart(number: number): Promise<void> {
    const { logger } = this.#options;
    while (!this.#stopping) {
      logger.error({ thread: number }, 'a serving thread ended; starting it again');
      await systemClock.sleep(RESTART_MS);
      if (this.#stopping) return;
      try {
        await this.#start(number);
        logger.info({ thread: number }, 'serving thread started again');
        return;
      } catch (error) {
        logger.error({ err: error, thread: number }, 'a serving thread does not start');
      }
    }
  }

  #orderAll(order: ThreadOrder): Promise<unknown[]> {
    return Promise.all(this.#threads.map((thread) => thread.order(order)));
  }
}

function nameOf({ bundle, version }: VersionRequest): string {
  return `${bundle}/${version}`;
}
