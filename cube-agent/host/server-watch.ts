/** What the host's cube-servers say of themselves, asked once for all bundles; a silent one counts as it last was. */
import { CubeError } from '../../lib/core/errors.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { ControlStatus } from '../../proto/control.ts';
import type { ControlClient } from '../fleet/control-client.ts';
import type { ServerState } from './plan.ts';
import type { Problems } from './problems.ts';

export interface ServerWatchOptions {
  readonly servers: readonly ControlClient[];
  readonly problems: Problems;
  readonly clock: Clock;
  readonly logger: Logger;
  /** A server answers that is a new process, or that was away. */
  readonly onBack: (address: string) => void;
}

export interface KnownServer {
  readonly address: string;
  readonly status: ControlStatus;
  /** False: this is what it last said. */
  readonly answers: boolean;
  /** It answers, and was asked since the agent last changed it: only then may a plan build on what it said. */
  readonly isCurrent: boolean;
}

export class ServerWatch {
  readonly #options: ServerWatchOptions;
  readonly #known = new Map<string, Omit<KnownServer, 'isCurrent'>>();
  /** Servers that were asked and have not answered yet: one that hangs must not hold up the others. */
  readonly #asking = new Map<string, Promise<void>>();
  /** Servers that have changed since they were last asked: what is known of them is from before. */
  readonly #changed = new Set<string>();

  constructor(options: ServerWatchOptions) {
    this.#options = options;
  }

  /** Every server has answered at least once. */
  get allKnown(): boolean {
    return this.#known.size === this.#options.servers.length;
  }

  get known(): readonly KnownServer[] {
    return [...this.#known.values()].map((server) => {
      const answers = server.answers && !this.#asking.has(server.address);
      return { ...server, answers, isCurrent: answers && !this.#changed.has(server.address) };
    });
  }

  /** Something was done on it: no answer counts whose question was asked before. */
  changed(address: string): void {
    this.#changed.add(address);
  }

  /** Resolves when those asked now have answered; whoever hangs is not asked a second time meanwhile. */
  async ask(signal: AbortSignal): Promise<void> {
    for (const server of this.#options.servers) {
      const { address } = server;
      if (this.#asking.has(address)) continue;
      const asking = this.#readUnchanged(server, signal).finally(() =>
        this.#asking.delete(address),
      );
      this.#asking.set(address, asking);
    }
    await Promise.all(this.#asking.values());
  }

  /** Asks again as long as the server changes while it answers. */
  async #readUnchanged(server: ControlClient, signal: AbortSignal): Promise<void> {
    do {
      this.#changed.delete(server.address);
      await this.#readStatus(server, signal);
    } while (this.#changed.has(server.address) && !signal.aborted);
  }

  async #readStatus(server: ControlClient, signal: AbortSignal): Promise<void> {
    const { address } = server;
    const { problems, logger, onBack } = this.#options;
    const what = `ask server ${address}`;
    const known = this.#known.get(address);
    try {
      const status = await server.status(signal);
      const { pid, shardIndex, shardNum } = status;
      const isBack = problems.clear(what);
      if (known?.status.pid !== pid || isBack) {
        onBack(address);
        logger.info({ server: address, shardIndex, shardNum, serverPid: pid }, 'server answers');
      }
      this.#known.set(address, { address, status, answers: true });
    } catch (error) {
      if (signal.aborted) return;
      if (known !== undefined) this.#known.set(address, { ...known, answers: false });
      const { code, message } = CubeError.from(error);
      if (problems.add(what, error)) logger.warn({ code, error: message }, `cannot ${what}`);
    }
  }
}

/** What a server says of one bundle. @param loading a load of it that this agent itself has under way there */
export function serverState(
  { address, status, isCurrent }: KnownServer,
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
    held: (entry?.versions ?? []).map(({ version, idleMs }) => ({ version, idleMs })),
    loading: loading === undefined ? loads : [...loads, loading],
    answers: isCurrent,
  };
}
