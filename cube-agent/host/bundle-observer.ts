/**
 * What an agent sees of one bundle: channels, manifests, the host's disk, the servers. What cannot be read now is taken
 * as last known and listed as a problem, so that one failure never looks like a change of plan.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { formatManifest, type Manifest } from '../../lib/core/manifest.ts';
import { tablesDigest } from '../../lib/core/tables-digest.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { readPublished } from '../../lib/repository/published-manifest.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { ChannelWatch } from './channel-watch.ts';
import type { HostData } from './host-data.ts';
import type { KeepPolicy, PlanInput, ServerState } from './plan.ts';
import type { Problems } from './problems.ts';
import { type KnownServer, type ServerWatch, serverState } from './server-watch.ts';

export interface BundleObserverOptions {
  readonly repository: () => Repository;
  readonly bundle: string;
  readonly channels: ChannelWatch;
  readonly servers: ServerWatch;
  readonly host: HostData;
  readonly retireGraceMs: number;
  readonly problems: Problems;
  readonly logger: Logger;
}

export class BundleObserver {
  readonly #options: BundleObserverOptions;
  readonly #published = new Map<string, { text: string; manifest: Manifest }>();

  constructor(options: BundleObserverOptions) {
    this.#options = options;
  }

  /** The manifest as published, of a wanted version whose manifest was seen. */
  manifestText(version: string): string | undefined {
    return this.#published.get(version)?.text;
  }

  /** As published, or, where that cannot be read, the host's copy. */
  manifest(version: string): Manifest | undefined {
    return this.#published.get(version)?.manifest ?? this.#options.host.manifest(version);
  }

  /** Asks the repository; may take as long as it takes to answer. */
  async look(): Promise<void> {
    const { channels } = this.#options;
    await channels.read();
    const { versions } = channels;
    for (const version of this.#published.keys()) {
      if (!versions.includes(version)) this.#published.delete(version);
    }
    for (const version of versions) await this.#readManifest(version);
  }

  /** @param loadingOn a load of this bundle that this agent itself has under way on a server */
  input(keep: KeepPolicy, loadingOn: (server: string) => string | undefined): PlanInput {
    const { channels, servers, host, retireGraceMs } = this.#options;
    const scanned = host.scan();
    // A copy that is not what was published counts as absent: it is written again.
    const onDisk = [...scanned.versions].filter((version) => this.#isCopy(version));
    const disk = { ...scanned, versions: new Set(onDisk) };
    const manifests = new Map<string, Manifest>();
    for (const version of [...this.#published.keys(), ...disk.versions]) {
      const manifest = disk.versions.has(version) ? host.manifest(version) : undefined;
      const known = manifest ?? this.#published.get(version)?.manifest;
      if (known !== undefined) manifests.set(version, known);
    }
    for (const server of servers.known) this.#checkRows(server);
    return {
      wanted: channels.wanted,
      allChannelsKnown: channels.allKnown,
      manifests,
      disk,
      servers: this.#states(loadingOn),
      allServersKnown: servers.allKnown,
      retireGraceMs,
      keep,
    };
  }

  #states(loadingOn: (server: string) => string | undefined): ServerState[] {
    const { servers, bundle } = this.#options;
    return servers.known.map((server) => serverState(server, bundle, loadingOn(server.address)));
  }

  /** Asks the repository once for each version, and does without it where the host has its copy. */
  async #readManifest(version: string): Promise<void> {
    const { bundle, host, problems, repository } = this.#options;
    const what = `read the manifest of ${version}`;
    if (this.#published.has(version) || !problems.mayTry(what)) return;
    try {
      const { location } = repository();
      const text = await repository().manifestText(bundle, version);
      const manifest = readPublished(text, location, bundle, version);
      const own = host.manifest(version);
      if (own !== undefined && !sameContent(own, manifest) && this.#mayBeHeld(version)) {
        throw new CubeError(
          'CONFLICT',
          `version ${version} of ${bundle} is not what this host holds under that name: the ` +
            'repository was made anew; stop the servers, remove the data folder, start again',
        );
      }
      this.#published.set(version, { text, manifest });
      problems.clear(what);
    } catch (error) {
      if (host.manifest(version) !== undefined && CubeError.from(error).code !== 'CONFLICT') return;
      this.#report(what, error);
    }
  }

  /** The host's manifest is the published one, as far as that is known. */
  #isCopy(version: string): boolean {
    const published = this.#published.get(version)?.manifest;
    const own = this.#options.host.manifest(version);
    return published === undefined || (own !== undefined && sameContent(own, published));
  }

  /** Some server holds the version or loads it, or has not said yet. */
  #mayBeHeld(version: string): boolean {
    if (!this.#options.servers.allKnown) return true;
    return this.#states(() => undefined).some(
      ({ loading, held }) =>
        loading.includes(version) || held.some((candidate) => candidate.version === version),
    );
  }

  /** Of one name, but not the rows that were published: its lookups fail, and only a restart makes the server forget them. */
  #checkRows({ address, status }: KnownServer): void {
    const { bundle, problems, repository } = this.#options;
    const entry = status.bundles.find((candidate) => candidate.bundle === bundle);
    for (const { version, tablesDigest: held = '' } of entry?.versions ?? []) {
      const manifest = this.#published.get(version)?.manifest;
      if (manifest === undefined || held === '') continue;
      const what = `use version ${version} on ${address}`;
      if (held === tablesDigest(manifest)) problems.clear(what);
      else {
        const message =
          `cube-server at ${address} holds other rows under the name ${version} than ${bundle} ${version} has ` +
          `in ${repository().location}: the repository was made anew; restart this server`;
        this.#report(what, new CubeError('CONFLICT', message));
      }
    }
  }

  #report(what: string, error: unknown): void {
    const { problems, logger } = this.#options;
    const { code, message } = CubeError.from(error);
    if (problems.add(what, error)) logger.warn({ code, error: message }, `cannot ${what}`);
  }
}

/** Equal whatever spaces their texts have. */
function sameContent(a: Manifest, b: Manifest): boolean {
  return a === b || textOf(a) === textOf(b);
}

/** Asked in every look, of manifests that do not change. */
function textOf(manifest: Manifest): string {
  const text = texts.get(manifest) ?? formatManifest(manifest);
  texts.set(manifest, text);
  return text;
}

const texts = new WeakMap<Manifest, string>();
