/**
 * Keeps one bundle of a host where its channels want it: sees, plans, acts, again. Every action is safe to repeat and may
 * be cut off anywhere; what is to be done next is always read from what is there.
 */
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import { faultPoint } from '../../lib/platform/fault-point.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { CopyOptions } from '../../lib/repository/verified-copy.ts';
import type { ControlClient } from '../fleet/control-client.ts';
import { BundleObserver } from './bundle-observer.ts';
import { ChannelWatch } from './channel-watch.ts';
import type { LayerCopy } from './copy-protocol.ts';
import type { Fetcher } from './fetcher.ts';
import type { HostData } from './host-data.ts';
import type { Lanes } from './lanes.ts';
import {
  type DiskAction,
  type KeepPolicy,
  type Plan,
  type PlanInput,
  plan,
  type ServerAction,
} from './plan.ts';
import { Problems } from './problems.ts';
import type { ServerWatch } from './server-watch.ts';

export type CopyLayer = (copy: LayerCopy, options: CopyOptions) => Promise<void>;

export interface BundleKeeperOptions {
  readonly bundle: string;
  readonly channels: readonly string[];
  readonly repository: () => Repository;
  readonly copyLayer: CopyLayer;
  readonly host: HostData;
  readonly clients: ReadonlyMap<string, ControlClient>;
  readonly servers: ServerWatch;
  readonly lanes: Lanes;
  readonly fetcher: Fetcher;
  readonly keep: KeepPolicy;
  readonly retireGraceMs: number;
  readonly firstBackoffMs: number;
  /** What goes wrong on the host beside this bundle: noted with the bundle's own. */
  readonly hostProblems: Problems;
  /** The channels of the other bundles here: their versions share the servers' memory. */
  readonly beside: () => readonly ChannelWatch[];
  readonly clock: Clock;
  readonly logger: Logger;
  readonly stopping: AbortSignal;
}

type Fetching = Extract<DiskAction, { kind: 'fetch' | 'stage' }>;
type FetchAction = Extract<DiskAction, { kind: 'fetch' }>;
type Removing = Exclude<DiskAction, Fetching>;

/** What a server says of files that are damaged; a flipped byte may look like a format of the future. */
const UNREADABLE: ReadonlySet<ErrorCode> = new Set(['CORRUPT', 'NOT_FOUND', 'UNSUPPORTED', 'IO']);
/** What the problem of notes that cannot be written is called. */
const WRITE_NOTES = 'write notes';
const MAKE_ROOM = 'make room for';
/** A disk that is short has no room for what nobody wants now. */
const KEEP_NOTHING: KeepPolicy = { versions: 0, bytes: 0 };

export class BundleKeeper {
  readonly bundle: string;
  readonly channels: ChannelWatch;
  readonly observer: BundleObserver;
  readonly host: HostData;
  readonly problems: Problems;
  readonly #options: BundleKeeperOptions;
  readonly #diskLane: string;
  #fetchStop = new AbortController();
  #remembered = '';

  constructor(options: BundleKeeperOptions) {
    const { bundle, clock, host, logger } = options;
    this.#options = options;
    this.bundle = bundle;
    this.#diskLane = `disk of ${bundle}`;
    this.problems = new Problems(clock, options.firstBackoffMs);
    this.host = host;
    const parts = { ...options, problems: this.problems };
    this.channels = new ChannelWatch(parts);
    this.observer = new BundleObserver({ ...parts, channels: this.channels });
    try {
      this.host.removeLeftovers();
    } catch (error) {
      this.#failed('remove leftovers', error);
    }
    logger.info({ bundle, channels: options.channels }, 'keeping');
  }

  get channelNames(): readonly string[] {
    return this.#options.channels;
  }

  /** Stops what is being fetched; the pieces stay. */
  stopFetching(): void {
    this.#fetchStop.abort();
  }

  /** A new process knows nothing of earlier failures: it is loaded at once. */
  forgetFailuresOf(server: string): void {
    this.problems.forget((what) => what.endsWith(` on ${server}`));
  }

