/**
 * The agent of one host: poll the repository and the servers, reconcile every bundle, repeat. The
 * answer of an action says what state it left the server in, so no server is asked again after it;
 * actions that end at about the same time are followed by one plan. A repository or server that
 * does not answer delays nothing: after a short wait the agent continues with the last known state.
 */

import { CubeError } from '../../lib/core/errors.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Stoppable } from '../../lib/platform/lifecycle.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';
import { ControlClient } from '../fleet/control-client.ts';
import type { AgentConfig } from './agent-config.ts';
import { BundleReconciler, type CopyLayer } from './bundle-reconciler.ts';
import { HostData } from './host-data.ts';
import { LayerFetcher } from './layer-fetcher.ts';
import { ProblemTracker } from './problem-tracker.ts';
import { ServerMonitor } from './server-monitor.ts';
import { ServerProcesses } from './server-processes.ts';
import { TaskQueue } from './task-queue.ts';

export interface AgentOptions {
  readonly config: AgentConfig;
  /** Called until it succeeds: the repository may be unavailable when the agent starts. */
  readonly openRepository: () => Repository;
  /** For calls to the servers. */
  readonly credentials: Credentials;
  /** Copies a layer from the repository to this host. */
  readonly copyLayer: CopyLayer;
  /** Closes a removed layer, which frees its space. */
  readonly closeFile: (descriptor: number) => void;
  /** What starts a server with the usual policy. */
  readonly commandPrefix: () => readonly string[];
  readonly clock: Clock;
  readonly logger: Logger;
}

/** How long one poll waits for answers. A later answer starts the next poll. */
const POLL_WAIT_MS = 500;
/**
 * Pause between the end of an action and the poll that follows. The servers of a host switch at the
 * same time, and a poll and a plan for each of them would take CPU time from lookups.
 */
const SETTLE_MS = 20;
/** Pause before a server that could not be reached is asked again. */
const RECONNECT_FIRST_MS = 50;
/** Without a poll for this long, and two poll intervals, the agent counts as unhealthy. */
const STALL_TIMEOUT_MS = 60_000;

export class Agent implements Stoppable {
  readonly servers: ServerMonitor;
  readonly fetcher: LayerFetcher;
  /** Problems of the host as a whole, such as servers that do not answer. */
  readonly problems: ProblemTracker;
  readonly bundles: readonly BundleReconciler[];
  /** The servers that this agent runs itself. */
  readonly processes: ServerProcesses;
  readonly #options: AgentOptions;
  readonly #tasks: TaskQueue;
  readonly #stopping = new AbortController();
  readonly #locks: { release: () => void }[] = [];
  #repository: Repository | undefined;
  #wake = new AbortController();
  #reconnectMs = RECONNECT_FIRST_MS;
  /** The refresh from the repository that is in progress. */
  #refreshing: Promise<void> | undefined;
  #lastPollMs: number;
  /** When everything is asked again, and not only what an action has changed. */
  #fullPollMs: number = Number.NEGATIVE_INFINITY;
  /** When the poll that was asked for with `#pollIn` is due. */
  #duePollMs: number = Number.POSITIVE_INFINITY;
  #ended: Promise<void> = Promise.resolve();

  constructor(options: AgentOptions) {
    const { config, credentials, copyLayer, closeFile, commandPrefix, clock, logger } = options;
    this.#options = options;
    this.#lastPollMs = clock.nowMs();
    this.problems = new ProblemTracker(clock, config.pollMs);
    this.#tasks = new TaskQueue(clock, logger, () => this.#pollIn(SETTLE_MS));
    this.processes = new ServerProcesses(config, {
      problems: this.problems,
      // A server that has just started has no version: it is asked and loaded at once.
      onListening: () => this.#pollSoon(),
      commandPrefix,
      clock,
      logger,
    });
    this.fetcher = new LayerFetcher({ ...config, clock });
    const clients = config.servers.map((address) => new ControlClient(address, credentials));
    this.servers = new ServerMonitor({
      servers: clients,
      problems: this.problems,
      clock,
      logger,
      onReturn: (address) => {
        for (const keeper of this.bundles) keeper.clearServerProblems(address);
      },
    });
    this.bundles = config.bundles.map(
      (bundle) =>
        new BundleReconciler({
          ...config,
          bundle: bundle.name,
          channels: bundle.channels,
          clock,
          logger,
          repository: () => this.#openRepository(),
          copyLayer,
          data: new HostData(config.dataFolder, bundle.name, closeFile),
          clients: new Map(clients.map((client) => [client.address, client])),
          servers: this.servers,
          tasks: this.#tasks,
          fetcher: this.fetcher,
          firstBackoffMs: config.pollMs,
          hostProblems: this.problems,
          pollIn: (ms) => this.#pollIn(ms),
          otherBundles: () =>
            this.bundles.filter((other) => other.bundle !== bundle.name).map((b) => b.channels),
          stopping: this.#stopping.signal,
        }),
    );
  }

  get config(): AgentConfig {
    return this.#options.config;
  }

  nowMs(): number {
    return this.#options.clock.nowMs();
  }

