/**
 * The agent of one host: looks at the repository and at the servers, lets every bundle act, again. A repository or a server
 * that does not answer holds up nothing: after a moment the rest goes on with what was last known.
 */

import { CubeError } from '../../lib/core/errors.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Stoppable } from '../../lib/platform/lifecycle.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';
import { ControlClient } from '../fleet/control-client.ts';
import type { AgentConfig } from './agent-config.ts';
import { BundleKeeper, type CopyLayer } from './bundle-keeper.ts';
import { Fetcher } from './fetcher.ts';
import { HostData } from './host-data.ts';
import { Lanes } from './lanes.ts';
import { Problems } from './problems.ts';
import { ServerProcesses } from './server-processes.ts';
import { ServerWatch } from './server-watch.ts';

export interface AgentOptions {
  readonly config: AgentConfig;
  /** Called until it succeeds: the repository may be away when the agent starts. */
  readonly openRepository: () => Repository;
  /** For the servers. */
  readonly credentials: Credentials;
  /** Brings a layer from the repository to this host. */
  readonly copyLayer: CopyLayer;
  readonly clock: Clock;
  readonly logger: Logger;
}

/** How long one look waits for answers; a later one counts in the next look. */
const PATIENCE_MS = 500;
/** Looks come at least so often, or the agent is not healthy: each waits no longer than its patience. */
const STALLED_MS = 60_000;

export class Agent implements Stoppable {
  readonly servers: ServerWatch;
  readonly fetcher: Fetcher;
  /** Of the host: servers that do not answer. */
  readonly problems: Problems;
  readonly bundles: readonly BundleKeeper[];
  /** The servers that it runs itself. */
  readonly processes: ServerProcesses;
  readonly #options: AgentOptions;
  readonly #lanes: Lanes;
  readonly #stopping = new AbortController();
  readonly #claims: { release: () => void }[] = [];
  #repository: Repository | undefined;
  #wake = new AbortController();
  /** The look at the repository that is under way. */
  #looking: Promise<void> | undefined;
  #lastTickMs: number;
  #ended: Promise<void> = Promise.resolve();

  constructor(options: AgentOptions) {
    const { config, credentials, copyLayer, clock, logger } = options;
    this.#options = options;
    this.#lastTickMs = clock.nowMs();
    this.problems = new Problems(clock, config.pollMs);
    this.#lanes = new Lanes(clock, logger, (lane) => {
      // A plan from what it said before would do the same once more.
      this.servers.changed(lane);
      this.#wake.abort();
    });
    this.processes = new ServerProcesses(config, this.problems, clock, logger);
    this.fetcher = new Fetcher({ ...config, clock });
    const clients = config.servers.map((address) => new ControlClient(address, credentials));
    this.servers = new ServerWatch({
      ...{ servers: clients, problems: this.problems, clock, logger },
      onBack: (address) => {
        for (const keeper of this.bundles) keeper.forgetFailuresOf(address);
      },
    });
    this.bundles = config.bundles.map(
      (bundle) =>
        new BundleKeeper({
          ...config,
          ...{ bundle: bundle.name, channels: bundle.channels, clock, logger },
          repository: () => this.#openRepository(),
          copyLayer,
          host: new HostData(config.dataFolder, bundle.name),
          clients: new Map(clients.map((client) => [client.address, client])),
          ...{ servers: this.servers, lanes: this.#lanes, fetcher: this.fetcher },
          firstBackoffMs: config.pollMs,
          hostProblems: this.problems,
          beside: () =>
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

  /** It still looks. */
  get isHealthy(): boolean {
    const { config, clock } = this.#options;
    return clock.nowMs() - this.#lastTickMs < STALLED_MS + 2 * config.pollMs;
  }

  /** Runs until `stop()`. @throws CubeError CONFLICT when another agent keeps one of the bundles on this host */
  start(): void {
    for (const { host } of this.bundles) {
      const claim = host.claim();
      if (claim !== undefined) this.#claims.push(claim);
    }
    this.processes.start();
    this.#ended = this.#loop();
  }

  /** Looks now, and tries again at once what it would have waited with. */
  poke(): void {
    this.problems.retryNow();
    for (const { problems } of this.bundles) problems.retryNow();
    this.processes.retry();
    this.#wake.abort();
  }

  /**
   * Stops between two pieces of a fetch; a load that a server has begun goes on in the server. Servers of our own are stopped
   * last, and finish what is in flight.
   */
  async stop(): Promise<void> {
    this.#stopping.abort();
    for (const keeper of this.bundles) keeper.stopFetching();
    this.#wake.abort();
    await this.#ended;
    await this.processes.stop();
    for (const claim of this.#claims) claim.release();
  }

  async #loop(): Promise<void> {
    const { config, clock, logger } = this.#options;
    while (!this.#stopping.signal.aborted) {
      this.#wake = new AbortController();
      try {
        await this.#tick();
      } catch (error) {
        logger.error({ err: error }, 'tick failed');
      }
      this.#lastTickMs = clock.nowMs();
      // Jitter: the agents of a fleet must not ask the repository in step.
      await clock.sleep(config.pollMs * (0.8 + 0.4 * Math.random()), this.#wake.signal);
    }
    await this.#lanes.idle();
  }

  async #tick(): Promise<void> {
    const { signal } = this.#stopping;
    const { clock } = this.#options;
    this.#looking ??= this.#look();
    const patience = new AbortController();
    let isSlow = true;
    const answers = Promise.all([this.servers.ask(signal), this.#looking]).then(() => {
      isSlow = false;
    });
    await Promise.race([answers, clock.sleep(PATIENCE_MS, patience.signal)]);
    patience.abort();
    if (signal.aborted) return;
    // What comes later is not left until the next look.
    if (isSlow) void answers.then(() => this.#wake.abort());
    for (const keeper of this.bundles) keeper.act();
  }

  async #look(): Promise<void> {
    try {
      await Promise.all(this.bundles.map(({ observer }) => observer.look()));
    } catch (error) {
      this.#options.logger.error({ err: CubeError.from(error) }, 'look failed');
    } finally {
      this.#looking = undefined;
    }
  }

  #openRepository(): Repository {
    this.#repository ??= this.#options.openRepository();
    return this.#repository;
  }
}
