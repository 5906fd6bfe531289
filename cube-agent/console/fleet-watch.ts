/**
 * The servers of a fleet as the console shows them. They are only asked while a page is open, each
 * at most once at a time: a server that hangs delays no other.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { type Clock, systemClock } from '../../lib/platform/clock.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';
import { callText } from '../../lib/rpc/json-call.ts';
import type { ControlStatus } from '../../proto/control.ts';
import { ControlClient } from '../fleet/control-client.ts';
import type { ServerLocation } from '../fleet/fleet-view.ts';

/** Later answers count from the next read on. */
const WAIT_MS = 800;
const METRICS_TIMEOUT_MS = 2_000;
const REQUESTS_METRIC = /^hypercube_requests_total(?:\{[^}]*\})? (\S+)/gm;

interface WatchedServer {
  status?: ControlStatus;
  /** Why the server does not answer; undefined: it does. */
  error: string | undefined;
  /** The last of these errors, also when the server answers again. */
  lastError?: { readonly message: string; readonly at: string };
  requests?: { readonly count: number; readonly atMs: number };
  requestRate?: number;
  pending?: Promise<void> | undefined;
}

export class FleetWatch {
  readonly #locations: () => readonly ServerLocation[];
  readonly #credentials: Credentials;
  readonly #clock: Clock;
  readonly #servers = new Map<string, WatchedServer>();
  #known: readonly ServerLocation[] = [];

  constructor(
    locations: () => readonly ServerLocation[],
    credentials: Credentials,
    clock: Clock = systemClock,
  ) {
    this.#locations = locations;
    this.#credentials = credentials;
    this.#clock = clock;
  }

  /** The state of each server, as JSON. Never throws for a server that does not answer. */
  async read(): Promise<object[]> {
    const locations = this.#locate();
    const requests = locations.map(({ address }) => {
      const server = this.#servers.get(address) ?? { error: undefined };
      this.#servers.set(address, server);
      server.pending ??= this.#ask(address, server).finally(() => {
        server.pending = undefined;
      });
      return server.pending;
    });
    const wait = new AbortController();
    await Promise.race([Promise.all(requests), this.#clock.sleep(WAIT_MS, wait.signal)]);
    wait.abort();
    return locations.map((location) => this.#describe(location));
  }

  /** A fleet file that cannot be read changes nothing: doctor and the rollout report it. */
  #locate(): readonly ServerLocation[] {
    try {
      this.#known = [...new Map(this.#locations().map((at) => [at.address, at])).values()];
    } catch {
      return this.#known;
    }
    return this.#known;
  }

  async #ask(address: string, server: WatchedServer): Promise<void> {
    try {
      server.status = await new ControlClient(address, this.#credentials).status();
      server.error = undefined;
      await this.#readRequests(address, server).catch(() => undefined);
    } catch (error) {
      const { message } = CubeError.from(error);
      if (server.error !== message) server.lastError = { message, at: this.#clock.isoTime() };
      server.error = message;
      delete server.requests;
      delete server.requestRate;
    }
  }

  async #readRequests(address: string, server: WatchedServer): Promise<void> {
    const peer = { address, credentials: this.#credentials, role: 'cube-server' };
    const { text } = await callText(peer, '/metrics', { timeoutMs: METRICS_TIMEOUT_MS });
    let count = 0;
    for (const [, value] of text.matchAll(REQUESTS_METRIC)) count += Number(value);
    const atMs = this.#clock.nowMs();
    const last = server.requests;
    if (last !== undefined) {
      server.requestRate = Math.max(0, ((count - last.count) * 1_000) / (atMs - last.atMs));
    }
    server.requests = { count, atMs };
  }

  #describe({ address, shard }: ServerLocation): object {
    const { status, error, lastError, pending, requestRate } = this.#servers.get(address) ?? {
      error: undefined,
    };
    const hangs = pending === undefined ? undefined : 'it has not answered yet';
    const problem = error ?? hangs;
    return {
      address,
      shard: shard?.index ?? status?.shardIndex,
      shardNum: shard?.shardNum ?? status?.shardNum,
      answers: problem === undefined && status !== undefined,
      error: problem,
      lastError,
      ready: status?.ready ?? false,
      draining: status?.draining ?? false,
      pid: status?.pid,
      usedBytes: status?.memory.usedBytes,
      budgetBytes: status?.memory.budgetBytes,
      requestRate: requestRate === undefined ? undefined : Number(requestRate.toPrecision(3)),
      bundles: (status?.bundles ?? []).map(({ bundle, active, versions }) => ({
        bundle,
        active,
        versions: versions.map(({ version, rows, bytes, layers }) => {
          return { version, rows, bytes, layers };
        }),
      })),
      loading: status?.loading ?? [],
      failed: status?.failed ?? [],
    };
  }
}