  /** The agent still polls. */
  get isHealthy(): boolean {
    const { config, clock } = this.#options;
    return clock.nowMs() - this.#lastPollMs < STALL_TIMEOUT_MS + 2 * config.pollMs;
  }

  /**
   * Runs until `stop()`.
   * @throws CubeError CONFLICT when another agent manages one of the bundles on this host
   */
  start(): void {
    for (const { data } of this.bundles) {
      const lock = data.lock();
      if (lock !== undefined) this.#locks.push(lock);
    }
    this.processes.start();
    this.#ended = this.#loop();
  }

  /** Polls now and ends every backoff. */
  poke(): void {
    this.problems.retryNow();
    for (const { problems } of this.bundles) problems.retryNow();
    this.processes.retry();
    this.#pollSoon();
  }

  #pollSoon(): void {
    this.#fullPollMs = Number.NEGATIVE_INFINITY;
    this.#wake.abort();
  }

  /** Polls what has changed, after a pause or earlier. */
  #pollIn(ms: number): void {
    const { clock } = this.#options;
    const dueMs = clock.nowMs() + ms;
    if (dueMs >= this.#duePollMs) return;
    this.#duePollMs = dueMs;
    void clock.sleep(ms, this.#stopping.signal).then(() => {
      if (this.#duePollMs !== dueMs) return;
      this.#duePollMs = Number.POSITIVE_INFINITY;
      this.#wake.abort();
    });
  }

  /**
   * Stops between two blocks of a fetch. A load that a server has started continues there. Servers
   * that this agent runs are stopped last and finish their requests in flight.
   */
  async stop(): Promise<void> {
    this.#stopping.abort();
    for (const keeper of this.bundles) keeper.stopFetching();
    this.#wake.abort();
    await this.#ended;
    await this.processes.stop();
    for (const lock of this.#locks) lock.release();
  }

  async #loop(): Promise<void> {
    const { clock, logger } = this.#options;
    while (!this.#stopping.signal.aborted) {
      this.#wake = new AbortController();
      try {
        await this.#poll();
      } catch (error) {
        logger.error({ err: error }, 'poll failed');
      }
      this.#lastPollMs = clock.nowMs();
      await this.#waitForServers(this.#fullPollMs - clock.nowMs());
    }
    await this.#tasks.waitUntilIdle();
  }

  /**
   * Waits that long, or until a server that could not be reached answers: after a restart of the
   * host, servers are loaded as soon as they listen. The pauses between attempts double, so that a
   * server that stays away is soon asked by polls only.
   */
  async #waitForServers(waitMs: number): Promise<void> {
    const { clock, config } = this.#options;
    const endMs = clock.nowMs() + waitMs;
    const wake = this.#wake.signal;
    for (;;) {
      const leftMs = endMs - clock.nowMs();
      if (leftMs <= 0 || wake.aborted) return;
      if (!this.servers.hasUnreachable) {
        this.#reconnectMs = RECONNECT_FIRST_MS;
        await clock.sleep(leftMs, wake);
        return;
      }
      await clock.sleep(Math.min(leftMs, this.#reconnectMs), wake);
      if (wake.aborted || clock.nowMs() >= endMs) return;
      this.#reconnectMs = Math.min(2 * this.#reconnectMs, config.pollMs);
      const answer = this.servers.pollUnreachable(this.#stopping.signal).then((hasAnswered) => {
        if (hasAnswered) this.#wake.abort();
        return hasAnswered;
      });
      // A request that gets no answer ends with the time limit of calls, which is longer.
      if (await Promise.race([answer, clock.sleep(this.#reconnectMs, wake)])) return;
    }
  }

  async #poll(): Promise<void> {
    const { signal } = this.#stopping;
    const { clock } = this.#options;
    const pollWait = new AbortController();
    let isSlow = true;
    const answers = this.#ask(signal).then(() => {
      isSlow = false;
    });
    await Promise.race([answers, clock.sleep(POLL_WAIT_MS, pollWait.signal)]);
    pollWait.abort();
    if (signal.aborted) return;
    // Late answers start the next poll at once.
    if (isSlow) void answers.then(() => this.#wake.abort());
    for (const keeper of this.bundles) keeper.reconcile();
  }

  async #ask(signal: AbortSignal): Promise<void> {
    const { clock, config } = this.#options;
    if (clock.nowMs() < this.#fullPollMs) {
      await this.servers.pollChanged(signal);
      return;
    }
    // Jitter: the agents of a fleet must not poll the repository at the same moment.
    this.#fullPollMs = clock.nowMs() + config.pollMs * (0.8 + 0.4 * Math.random());
    this.#refreshing ??= this.#refresh();
    await Promise.all([this.servers.poll(signal), this.#refreshing]);
  }

  async #refresh(): Promise<void> {
    try {
      await Promise.all(this.bundles.map(({ observer }) => observer.refresh()));
    } catch (error) {
      this.#options.logger.error(
        { err: CubeError.from(error) },
        'cannot refresh from the repository',
      );
    } finally {
      this.#refreshing = undefined;
    }
  }

  #openRepository(): Repository {
    this.#repository ??= this.#options.openRepository();
    return this.#repository;
  }
}
