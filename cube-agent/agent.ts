/**
 * The agent of one host: sees, plans, acts, again. The disk and each server are lanes: one action at a time in a
 * lane, and no lane waits for another, so that a long fetch does not keep a restarted server empty. Every action is
 * safe to repeat and may be cut off anywhere; what is to be done next is always read from what is there.
 */
import { CubeError, type ErrorCode } from '../lib/core/errors.ts';
import type { Clock } from '../lib/platform/clock.ts';
import type { Stoppable } from '../lib/platform/lifecycle.ts';
import type { Logger } from '../lib/platform/logs.ts';
import type { Repository } from '../lib/repository/repository.ts';
import { ControlClient } from './control-client.ts';
import { HostData } from './host-data.ts';
import { Observer } from './observer.ts';
import { type DiskAction, type Plan, type PlanInput, plan, type ServerAction } from './plan.ts';
import { Problems } from './problems.ts';

export interface AgentOptions {
  readonly openRepository: () => Repository;
  readonly bundle: string;
  readonly channel: string;
  readonly dataFolder: string;
  /** Control addresses, host:port. */
  readonly servers: readonly string[];
  readonly controlToken: string | undefined;
  readonly pollMs: number;
  readonly retireGraceMs: number;
  readonly bytesPerSecond?: number;
  readonly clock: Clock;
  readonly logger: Logger;
}

type Fetching = Extract<DiskAction, { kind: 'fetch' | 'stage' }>;
type Removing = Exclude<DiskAction, Fetching>;

const DISK_LANE = 'disk';
/** What a server says of files that are damaged; a flipped byte may look like a format of the future. */
const UNREADABLE: ReadonlySet<ErrorCode> = new Set(['CORRUPT', 'NOT_FOUND', 'UNSUPPORTED', 'IO']);
/** What the problem of notes that cannot be written is called. */
const WRITE_NOTES = 'write notes';

export class Agent implements Stoppable {
  readonly #options: AgentOptions;
  readonly #host: HostData;
  readonly #servers: ReadonlyMap<string, ControlClient>;
  readonly #problems: Problems;
  readonly #observer: Observer;
  readonly #stopping = new AbortController();
  /** Lane → what runs in it. */
  readonly #running = new Map<string, { what: string; action: DiskAction | ServerAction }>();
  #fetchStop = new AbortController();
  #wake = new AbortController();
  #remembered = '';
  #ended: Promise<void> = Promise.resolve();

