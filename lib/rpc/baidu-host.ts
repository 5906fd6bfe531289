/** What all baidu_std connections of a server share: routes, limits, buffers, and the counts that the limits bound. */
import { CubeError } from '../core/errors.ts';
import type { ServerLimits } from '../core/limits.ts';
import type { Logger } from '../platform/logs.ts';
import { BufferPool } from './buffer-pool.ts';
import { RpcResponse, RpcRoutes } from './rpc-routes.ts';

export class BaiduHost {
  readonly routes: RpcRoutes;
  readonly limits: ServerLimits;
  readonly logger: Logger;
  readonly pool: BufferPool = new BufferPool();
  readonly response: RpcResponse = new RpcResponse();
  /** Bytes given to sockets and not yet taken by the kernel. */
  unsentBytes = 0;
  /** Bytes of unfinished frames. */
  gatheredBytes = 0;
  /** Memory that connections hold for unfinished frames, and keep for the next. */
  heldBytes = 0;
  /** New calls are refused: the process is about to end. */
  stopping = false;
  /** Calls to methods that nobody serves. */
  unknownCalls = 0;
  /** Connections ended because their bytes were no baidu_std or over a limit. */
  brokenConnections = 0;
  untilSample: number = RpcRoutes.sampleEvery;
  #callsInFlight = 0;
  #onIdle: (() => void) | undefined;

  constructor(routes: RpcRoutes, limits: ServerLimits, logger: Logger) {
    this.routes = routes;
    this.limits = limits;
    this.logger = logger;
  }

  /** Calls whose answers are deferred. */
  get callsInFlight(): number {
    return this.#callsInFlight;
  }

  /** @throws CubeError OVERLOADED */
  beginDeferred(): void {
    const { callsInFlight } = this.limits;
    if (this.#callsInFlight >= callsInFlight) {
      throw new CubeError(
        'OVERLOADED',
        `${this.#callsInFlight} calls are being answered already; try again later or another replica`,
      );
    }
    this.#callsInFlight++;
  }

  endDeferred(): void {
    this.#callsInFlight--;
    if (this.#callsInFlight === 0) this.#onIdle?.();
  }

  /** Resolves when no call is in flight, or after `waitMs`. */
  async drain(waitMs: number): Promise<void> {
    if (this.#callsInFlight === 0) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, waitMs);
      this.#onIdle = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