  /** Plans from what is there now, and starts what no lane is busy with. */
  act(): void {
    const { lanes } = this.#options;
    const isShort = this.problems.list().some(({ what }) => what.startsWith(MAKE_ROOM));
    const keep = isShort ? KEEP_NOTHING : this.#options.keep;
    const input = this.observer.input(keep, (server) => this.#loadingOn(server));
    const next = plan(input);
    this.#remember(next);
    this.#stopUnwantedFetch();
    if (lanes.ofBundle(this.bundle).length === 0) this.#removeAll(next);
    if (lanes.get(this.#diskLane) === undefined) this.#startFetching(next);
    for (const action of next.servers) {
      const { server, version, kind } = action;
      const what = nameOf(action);
      if (lanes.get(server) !== undefined || !this.problems.mayTry(what)) continue;
      const running = { bundle: this.bundle, what, kind, version };
      lanes.start(server, running, () => this.#actOnServer(action, input));
    }
  }

  #loadingOn(server: string): string | undefined {
    const running = this.#options.lanes.get(server);
    return running?.bundle === this.bundle && running.kind === 'load' ? running.version : undefined;
  }

  /** Removing is quick and only done while nothing else is under way: nobody can be about to read what goes. */
  #removeAll(next: Plan): void {
    const removals = next.disk.filter((action): action is Removing => !isFetching(action));
    for (const action of removals) {
      const what = nameOf(action);
      try {
        if (action.kind === 'remove-version') this.host.removeVersion(action.version);
        else this.host.removeLayer(action.layer);
        faultPoint('agent.removed');
        this.#done(what);
      } catch (error) {
        this.#failed(what, error);
      }
    }
  }

  /** Starts what need not wait after a failure, version by version. */
  #startFetching(next: Plan): void {
    const byVersion = new Map<string, Fetching[]>();
    for (const action of next.disk.filter(isFetching)) {
      const actions = byVersion.get(action.version) ?? [];
      byVersion.set(action.version, [...actions, action]);
    }
    for (const [version, actions] of byVersion) {
      // Staging waits for all layers, so it is no reason to begin; else one damaged layer would hold up every other version.
      const fetches = actions.filter(({ kind }) => kind === 'fetch');
      const first = fetches.length > 0 ? fetches : actions;
      const mayTry = first.some((action) => this.problems.mayTry(nameOf(action)));
      if (!mayTry || !this.problems.mayTry(`${MAKE_ROOM} ${version}`)) byVersion.delete(version);
    }
    const [first] = byVersion.keys();
    if (first === undefined) return;
    this.#fetchStop = new AbortController();
    const running = { bundle: this.bundle, what: `fetch ${first}`, kind: 'fetch', version: first };
    this.#options.lanes.start(this.#diskLane, running, () => this.#bring(first, byVersion));
  }

  /** One version in a lane's turn, then the plan is made anew: the channel may have moved on. */
  async #bring(
    version: string,
    byVersion: ReadonlyMap<string, readonly Fetching[]>,
  ): Promise<void> {
    const actions = byVersion.get(version) ?? [];
    const fetches = actions.filter((action) => action.kind === 'fetch');
    const { signal } = this.#fetchStop;
    if (!this.#hasRoom(version, fetches)) return;
    const ready = fetches.filter((action) => this.problems.mayTry(nameOf(action)));
    const arrived = await Promise.all(ready.map((action) => this.#fetch(action, signal)));
    const isComplete = ready.length === fetches.length && arrived.every(Boolean);
    if (!isComplete || signal.aborted || actions.every(({ kind }) => kind === 'fetch')) return;
    const what = nameOf({ kind: 'stage', version });
    try {
      this.#stage(version);
      faultPoint('agent.staged');
      this.#done(what);
    } catch (error) {
      this.#failed(what, error);
    }
  }

  #hasRoom(version: string, fetches: readonly FetchAction[]): boolean {
    let bytes = 0;
    for (const { table, layer } of fetches) {
      bytes += layer.bytes - Math.min(layer.bytes, this.host.partBytes(table, layer.contentId));
    }
    const what = `${MAKE_ROOM} ${version}`;
    try {
      this.#options.fetcher.requireRoom(`version ${version} of ${this.bundle}`, bytes);
      this.problems.clear(what);
      return true;
    } catch (error) {
      this.#failed(what, error);
      return false;
    }
  }

  /** @returns whether it is here */
  async #fetch(action: FetchAction, signal: AbortSignal): Promise<boolean> {
    const { clock, copyLayer, fetcher } = this.#options;
    const { bundle } = this;
    const { table, layer, version } = action;
    const { contentId, bytes } = layer;
    const what = nameOf(action);
    const startMs = clock.nowMs();
    const resumedBytes = this.host.partBytes(table, contentId);
    try {
      const wish = { bundle, version, table, contentId, bytes, resumedBytes };
      await fetcher.run(wish, signal, (options) => {
        const target = this.host.layerPath(table, contentId);
        return copyLayer({ bundle, table, layer, target }, options);
      });
      faultPoint('agent.fetched');
      this.#done(what, { bytes, durationMs: Math.round(clock.nowMs() - startMs) });
      return true;
    } catch (error) {
      if (!signal.aborted) this.#failed(what, error);
      return false;
    }
  }

  #stopUnwantedFetch(): void {
    const running = this.#options.lanes.get(this.#diskLane);
    const { versions } = this.channels;
    if (running === undefined || versions.length === 0 || versions.includes(running.version))
      return;
    this.#fetchStop.abort();
  }

