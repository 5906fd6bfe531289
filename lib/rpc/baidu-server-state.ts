/**
 * The state that all baidu_std connections of a server share: routes, limits, buffers and counters.
 */
import type { AccessGate } from '../access/access-gate.ts';
import { CubeError } from '../core/errors.ts';
import type { ServerLimits } from '../core/limits.ts';
import type { Logger } from '../platform/logs.ts';
import { BufferPool } from './buffer-pool.ts';
import { RpcResponse, RpcRoutes } from './rpc-routes.ts';

export class BaiduServerState {
  readonly routes: RpcRoutes;
  readonly limits: ServerLimits;
  readonly logger: Logger;
  /** Checks every call; absent: every caller may call every method. */
  readonly gate: AccessGate | undefined;
  readonly bufferPool: BufferPool = new BufferPool();
  readonly response: RpcResponse = new RpcResponse();
  /** Bytes written to sockets and not yet accepted by the kernel. */
  unsentBytes = 0;
  /** Bytes of frames received in part. */
  unfinishedFrameBytes = 0;
  /**
   * Memory of the connections' input buffers, which hold unfinished frames and are kept for later
   * ones.
   */
  inputBufferBytes = 0;
  /** New calls are rejected, because the process is stopping. */
  isStopping = false;
  /** Calls of unknown methods. */
  unknownMethodCalls = 0;
  /** Connections closed because their bytes were not baidu_std or exceeded a limit. */
  brokenConnections = 0;
  callsUntilSample: number = RpcRoutes.sampleInterval;
  #callsInFlight = 0;
  #onIdle: (() => void) | undefined;

  constructor(routes: RpcRoutes, limits: ServerLimits, logger: Logger, gate?: AccessGate) {
    this.gate = gate;
    this.routes = routes;
    this.limits = limits;
    this.logger = logger;
  }

  /** Calls whose responses are deferred. */
  get callsInFlight(): number {
    return this.#callsInFlight;
  }

  /** @throws CubeError OVERLOADED */
  beginDeferredCall(): void {
    const { callsInFlight } = this.limits;
    if (this.#callsInFlight >= callsInFlight) {
      throw new CubeError(
        'OVERLOADED',
        `${this.#callsInFlight} calls are in flight already; ` +
          'try again later or call another replica',
      );
    }
    this.#callsInFlight++;
  }

  endDeferredCall(): void {
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
