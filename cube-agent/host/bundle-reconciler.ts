/**
 * Brings one bundle of a host to the state that its channels ask for: observe, plan, act, repeat.
 * Every action may be repeated and may be interrupted at any point; the next action always follows
 * from what is observed, never from what an earlier action was meant to do.
 */
import { hostname } from 'node:os';
import { CubeError, type ErrorCode, requireDefined } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { versionKey } from '../../lib/core/names.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import { faultPoint } from '../../lib/platform/fault-point.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { OutcomeRecorder } from '../../lib/repository/outcome-recorder.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { CopyOptions } from '../../lib/repository/verified-copy.ts';
import type { ControlStatus } from '../../proto/control.ts';
import type { ControlClient } from '../fleet/control-client.ts';
import { type Action, describeOperation, type Operation } from '../fleet/problem.ts';
import { BundleObserver } from './bundle-observer.ts';
import { ChannelMonitor } from './channel-monitor.ts';
import type { LayerCopy } from './copy-protocol.ts';
import type { HostData } from './host-data.ts';
import type { LayerFetcher } from './layer-fetcher.ts';
import {
  type DiskAction,
  type Plan,
  type PlanInput,
  parseLayerName,
  plan,
  type RetentionPolicy,
  type ServerAction,
} from './plan.ts';
import { ProblemTracker } from './problem-tracker.ts';
import type { ServerMonitor } from './server-monitor.ts';
import type { TaskQueue } from './task-queue.ts';

export type CopyLayer = (copy: LayerCopy, options: CopyOptions) => Promise<void>;

export interface BundleReconcilerOptions {
  readonly bundle: string;
  readonly channels: readonly string[];
  readonly repository: () => Repository;
  readonly copyLayer: CopyLayer;
  readonly data: HostData;
  readonly clients: ReadonlyMap<string, ControlClient>;
  readonly servers: ServerMonitor;
  readonly tasks: TaskQueue;
  readonly fetcher: LayerFetcher;
  readonly retention: RetentionPolicy;
  readonly retireGraceMs: number;
  readonly firstBackoffMs: number;
  /** Problems of the host as a whole: saved together with the bundle's own. */
  readonly hostProblems: ProblemTracker;
  /** Asks for another plan after a pause. */
  readonly pollIn: (ms: number) => void;
  /** The channels of the other bundles on this host: their versions share the servers' memory. */
  readonly otherBundles: () => readonly ChannelMonitor[];
  readonly clock: Clock;
  readonly logger: Logger;
  readonly stopping: AbortSignal;
}

type FetchOrStage = Extract<DiskAction, { kind: 'fetch' | 'stage' }>;
type FetchAction = Extract<DiskAction, { kind: 'fetch' }>;
type RemoveAction = Exclude<DiskAction, FetchOrStage>;

/** Codes of a load whose files are damaged; a flipped byte may look like an unknown format. */
const UNREADABLE_CODES: ReadonlySet<ErrorCode> = new Set([
  'CORRUPT',
  'NOT_FOUND',
  'UNSUPPORTED',
  'IO',
]);
/**
 * Actions whose problems end when no plan asks for them any more. Leftover files are removed only
 * once, at the start of the agent.
 */
const PLANNED_ACTIONS: ReadonlySet<Action> = new Set<Action>([
  'remove-leftovers',
  'fetch',
  'stage',
  'make-room',
  'remove-version',
  'remove-layer',
  'load',
  'activate',
  'unload',
]);
/** The graph of a version that serving answers from. */
const GRAPH_FILE = 'model.onnx';
const SAVE_STATE: Operation = { action: 'save-state' };
/**
 * Unloads that no load waits for come after the other actions, one server at a time with this pause
 * between them: a switch of all servers of a host is already the busiest moment of a rollout.
 */
const UNLOAD_PAUSE_MS = 100;
/** Used while the disk is too full for a desired version. */
const RETAIN_NOTHING: RetentionPolicy = { maxVersions: 0, maxBytes: 0 };

