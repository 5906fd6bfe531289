/**
 * The state of the host's cube-servers, polled once for all bundles. A server that does not answer
 * keeps its last known state.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { ControlStatus } from '../../proto/control.ts';
import type { ControlClient } from '../fleet/control-client.ts';
import { describeOperation, type Operation } from '../fleet/problem.ts';
import type { ServerState } from './plan.ts';
import type { ProblemTracker } from './problem-tracker.ts';

export interface ServerMonitorOptions {
  readonly servers: readonly ControlClient[];
  readonly problems: ProblemTracker;
  readonly clock: Clock;
  readonly logger: Logger;
  /** Called when a server answers as a new process, or again after it did not answer. */
  readonly onReturn: (address: string) => void;
}

export interface ServerSnapshot {
  readonly address: string;
  readonly status: ControlStatus;
  /** False: `status` is the last answer of a server that does not answer now. */
  readonly answers: boolean;
  /** The server answers and was polled after its last change: only then may a plan build on it. */
  readonly isCurrent: boolean;
}

export class ServerMonitor {
  readonly #options: ServerMonitorOptions;
  readonly #known = new Map<string, Omit<ServerSnapshot, 'isCurrent'>>();
  /** Requests without an answer yet: a server that hangs must not delay the others. */
  readonly #pending = new Map<string, Promise<void>>();
  /** Servers that were changed since they were last polled: their known state is outdated. */
  readonly #changed = new Set<string>();

  constructor(options: ServerMonitorOptions) {
    this.#options = options;
  }

  /** Every server has answered at least once. */
  get hasSeenAll(): boolean {
    return this.#known.size === this.#options.servers.length;
  }

  /** Servers that the last request did not reach, or that never answered; not those that hang. */
  get #unreachable(): ControlClient[] {
    return this.#options.servers.filter(
      ({ address }) => !this.#pending.has(address) && this.#known.get(address)?.answers !== true,
    );
  }

  get hasUnreachable(): boolean {
    return this.#unreachable.length > 0;
  }

  get snapshots(): readonly ServerSnapshot[] {
    return [...this.#known.values()].map((server) => {
      const answers = server.answers && !this.#pending.has(server.address);
      return { ...server, answers, isCurrent: answers && !this.#changed.has(server.address) };
    });
  }

  /**
   * Call this after an action on a server: answers to earlier requests do not count any more.
   * @param status as of the end of the action; without it the server must be asked again
   */
  recordAction(address: string, status: ControlStatus | undefined): void {
    const known = this.#known.get(address);
    // Otherwise the server has restarted or was not reached since it answered.
    const isNewest = known?.answers === true && known.status.pid === status?.pid;
    if (isNewest && status !== undefined) this.#known.set(address, { ...known, status });
    if (!isNewest || this.#pending.has(address)) this.#changed.add(address);
  }

  /** Resolves when all servers have answered. A server that hangs has one request at a time. */
  async poll(signal: AbortSignal): Promise<void> {
    for (const server of this.#options.servers) void this.#request(server, signal);
    await Promise.all(this.#pending.values());
  }

  /** Asks only servers that were changed since they were last asked, and waits for those. */
  async pollChanged(signal: AbortSignal): Promise<void> {
    const changed = this.#options.servers.filter(({ address }) => this.#changed.has(address));
    await Promise.all(changed.map((server) => this.#request(server, signal)));
  }

  /** Asks only servers that cannot be reached. @returns whether one of them has answered */
  async pollUnreachable(signal: AbortSignal): Promise<boolean> {
    const servers = this.#unreachable;
    await Promise.all(servers.map((server) => this.#request(server, signal)));
    return servers.some(({ address }) => this.#known.get(address)?.answers === true);
  }

  #request(server: ControlClient, signal: AbortSignal): Promise<void> {
    const { address } = server;
    const pending = this.#pending.get(address);
    if (pending !== undefined) return pending;
    const request = this.#readUnchanged(server, signal).finally(() =>
      this.#pending.delete(address),
    );
    this.#pending.set(address, request);
    return request;
  }

  /** Repeats the request as long as the server is changed while it answers. */
  async #readUnchanged(server: ControlClient, signal: AbortSignal): Promise<void> {
    do {
      this.#changed.delete(server.address);
      await this.#readStatus(server, signal);
    } while (this.#changed.has(server.address) && !signal.aborted);
  }

  async #readStatus(server: ControlClient, signal: AbortSignal): Promise<void> {
    const { address } = server;
    const { problems, logger, onReturn } = this.#options;
    const operation: Operation = { action: 'contact-server', server: address };
    const known = this.#known.get(address);
    try {
      const status = await server.status(signal);
      const { pid, shardIndex, shardNum } = status;
      const wasUnreachable = problems.resolve(operation);
      if (known?.status.pid !== pid || wasUnreachable) {
        onReturn(address);
        logger.info({ server: address, shardIndex, shardNum, serverPid: pid }, 'server answers');
      }
      this.#known.set(address, { address, status, answers: true });
    } catch (error) {
      if (signal.aborted) return;
      if (known !== undefined) this.#known.set(address, { ...known, answers: false });
      const { code, message } = CubeError.from(error);
      if (!problems.record(operation, error)) return;
      logger.warn({ code, error: message, ...operation }, `cannot ${describeOperation(operation)}`);
    }
  }
}

/**
 * The state of a server for one bundle.
 * @param loading the version of the bundle that this agent is loading there
 */
export function toServerState(
  { address, status, isCurrent }: ServerSnapshot,
  bundle: string,
  loading: string | undefined,
): ServerState {
  const entry = status.bundles.find((candidate) => candidate.bundle === bundle);
  const loads = status.loading.filter((load) => load.bundle === bundle).map((load) => load.version);
  return {
    address,
    shardIndex: status.shardIndex,
    shardNum: status.shardNum,
    active: entry === undefined || entry.active === '' ? undefined : entry.active,
    loaded: (entry?.versions ?? []).map(({ version, idleMs }) => ({ version, idleMs })),
    loading: loading === undefined ? loads : [...loads, loading],
    isCurrent,
  };
}