  #stage(version: string): void {
    const text = this.observer.manifestText(version);
    if (text === undefined) throw new CubeError('INTERNAL', `the manifest of ${version} is lost`);
    this.host.stage(version, text);
  }

  async #actOnServer(action: ServerAction, input: PlanInput): Promise<void> {
    const server = this.#options.clients.get(action.server);
    const { retireGraceMs, stopping } = this.#options;
    const version = { bundle: this.bundle, version: action.version };
    // It may have been looked up since the plan was made.
    const request = action.kind === 'unload' ? { ...version, ifIdleMs: retireGraceMs } : version;
    const what = nameOf(action);
    try {
      const answer =
        action.kind === 'load'
          ? await server?.load({ ...version, keep: this.#keepFor(action.version) }, stopping)
          : await server?.[action.kind](request, stopping);
      faultPoint(DONE_ON_SERVER[action.kind]);
      this.#done(what, answer);
    } catch (error) {
      if (stopping.aborted) return;
      this.#failed(what, error);
      if (action.kind === 'load') await this.#checkFiles(action, input, CubeError.from(error));
    }
  }

  /**
   * What a load must not push out of a server's memory, or two versions would push each other out for ever: what this bundle
   * needs more; of other bundles all that is wanted, for the pointer only their pointers.
   */
  #keepFor(version: string): string[] {
    const own = this.channels.versionsByMemory;
    const before = own.slice(0, own.indexOf(version));
    const names = before.map((name) => `${this.bundle}/${name}`);
    for (const { bundle, versionsByMemory } of this.#options.beside()) {
      const kept = before.length === 0 ? versionsByMemory.slice(0, 1) : versionsByMemory;
      names.push(...kept.map((name) => `${bundle}/${name}`));
    }
    return names;
  }

  /** A server that cannot read what we fetched: the disk may have damaged it since. */
  async #checkFiles(action: ServerAction, input: PlanInput, error: CubeError): Promise<void> {
    if (!UNREADABLE.has(error.code)) return;
    this.host.forgetManifest(action.version);
    const manifest = input.manifests.get(action.version);
    const server = input.servers.find((candidate) => candidate.address === action.server);
    if (manifest === undefined || server === undefined) return;
    const { clock, logger } = this.#options;
    const removed = await this.host.removeDamaged(manifest, server.shardIndex, clock);
    if (removed.length > 0) logger.warn({ removed }, 'removed damaged layers; fetching them again');
  }

  #done(what: string, detail: object = {}): void {
    this.problems.clear(what);
    this.#options.logger.info({ bundle: this.bundle, ...detail }, what);
  }

  #failed(what: string, error: unknown): void {
    const { bundle } = this;
    const { code, message } = CubeError.from(error);
    this.problems.add(what, error);
    this.#options.logger.warn({ bundle, code, error: message }, `cannot ${what}`);
  }

  /** Notes what was last known, when it changed; a failure that no plan repeats any more is over. */
  #remember(next: Plan): void {
    const { lanes, hostProblems } = this.#options;
    const { channels } = this;
    const current = new Set([...next.disk, ...next.servers].map(nameOf));
    for (const { version } of next.disk.filter(isFetching)) current.add(`${MAKE_ROOM} ${version}`);
    for (const { what } of lanes.ofBundle(this.bundle)) current.add(what);
    this.problems.forget(
      (what) =>
        /^(fetch|stage|load|activate|unload|remove|make room)/.test(what) && !current.has(what),
    );
    const problems = [...this.problems.list(), ...hostProblems.list()].filter(
      ({ what }) => what !== WRITE_NOTES,
    );
    const named = channels.names.filter(
      (channel) => this.channelNames.includes(channel) || channels.views.has(channel),
    );
    const notes = named.map((channel) => {
      return { channel, memory: { ...channels.memory(channel), problems } };
    });
    const text = JSON.stringify(notes);
    if (text === this.#remembered || !this.problems.mayTry(WRITE_NOTES)) return;
    try {
      for (const { channel, memory } of notes) this.host.remember(channel, memory);
      this.#remembered = text;
      this.problems.clear(WRITE_NOTES);
    } catch (error) {
      this.#failed(WRITE_NOTES, error);
    }
  }
}

const DONE_ON_SERVER = {
  load: 'agent.loaded',
  activate: 'agent.activated',
  unload: 'agent.unloaded',
} as const;

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
