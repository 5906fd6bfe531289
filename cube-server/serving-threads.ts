/**
 * The additional serving threads. Their desired state is kept here, so that a replacement for a
 * dead thread gets all of it. A command is done when every live thread has done it: a dead one no
 * longer reads memory.
 */

import { Worker } from 'node:worker_threads';
import { CubeError, type ErrorCode } from '../lib/core/errors.ts';
import { versionKey } from '../lib/core/names.ts';
import { systemClock } from '../lib/platform/clock.ts';
import type { Logger } from '../lib/platform/logs.ts';
import type { ResidentStore } from '../lib/store/resident-store.ts';
import type { SharedVersion } from '../lib/store/shared-version.ts';
import type { VersionRequest } from '../proto/control.ts';
import type { LoadedVersions } from './loaded-versions.ts';
import type {
  HttpCall,
  HttpResult,
  MessageFromThread,
  MessageToThread,
  ThreadCommand,
  ThreadLookupCount,
  ThreadOptions,
} from './thread-protocol.ts';
import type { ServingThreads } from './version-control.ts';

const RESTART_MS = 1000;
/** Response to forwarded calls while stopping. */
const STOPPING: HttpResult = {
  status: 503,
  headers: { 'content-type': 'application/json' },
  body: new TextEncoder().encode('{"code":"STOPPING","error":"the server is stopping"}'),
};

export interface ServingThreadPoolOptions {
  /** Number of threads besides the main one. */
  readonly count: number;
  readonly threadOptions: Omit<ThreadOptions, 'thread'>;
  readonly store: ResidentStore;
  readonly versions: LoadedVersions;
  /** Handles calls that a thread forwards. */
  readonly handleCall: (call: HttpCall) => Promise<HttpResult>;
  readonly logger: Logger;
}

interface PendingCommand {
  readonly resolve: (answer: unknown) => void;
  readonly reject: (error: CubeError) => void;
}

/** One thread and its pending commands. */
class ServingThread {
  readonly #worker: Worker;
  readonly #pending = new Map<number, PendingCommand>();
  readonly ended: Promise<void>;
  #lastId = 0;
  #alive = true;

  constructor(
    options: ThreadOptions,
    answer: ServingThreadPoolOptions['handleCall'],
    logger: Logger,
  ) {
    const { thread } = options;
    const worker = new Worker(new URL('./serving-worker.js', import.meta.url), {
      name: `serving-${thread}`,
      workerData: options,
    });
    this.#worker = worker;
    worker.on('message', (message: MessageFromThread) => {
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
        // A thread that has ended no longer uses anything it was told to remove.
        for (const { resolve: done } of this.#pending.values()) done(undefined);
        this.#pending.clear();
        resolve();
      });
    });
  }

  /** @returns undefined from a thread that has ended */
  send(command: ThreadCommand): Promise<unknown> {
    if (!this.#alive) return Promise.resolve(undefined);
    const id = ++this.#lastId;
    return new Promise((resolve, reject) => {
      this.#pending.set(id, { resolve, reject });
      this.#worker.postMessage({ type: 'command', id, command } satisfies MessageToThread);
    });
  }

  #post(id: number, result: HttpResult): void {
    if (this.#alive)
      this.#worker.postMessage({ type: 'result', id, result } satisfies MessageToThread);
  }

  #settle(message: Exclude<MessageFromThread, { type: 'call' }>): void {
    const pending = this.#pending.get(message.id);
    this.#pending.delete(message.id);
    if (message.type === 'done') pending?.resolve(message.answer);
    else pending?.reject(new CubeError(message.code as ErrorCode, message.message));
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

  async addVersion(request: VersionRequest): Promise<void> {
    const shared = this.#options.store.share(request.bundle, request.version);
    this.#versions.set(versionKey(request), shared);
    try {
      await this.#sendToAll({ kind: 'add', shared });
    } catch (error) {
      await this.removeVersion(request);
      throw error;
    }
  }

  async activate(request: VersionRequest): Promise<void> {
    this.#active.set(request.bundle, request);
    await this.#sendToAll({ kind: 'activate', request });
  }

  async removeVersion(request: VersionRequest): Promise<void> {
    this.#versions.delete(versionKey(request));
    await this.#sendToAll({ kind: 'remove', request });
  }

  async drain(draining: boolean): Promise<void> {
    this.#draining = draining;
    await this.#sendToAll({ kind: 'drain', draining });
  }

  async updateLastUsed(): Promise<void> {
    const answers = (await this.#sendToAll({ kind: 'count-lookups' })) as (
      | ThreadLookupCount[]
      | undefined
    )[];
    for (const use of answers.flatMap((uses) => uses ?? [])) {
      const version = this.#options.versions.find(use);
      if (version !== undefined) version.lookups += use.lookups;
    }
  }

  /** Metric values of each thread. */
  async metrics(): Promise<object[]> {
    const answers = await this.#sendToAll({ kind: 'metrics' });
    return answers.filter((values): values is object => typeof values === 'object');
  }

  async stop(): Promise<void> {
    this.#stopping = true;
    await this.#sendToAll({ kind: 'stop' });
    await Promise.all(this.#threads.map(({ ended }) => ended));
  }

  /** Brings a thread to the desired state before it listens. */
  async #start(number: number): Promise<void> {
    const { threadOptions, handleCall, logger } = this.#options;
    const thread = new ServingThread({ ...threadOptions, thread: number }, handleCall, logger);
    this.#threads[number - 1] = thread;
    const commands: ThreadCommand[] = [
      ...[...this.#versions.values()].map((shared): ThreadCommand => ({ kind: 'add', shared })),
      ...[...this.#active.values()].map(
        (request): ThreadCommand => ({ kind: 'activate', request }),
      ),
      { kind: 'drain', draining: this.#draining } as const,
      { kind: 'listen' } as const,
    ];
    try {
      // Posted together, so that later commands are processed after these.
      await Promise.all(commands.map((command) => thread.send(command)));
    } catch (error) {
      void thread.send({ kind: 'stop' });
      throw error;
    }
    void thread.ended.then(() => this.#restart(number));
  }

  async #restart(number: number): Promise<void> {
    const { logger } = this.#options;
    while (!this.#stopping) {
      logger.error({ thread: number }, 'serving thread ended; restarting it');
      await systemClock.sleep(RESTART_MS);
      if (this.#stopping) return;
      try {
        await this.#start(number);
        logger.info({ thread: number }, 'serving thread restarted');
        return;
      } catch (error) {
        logger.error({ err: error, thread: number }, 'serving thread did not start; retrying');
      }
    }
  }

  #sendToAll(command: ThreadCommand): Promise<unknown[]> {
    return Promise.all(this.#threads.map((thread) => thread.send(command)));
  }
}