/** A version whose layers are missing, and what to do for it. */
interface VersionFetch {
  readonly version: string;
  readonly actions: readonly FetchOrStage[];
}

export class BundleReconciler {
  readonly bundle: string;
  readonly channels: ChannelMonitor;
  readonly observer: BundleObserver;
  readonly data: HostData;
  readonly problems: ProblemTracker;
  readonly #options: BundleReconcilerOptions;
  /** The bundle's disk as a resource of the task queue. */
  readonly #disk: string;
  readonly #outcomes: OutcomeRecorder;
  #fetchStop = new AbortController();
  /** The saved state of each channel, as text. */
  readonly #saved = new Map<string, string>();
  /** When the last action on a server ended. */
  #lastServerActionMs = Number.NEGATIVE_INFINITY;

  constructor(options: BundleReconcilerOptions) {
    const { bundle, clock, data, logger } = options;
    this.#options = options;
    this.bundle = bundle;
    this.#disk = `disk of ${bundle}`;
    this.problems = new ProblemTracker(clock, options.firstBackoffMs);
    this.data = data;
    this.#outcomes = new OutcomeRecorder({ ...options, author: `cube-agent@${hostname()}` });
    const parts = { ...options, problems: this.problems };
    this.channels = new ChannelMonitor(parts);
    this.observer = new BundleObserver({ ...parts, channels: this.channels });
    try {
      this.data.removeLeftovers();
    } catch (error) {
      this.#recordFailure({ action: 'remove-leftovers' }, error);
    }
    logger.info({ bundle, channels: options.channels }, 'managing bundle');
  }

  get channelNames(): readonly string[] {
    return this.#options.channels;
  }

  /** Stops the current fetch; partial layers stay on disk. */
  stopFetching(): void {
    this.#fetchStop.abort();
  }

  /** Drops the backoff of a server that restarted: it is loaded at once. */
  clearServerProblems(server: string): void {
    this.problems.removeWhere((operation) => operation.server === server);
  }

  /** Plans from the current observation and starts the actions whose resource is idle. */
  reconcile(): void {
    const { tasks } = this.#options;
    const isDiskFull = this.problems.list().some(({ action }) => action === 'make-room');
    const retention = isDiskFull ? RETAIN_NOTHING : this.#options.retention;
    const input = this.observer.buildPlanInput(retention, (server) => this.#findLoad(server));
    const next = plan(input);
    this.#dropResolvedProblems(next, input);
    this.#saveState();
    const fetch = this.#findFetch(next);
    this.#stopUnneededFetch(fetch?.version);
    if (tasks.listForBundle(this.bundle).length === 0) this.#removeAll(next);
    if (tasks.get(this.#disk) === undefined && fetch !== undefined) this.#startFetching(fetch);
    for (const action of next.servers) {
      const { server } = action;
      const operation = toOperation(action);
      if (tasks.get(server) !== undefined || !this.problems.canTry(operation)) continue;
      if (action.kind === 'unload' && !this.#mayUnload(server, next)) continue;
      tasks.start(server, { bundle: this.bundle, operation }, () =>
        this.#actOnServer(action, input),
      );
    }
  }

  /** A load that follows may need the memory, so it waits for no pause. */
  #mayUnload(server: string, { servers }: Plan): boolean {
    const { clock, pollIn, tasks } = this.#options;
    if (servers.some((action) => action.server === server && action.kind === 'load')) return true;
    const current = tasks.listForBundle(this.bundle);
    // Its end is followed by another plan.
    if (current.some(({ operation }) => operation.server !== undefined)) return false;
    const remainingMs = this.#lastServerActionMs + UNLOAD_PAUSE_MS - clock.nowMs();
    if (remainingMs > 0) pollIn(remainingMs);
    return remainingMs <= 0;
  }

  /** The version of this bundle that this agent is loading on a server. */
  #findLoad(server: string): string | undefined {
    const { bundle, operation } = this.#options.tasks.get(server) ?? {};
    return bundle === this.bundle && operation?.action === 'load' ? operation.version : undefined;
  }

  /** Removes files while no task of the bundle runs: no task can be about to read them. */
  #removeAll(next: Plan): void {
    const removals = next.disk.filter((action): action is RemoveAction => !isFetchOrStage(action));
    for (const action of removals) {
      const operation = toOperation(action);
      if (!this.problems.canTry(operation)) continue;
      try {
        if (action.kind === 'remove-version') this.data.removeVersion(action.version);
        else this.data.removeLayer(action.layer);
        faultPoint('agent.removed');
        this.#recordSuccess(operation);
      } catch (error) {
        this.#recordFailure(operation, error);
      }
    }
  }

  /** The most important version that must be fetched and is not in backoff. */
  #findFetch(next: Plan): VersionFetch | undefined {
    const byVersion = new Map<string, FetchOrStage[]>();
    for (const action of next.disk.filter(isFetchOrStage)) {
      const actions = byVersion.get(action.version) ?? [];
      byVersion.set(action.version, [...actions, action]);
    }
    for (const [version, actions] of byVersion) {
      if (this.#canFetch(version, actions)) return { version, actions };
    }
    return undefined;
  }

  #startFetching({ version, actions }: VersionFetch): void {
    this.#fetchStop = new AbortController();
    const task = { bundle: this.bundle, operation: { action: 'fetch', version } } as const;
    this.#options.tasks.start(this.#disk, task, () => this.#fetchVersion(version, actions));
  }

