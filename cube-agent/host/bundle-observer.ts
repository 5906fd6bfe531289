/**
 * Observes one bundle of a host: channels, manifests, the disk and the servers. What cannot be read
 * now keeps its last known value and becomes a problem, so that a failed read never looks like a
 * change.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { formatManifest, getTablesDigest, type Manifest } from '../../lib/core/manifest.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { parsePublishedManifest } from '../../lib/repository/published-manifest.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { describeOperation, type Operation } from '../fleet/problem.ts';
import type { ChannelMonitor } from './channel-monitor.ts';
import type { HostData } from './host-data.ts';
import type { PlanInput, RetentionPolicy, ServerState } from './plan.ts';
import type { ProblemTracker } from './problem-tracker.ts';
import { type ServerMonitor, type ServerSnapshot, toServerState } from './server-monitor.ts';

export interface BundleObserverOptions {
  readonly repository: () => Repository;
  readonly bundle: string;
  readonly channels: ChannelMonitor;
  readonly servers: ServerMonitor;
  readonly data: HostData;
  readonly retireGraceMs: number;
  readonly problems: ProblemTracker;
  readonly logger: Logger;
}

export class BundleObserver {
  readonly #options: BundleObserverOptions;
  /** Manifests of desired versions, as published. */
  readonly #published = new Map<string, { text: string; manifest: Manifest }>();

  constructor(options: BundleObserverOptions) {
    this.#options = options;
  }

  /** The published manifest of a desired version; undefined when it was not read yet. */
  manifestText(version: string): string | undefined {
    return this.#published.get(version)?.text;
  }

  /** The published manifest, or the host's copy when it cannot be read. */
  manifest(version: string): Manifest | undefined {
    return this.#published.get(version)?.manifest ?? this.#options.data.manifest(version);
  }

  /** Reads channels and manifests from the repository, which may take any time. */
  async refresh(): Promise<void> {
    const { channels } = this.#options;
    await channels.refresh();
    const { desiredVersions } = channels;
    for (const version of this.#published.keys()) {
      if (!desiredVersions.includes(version)) this.#published.delete(version);
    }
    for (const version of desiredVersions) {
      await this.#readManifest(version);
      await this.#copyKeys(version);
    }
  }

  /** @param findLoad the version of this bundle that this agent is loading on a server */
  buildPlanInput(
    retention: RetentionPolicy,
    findLoad: (server: string) => string | undefined,
  ): PlanInput {
    const { channels, servers, data, retireGraceMs } = this.#options;
    const scanned = data.scan();
    // A copy that differs from what was published counts as missing, so it is written again.
    const onDisk = [...scanned.versions].filter((version) => this.#isPublishedCopy(version));
    const disk = { ...scanned, versions: new Set(onDisk) };
    const manifests = new Map<string, Manifest>();
    for (const version of [...this.#published.keys(), ...disk.versions]) {
      const copy = disk.versions.has(version) ? data.manifest(version) : undefined;
      const manifest = copy ?? this.#published.get(version)?.manifest;
      if (manifest !== undefined) manifests.set(version, manifest);
    }
    for (const server of servers.snapshots) this.#checkTables(server);
    return {
      desired: channels.desired,
      allChannelsRead: channels.isComplete,
      manifests,
      disk,
      servers: this.#listServerStates(findLoad),
      allServersSeen: servers.hasSeenAll,
      retireGraceMs,
      retention,
    };
  }

  #listServerStates(findLoad: (server: string) => string | undefined): ServerState[] {
    const { servers, bundle } = this.#options;
    return servers.snapshots.map((server) =>
      toServerState(server, bundle, findLoad(server.address)),
    );
  }

  /** Reads each manifest once. A failure is no problem while the host has a copy. */
  async #readManifest(version: string): Promise<void> {
    const { bundle, data, problems, repository } = this.#options;
    const operation: Operation = { action: 'read-manifest', version };
    if (this.#published.has(version) || !problems.canTry(operation)) return;
    try {
      const { location } = repository();
      const text = await repository().readManifestText(bundle, version);
      const manifest = parsePublishedManifest(text, location, bundle, version);
      const copy = data.manifest(version);
      if (copy !== undefined && !isSameManifest(copy, manifest) && this.#canBeLoaded(version)) {
        throw new CubeError(
          'CONFLICT',
          `version ${version} of ${bundle} differs from the version of that name on this host: ` +
            'the repository was created anew; stop the servers, remove the data folder, restart',
        );
      }
      this.#published.set(version, { text, manifest });
      problems.resolve(operation);
    } catch (error) {
      if (data.manifest(version) !== undefined && CubeError.from(error).code !== 'CONFLICT') return;
      this.#report(operation, error);
    }
  }

  /** Keys are rewrapped at any time. A failure is no problem: the files open with older keys. */
  async #copyKeys(version: string): Promise<void> {
    const { bundle, data, repository, logger } = this.#options;
    if (this.#published.get(version)?.manifest.encryption === undefined) return;
    try {
      data.addKeyFiles(version, await repository().readVersionKeyFiles(bundle, version));
    } catch (error) {
      const { code, message } = CubeError.from(error);
      logger.debug({ bundle, version, code, error: message }, 'cannot copy rewrapped keys');
    }
  }

  /** The host's manifest equals the published one, as far as that is known. */
  #isPublishedCopy(version: string): boolean {
    const published = this.#published.get(version)?.manifest;
    const copy = this.#options.data.manifest(version);
    return published === undefined || (copy !== undefined && isSameManifest(copy, published));
  }

  /** Some server has loaded the version or is loading it, or has not answered yet. */
  #canBeLoaded(version: string): boolean {
    if (!this.#options.servers.hasSeenAll) return true;
    return this.#listServerStates(() => undefined).some(
      ({ loading, loaded }) =>
        loading.includes(version) || loaded.some((candidate) => candidate.version === version),
    );
  }

  /**
   * Reports loaded versions whose tables are not those that were published under this name. Their
   * lookups fail, and only a restart makes the server drop them.
   */
  #checkTables({ address, status }: ServerSnapshot): void {
    const { bundle, problems, repository } = this.#options;
    const entry = status.bundles.find((candidate) => candidate.bundle === bundle);
    for (const { version, tablesDigest = '' } of entry?.versions ?? []) {
      const manifest = this.#published.get(version)?.manifest;
      if (manifest === undefined || tablesDigest === '') continue;
      const operation: Operation = { action: 'check-tables', version, server: address };
      if (tablesDigest === getTablesDigest(manifest)) problems.resolve(operation);
      else {
        const message =
          `cube-server at ${address} has loaded other tables as version ${version} of ${bundle} ` +
          `than ${repository().location} has: the repository was created anew; restart this server`;
        this.#report(operation, new CubeError('CONFLICT', message));
      }
    }
  }

  #report(operation: Operation, error: unknown): void {
    const { problems, logger } = this.#options;
    const { code, message } = CubeError.from(error);
    if (!problems.record(operation, error)) return;
    logger.warn({ code, error: message, ...operation }, `cannot ${describeOperation(operation)}`);
  }
}

/** Whether two manifests have the same content, whatever their whitespace. */
function isSameManifest(a: Manifest, b: Manifest): boolean {
  return a === b || toCachedText(a) === toCachedText(b);
}

/** Cached, since every poll compares the same immutable manifests. */
function toCachedText(manifest: Manifest): string {
  const text = textCache.get(manifest) ?? formatManifest(manifest);
  textCache.set(manifest, text);
  return text;
}

const textCache = new WeakMap<Manifest, string>();