  constructor(options: AgentOptions) {
    this.#options = options;
    this.#host = new HostData(options.dataFolder, options.bundle);
    this.#servers = new Map(
      options.servers.map((address) => [address, new ControlClient(address, options.controlToken)]),
    );
    this.#problems = new Problems(options.clock, options.pollMs);
    this.#observer = new Observer({
      ...options,
      host: this.#host,
      servers: [...this.#servers.values()],
      problems: this.#problems,
    });
  }

  /** Runs until `stop()`. */
  start(): void {
    this.#ended = this.#loop();
  }

  /** Stops between two pieces of a fetch; a load that a server has begun goes on in the server. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    this.#fetchStop.abort();
    this.#wake.abort();
    await this.#ended;
  }

  async #loop(): Promise<void> {
    const { pollMs, clock, logger } = this.#options;
    try {
      this.#host.removeLeftovers();
    } catch (error) {
      this.#failed('remove leftovers', error);
    }
    while (!this.#stopping.signal.aborted) {
      this.#wake = new AbortController();
      try {
        await this.#tick();
      } catch (error) {
        logger.error({ err: error }, 'tick failed');
      }
      // Jitter: the agents of a fleet must not ask the repository in step.
      await clock.sleep(pollMs * (0.8 + 0.4 * Math.random()), this.#wake.signal);
    }
    while (this.#running.size > 0) await clock.sleep(10);
  }

  async #tick(): Promise<void> {
    const input = await this.#observer.observe(
      (server) => this.#loadingOn(server),
      this.#stopping.signal,
    );
    if (this.#stopping.signal.aborted) return;
    const next = plan(input);
    this.#remember(input, next);
    this.#stopUnwantedFetch(input);
    if (this.#running.size === 0) this.#removeAll(next);
    if (!this.#running.has(DISK_LANE)) this.#startFetching(next);
    for (const action of next.servers) {
      if (this.#running.has(action.server) || !this.#problems.mayTry(nameOf(action))) continue;
      this.#startLane(action.server, action, () => this.#actOnServer(action, input));
    }
  }

  #loadingOn(server: string): string | undefined {
    const action = this.#running.get(server)?.action;
    return action?.kind === 'load' ? action.version : undefined;
  }

  /** Removing is quick and only done while nothing else is under way: nobody can be about to read what goes. */
  #removeAll(next: Plan): void {
    const removals = next.disk.filter((action): action is Removing => !isFetching(action));
    for (const action of removals) {
      const what = nameOf(action);
      try {
        if (action.kind === 'remove-version') this.#host.removeVersion(action.version);
        else this.#host.removeLayer(action.layer);
        this.#done(what);
      } catch (error) {
        this.#failed(what, error);
      }
    }
  }

  /** Starts what need not wait after a failure; a version is staged only after the last of its layers. */
  #startFetching(next: Plan): void {
    const fetching = next.disk.filter(isFetching);
    const ready = fetching.filter((action) => this.#problems.mayTry(nameOf(action)));
    const incomplete = new Set(
      fetching.filter((action) => !ready.includes(action)).map((action) => action.version),
    );
    const actions = ready.filter(
      (action) => action.kind === 'fetch' || !incomplete.has(action.version),
    );
    const [first] = actions;
    if (first === undefined) return;
    this.#fetchStop = new AbortController();
    this.#startLane(DISK_LANE, first, () => this.#fetchAll(actions));
  }

  #stopUnwantedFetch({ wanted }: PlanInput): void {
    const action = this.#running.get(DISK_LANE)?.action;
    if (action === undefined || action.kind === 'remove-layer' || wanted === undefined) return;
    if (action.version === wanted.pointer || action.version === wanted.previous) return;
    this.#fetchStop.abort();
  }

  async #fetchAll(actions: readonly Fetching[]): Promise<void> {
    const incomplete = new Set<string>();
    for (const action of actions) {
      if (this.#fetchStop.signal.aborted) return;
      if (action.kind === 'stage' && incomplete.has(action.version)) continue;
      const what = nameOf(action);
      this.#running.set(DISK_LANE, { what, action });
      try {
        if (action.kind === 'fetch') await this.#fetch(action);
        else this.#stage(action.version);
      } catch (error) {
        if (this.#fetchStop.signal.aborted) return;
        incomplete.add(action.version);
        this.#failed(what, error);
      }
    }
  }

  async #fetch(action: Extract<DiskAction, { kind: 'fetch' }>): Promise<void> {
    const { bundle, bytesPerSecond, clock } = this.#options;
    const { table, layer } = action;
    const startMs = clock.nowMs();
    const target = this.#host.layerPath(table, layer.contentId);
    await this.#observer.repository.fetchLayer(bundle, table, layer, target, {
      signal: this.#fetchStop.signal,
      ...(bytesPerSecond === undefined ? {} : { bytesPerSecond }),
    });
    const durationMs = Math.round(clock.nowMs() - startMs);
    this.#done(nameOf(action), { bytes: layer.bytes, durationMs });
  }

  #stage(version: string): void {
    const text = this.#observer.manifestText(version);
    if (text === undefined) throw new CubeError('INTERNAL', `the manifest of ${version} is lost`);
    this.#host.stage(version, text);
    this.#done(nameOf({ kind: 'stage', version }));
  }

  async #actOnServer(action: ServerAction, input: PlanInput): Promise<void> {
    const server = this.#servers.get(action.server);
    const { bundle, retireGraceMs } = this.#options;
    const version = { bundle, version: action.version };
    // It may have been looked up since the plan was made.
    const request = action.kind === 'unload' ? { ...version, ifIdleMs: retireGraceMs } : version;
    const { signal } = this.#stopping;
    const what = nameOf(action);
    try {
      this.#done(what, await server?.[action.kind](request, signal));
    } catch (error) {
      if (signal.aborted) return;
      this.#failed(what, error);
      if (action.kind === 'load') await this.#checkFiles(action, input, CubeError.from(error));
    }
  }

  /** A server that cannot read what we fetched: the disk may have damaged it since. */
  async #checkFiles(action: ServerAction, input: PlanInput, error: CubeError): Promise<void> {
    if (!UNREADABLE.has(error.code)) return;
    this.#host.forgetManifest(action.version);
    const manifest = input.manifests.get(action.version);
    const server = input.servers.find((candidate) => candidate.address === action.server);
    if (manifest === undefined || server === undefined) return;
    const { clock, logger } = this.#options;
    const removed = await this.#host.removeDamaged(manifest, server.shardIndex, clock);
    if (removed.length > 0) logger.warn({ removed }, 'removed damaged layers; fetching them again');
  }

  /** @param action what the lane begins with; a lane that does several says so itself */
  #startLane(lane: string, action: DiskAction | ServerAction, run: () => Promise<void>): void {
    this.#running.set(lane, { what: nameOf(action), action });
    run()
      .catch((error: unknown) => this.#options.logger.error({ err: error, lane }, 'lane failed'))
      .finally(() => {
        this.#running.delete(lane);
        this.#wake.abort();
      });
  }

  #done(what: string, detail: object = {}): void {
    this.#problems.clear(what);
    this.#options.logger.info({ ...detail }, what);
  }

  #failed(what: string, error: unknown): void {
    const { code, message } = CubeError.from(error);
    this.#problems.add(what, error);
    this.#options.logger.warn({ code, error: message }, `cannot ${what}`);
  }

  /** Notes what was last known, when it changed; a failure that no plan repeats any more is over. */
  #remember({ wanted }: PlanInput, next: Plan): void {
    const current = new Set([...next.disk, ...next.servers].map(nameOf));
    for (const { what } of this.#running.values()) current.add(what);
    this.#problems.forget(
      (what) => /^(fetch|stage|load|activate|unload|remove)/.test(what) && !current.has(what),
    );
    const memory = {
      pointer: wanted?.pointer,
      previous: wanted?.previous,
      quarantined: [...(wanted?.quarantined ?? [])],
      problems: this.#problems.list().filter(({ what }) => what !== WRITE_NOTES),
    };
    const text = JSON.stringify(memory);
    if (text === this.#remembered || !this.#problems.mayTry(WRITE_NOTES)) return;
    try {
      this.#host.remember(this.#options.channel, memory);
      this.#remembered = text;
      this.#problems.clear(WRITE_NOTES);
    } catch (error) {
      this.#failed(WRITE_NOTES, error);
    }
  }
}

function isFetching(action: DiskAction): action is Fetching {
  return action.kind === 'fetch' || action.kind === 'stage';
}

/** What an action is called in logs, problems and backoff: equal names are the same action. */
function nameOf(action: DiskAction | ServerAction): string {
  switch (action.kind) {
    case 'fetch':
      return `fetch ${action.version} ${action.table}/${action.layer.contentId}`;
    case 'stage':
      return `stage ${action.version}`;
    case 'remove-version':
      return `remove ${action.version}`;
    case 'remove-layer':
      return `remove layer ${action.layer}`;
    default:
      return `${action.kind} ${action.version} on ${action.server}`;
  }
}