  #canFetch(version: string, actions: readonly FetchOrStage[]): boolean {
    if (!this.problems.canTry({ action: 'make-room', version })) return false;
    // Staging waits for all layers. If it could start a version alone, one damaged layer would
    // block every other version.
    const fetches = actions.filter(({ kind }) => kind === 'fetch');
    const required = fetches.length > 0 ? fetches : actions;
    return required.some((action) => this.problems.canTry(toOperation(action)));
  }

  /** Fetches one version. Then the plan is made again, since the channel may have moved. */
  async #fetchVersion(version: string, actions: readonly FetchOrStage[]): Promise<void> {
    const fetches = actions.filter((action) => action.kind === 'fetch');
    const { signal } = this.#fetchStop;
    if (!this.#hasRoom(version, fetches)) return;
    const ready = fetches.filter((action) => this.problems.canTry(toOperation(action)));
    const arrived = await Promise.all(ready.map((action) => this.#fetchLayer(action, signal)));
    const isComplete = ready.length === fetches.length && arrived.every(Boolean);
    if (!isComplete || signal.aborted || actions.every(({ kind }) => kind === 'fetch')) return;
    const operation: Operation = { action: 'stage', version };
    try {
      this.#stage(version);
      faultPoint('agent.staged');
      this.#recordSuccess(operation);
    } catch (error) {
      this.#recordFailure(operation, error);
    }
  }

  #hasRoom(version: string, fetches: readonly FetchAction[]): boolean {
    let bytes = 0;
    for (const { table, layer } of fetches) {
      bytes += layer.bytes - Math.min(layer.bytes, this.data.partBytes(table, layer.contentId));
    }
    const operation: Operation = { action: 'make-room', version };
    try {
      this.#options.fetcher.requireDiskSpace(`version ${version} of ${this.bundle}`, bytes);
      this.problems.resolve(operation);
      return true;
    } catch (error) {
      this.#recordFailure(operation, error);
      return false;
    }
  }

  /** @returns whether the whole layer is on disk */
  async #fetchLayer(action: FetchAction, signal: AbortSignal): Promise<boolean> {
    const { clock, copyLayer, fetcher } = this.#options;
    const { bundle } = this;
    const { table, layer, version } = action;
    const { contentId, bytes } = layer;
    const operation = toOperation(action);
    const startMs = clock.nowMs();
    const resumedBytes = this.data.partBytes(table, contentId);
    try {
      const request = { bundle, version, table, contentId, bytes, resumedBytes };
      await fetcher.run(request, signal, (options) => {
        const target = this.data.layerPath(table, contentId);
        return copyLayer({ bundle, table, layer, target }, options);
      });
      faultPoint('agent.fetched');
      this.#recordSuccess(operation, { bytes, durationMs: Math.round(clock.nowMs() - startMs) });
      return true;
    } catch (error) {
      if (!signal.aborted) this.#recordFailure(operation, error);
      return false;
    }
  }

  /**
   * Stops the fetch of a version that is not desired any more, or less than `next`: the version
   * before, to which a rollback goes, must not delay the one that should serve now.
   */
  #stopUnneededFetch(next: string | undefined): void {
    const version = this.#options.tasks.get(this.#disk)?.operation.version;
    const { desiredVersions } = this.channels;
    if (version === undefined || desiredVersions.length === 0) return;
    const isOvertaken = next !== undefined && next !== version;
    if (isOvertaken || !desiredVersions.includes(version)) this.#fetchStop.abort();
  }

  #stage(version: string): void {
    const text = this.observer.manifestText(version);
    if (text === undefined) {
      throw new CubeError('INTERNAL', `the manifest of version ${version} is no longer in memory`);
    }
    this.data.stage(version, text);
  }

  async #actOnServer(action: ServerAction, input: PlanInput): Promise<void> {
    const { clients, clock, retireGraceMs, servers, stopping } = this.#options;
    const server = requireDefined(clients.get(action.server), `the client of ${action.server}`);
    let status: ControlStatus | undefined;
    const version = { bundle: this.bundle, version: action.version };
    // A lookup may have used the version since the plan was made.
    const request = action.kind === 'unload' ? { ...version, ifIdleMs: retireGraceMs } : version;
    const operation = toOperation(action);
    try {
      const result =
        action.kind === 'load'
          ? await server.load({ ...version, keep: this.#listToKeep(action.version) }, stopping)
          : await server[action.kind](request, stopping);
      faultPoint(SERVER_FAULT_POINTS[action.kind]);
      status = result.status;
      this.#recordSuccess(operation, result.answer);
      // Only serving knows whether a version with a graph can serve.
      const hasGraph = input.manifests.get(action.version)?.files.some(isGraph) ?? true;
      if (action.kind === 'activate' && !hasGraph) {
        void this.#outcomes.recordServed(action.version);
      }
    } catch (error) {
      if (stopping.aborted) return;
      this.#recordFailure(operation, error);
      if (action.kind === 'load') await this.#checkFiles(action, input, CubeError.from(error));
    } finally {
      // A plan from the server's earlier state would repeat the action.
      servers.recordAction(action.server, status);
      this.#lastServerActionMs = clock.nowMs();
    }
  }

  /**
   * The versions that a load must not evict from a server's memory; without them two versions could
   * evict each other for ever. In this bundle these are the versions of higher priority; in other
   * bundles all desired versions, or only the first one if this load has the highest priority.
   */
  #listToKeep(version: string): string[] {
    const own = this.channels.versionsByMemoryPriority;
    const before = own.slice(0, own.indexOf(version));
    const names = before.map((name) => versionKey({ bundle: this.bundle, version: name }));
    for (const { bundle, versionsByMemoryPriority } of this.#options.otherBundles()) {
      const kept =
        before.length === 0 ? versionsByMemoryPriority.slice(0, 1) : versionsByMemoryPriority;
      names.push(...kept.map((name) => versionKey({ bundle, version: name })));
    }
    return names;
  }

  /** Checks fetched files that a server cannot read: the disk may have damaged them since. */
  async #checkFiles(action: ServerAction, input: PlanInput, error: CubeError): Promise<void> {
    if (!UNREADABLE_CODES.has(error.code)) return;
    this.data.dropCachedManifest(action.version);
    const manifest = input.manifests.get(action.version);
    const server = input.servers.find((candidate) => candidate.address === action.server);
    if (manifest === undefined || server === undefined) return;
    const { clock, logger } = this.#options;
    const removed = await this.data.removeDamaged(manifest, server.shardIndex, clock);
    if (removed.length > 0) logger.warn({ removed }, 'removed damaged layers; fetching them again');
  }

  #recordSuccess(operation: Operation, detail: object = {}): void {
    this.problems.resolve(operation);
    this.#options.logger.info({ bundle: this.bundle, ...detail }, describeOperation(operation));
  }

  #recordFailure(operation: Operation, error: unknown): void {
    const { bundle } = this;
    const { code, message } = CubeError.from(error);
    this.problems.record(operation, error);
    const isDamaged = code === 'CORRUPT' && ['fetch', 'load'].includes(operation.action);
    if (isDamaged && operation.version !== undefined) {
      void this.#outcomes.recordFailed(operation.version, CubeError.from(error));
    }
    const text = `cannot ${describeOperation(operation)}`;
    this.#options.logger.warn({ bundle, code, error: message, ...operation }, text);
  }

  /** A plan says nothing about servers that do not answer: their problems stay. */
  #dropResolvedProblems(next: Plan, { servers }: PlanInput): void {
    const operations = [
      ...[...next.disk, ...next.servers].map(toOperation),
      ...next.disk
        .filter(isFetchOrStage)
        .map(({ version }): Operation => ({ action: 'make-room', version })),
      ...this.#options.tasks.listForBundle(this.bundle).map(({ operation }) => operation),
    ];
    const current = new Set(operations.map(describeOperation));
    const planned = new Set(
      servers.filter(({ isCurrent }) => isCurrent).map(({ address }) => address),
    );
    this.problems.removeWhere(
      (operation) =>
        PLANNED_ACTIONS.has(operation.action) &&
        (operation.server === undefined || planned.has(operation.server)) &&
        !current.has(describeOperation(operation)),
    );
  }

  /** Writes what this agent knows to disk: the channels of which that has changed. */
  #saveState(): void {
    const { channels } = this;
    if (!this.problems.canTry(SAVE_STATE)) return;
    const problems = [...this.problems.list(), ...this.#options.hostProblems.list()].filter(
      ({ action }) => action !== SAVE_STATE.action,
    );
    const names = channels.channelNames.filter(
      (channel) => this.channelNames.includes(channel) || channels.snapshots.has(channel),
    );
    try {
      for (const channel of names) {
        const state = { ...channels.toSavedState(channel), problems };
        const text = JSON.stringify(state);
        if (text === this.#saved.get(channel)) continue;
        this.data.saveState(channel, state);
        this.#saved.set(channel, text);
      }
      this.problems.resolve(SAVE_STATE);
    } catch (error) {
      this.#recordFailure(SAVE_STATE, error);
    }
  }
}

const SERVER_FAULT_POINTS = {
  load: 'agent.loaded',
  activate: 'agent.activated',
  unload: 'agent.unloaded',
} as const;

function isGraph({ path }: Manifest['files'][number]): boolean {
  return path === GRAPH_FILE;
}

function isFetchOrStage(action: DiskAction): action is FetchOrStage {
  return action.kind === 'fetch' || action.kind === 'stage';
}

function toOperation(action: DiskAction | ServerAction): Operation {
  switch (action.kind) {
    case 'fetch': {
      const { version, table, layer } = action;
      return { action: 'fetch', version, table, contentId: layer.contentId };
    }
    case 'stage':
    case 'remove-version':
      return { action: action.kind, version: action.version };
    case 'remove-layer':
      return { action: 'remove-layer', ...parseLayerName(action.layer) };
    default:
      return { action: action.kind, version: action.version, server: action.server };
  }
}
