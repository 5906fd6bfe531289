/**
 * What an agent sees: the channel, the manifests, the host's disk, each server's status. What cannot be read now is
 * taken as last known and listed as a problem, so that one failure never looks like a change of plan.
 */
import { CubeError } from '../lib/core/errors.ts';
import { formatManifest, type Manifest, parseManifest } from '../lib/core/manifest.ts';
import { tablesDigest } from '../lib/core/tables-digest.ts';
import type { Clock } from '../lib/platform/clock.ts';
import type { Logger } from '../lib/platform/logs.ts';
import type { Repository } from '../lib/repository/repository.ts';
import type { ControlStatus } from '../proto/control.ts';
import type { ControlClient } from './control-client.ts';
import type { HostData } from './host-data.ts';
import type { PlanInput, ServerState, Wanted } from './plan.ts';
import type { Problems } from './problems.ts';

export interface ObserverOptions {
  /** Called until it succeeds: the repository may be away when the agent starts. */
  readonly openRepository: () => Repository;
  readonly bundle: string;
  readonly channel: string;
  readonly host: HostData;
  readonly servers: readonly ControlClient[];
  readonly retireGraceMs: number;
  readonly problems: Problems;
  readonly clock: Clock;
  readonly logger: Logger;
}

/** How long one look waits for the servers' answers; a later answer counts in the next look. */
const PATIENCE_MS = 500;

interface KnownServer {
  readonly state: ServerState;
  readonly pid: number;
}

export class Observer {
  readonly #options: ObserverOptions;
  #repository: Repository | undefined;
  #wanted: Wanted | undefined;
  readonly #published = new Map<string, { text: string; manifest: Manifest }>();
  readonly #known = new Map<string, KnownServer>();
  /** Servers that were asked and have not answered yet: one that hangs must not hold up the others. */
  readonly #asking = new Map<string, Promise<void>>();

  constructor(options: ObserverOptions) {
    this.#options = options;
    const memory = options.host.recall(options.channel);
    if (memory?.pointer !== undefined) {
      const { pointer, previous, quarantined } = memory;
      this.#wanted = { pointer, previous, quarantined: new Set(quarantined) };
    }
  }

  get repository(): Repository {
    this.#repository ??= this.#options.openRepository();
    return this.#repository;
  }

  /** The manifest as published, of a wanted version whose manifest was seen. */
  manifestText(version: string): string | undefined {
    return this.#published.get(version)?.text;
  }

  /** @param isLoading a load that this agent itself has under way */
  async observe(
    isLoading: (server: string) => string | undefined,
    signal: AbortSignal,
  ): Promise<PlanInput> {
    const { host, servers, retireGraceMs } = this.#options;
    await this.#readChannel();
    const wanted = this.#wanted;
    const versions = this.#versionsOf(wanted);
    for (const version of this.#published.keys()) {
      if (!versions.includes(version)) this.#published.delete(version);
    }
    for (const version of versions) await this.#readManifest(version);
    await this.#askServers(signal);
    const scanned = host.scan();
    // A copy that is not what was published counts as absent: it is written again.
    const onDisk = [...scanned.versions].filter((version) => this.#isCopy(version));
    const disk = { ...scanned, versions: new Set(onDisk) };
    const manifests = new Map<string, Manifest>();
    for (const [version, { manifest }] of this.#published) manifests.set(version, manifest);
    for (const version of disk.versions) {
      const manifest = host.manifest(version);
      if (manifest !== undefined) manifests.set(version, manifest);
    }
    const states = [...this.#known.values()].map(({ state }) => {
      const loading = isLoading(state.address);
      return {
        ...state,
        answers: state.answers && !this.#asking.has(state.address),
        loading: loading === undefined ? state.loading : [...state.loading, loading],
      };
    });
    const allServersKnown = states.length === servers.length;
    return { wanted, manifests, disk, servers: states, allServersKnown, retireGraceMs };
  }

  #versionsOf(wanted: Wanted | undefined): string[] {
    if (wanted === undefined) return [];
    const { pointer, previous } = wanted;
    return previous === undefined ? [pointer] : [pointer, previous];
  }

  async #readChannel(): Promise<void> {
    const { bundle, channel, problems, logger } = this.#options;
    const what = 'read the channel';
    try {
      const { pointer, previous } = await this.repository.channel(bundle, channel);
      const quarantined = await this.repository.quarantined(bundle);
      if (pointer === undefined && this.#wanted !== undefined) {
        const { location } = this.repository;
        throw new CubeError(
          'NOT_FOUND',
          `channel ${channel} of ${bundle} is gone from ${location}: it pointed to ` +
            `${this.#wanted.pointer}, which is kept; bring the repository back, or activate a version`,
        );
      }
      if (problems.clear(what)) logger.info({ channel }, 'the repository answers again');
      if (pointer === undefined) return;
      if (pointer.version !== this.#wanted?.pointer) {
        const { version, seq, by, reason } = pointer;
        logger.info({ channel, version, previous: previous?.version, seq, by, reason }, 'wanted');
      }
      this.#wanted = { pointer: pointer.version, previous: previous?.version, quarantined };
    } catch (error) {
      this.#report(what, error);
    }
  }

  /** Asks the repository once for each version, and does without it where the host has its copy. */
  async #readManifest(version: string): Promise<void> {
    const { bundle, host, problems } = this.#options;
    const what = `read the manifest of ${version}`;
    if (this.#published.has(version) || !problems.mayTry(what)) return;
    try {
      const text = await this.repository.manifestText(bundle, version);
      const manifest = parseManifest(text, `${this.repository.location}: ${bundle} ${version}`);
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
    if (this.#known.size < this.#options.servers.length) return true;
    return [...this.#known.values()].some(
      ({ state }) =>
        state.loading.includes(version) || state.held.some((held) => held.version === version),
    );
  }

  async #askServers(signal: AbortSignal): Promise<void> {
    for (const server of this.#options.servers) {
      const { address } = server;
      if (this.#asking.has(address)) continue;
      const asking = this.#readStatus(server, signal).finally(() => this.#asking.delete(address));
      this.#asking.set(address, asking);
    }
    const patience = new AbortController();
    const waited = this.#options.clock.sleep(PATIENCE_MS, patience.signal);
    await Promise.race([Promise.all(this.#asking.values()), waited]);
    patience.abort();
  }

  async #readStatus(server: ControlClient, signal: AbortSignal): Promise<void> {
    const { address } = server;
    const { problems, logger } = this.#options;
    const what = `ask server ${address}`;
    const known = this.#known.get(address);
    try {
      const status = await server.status(signal);
      const { pid, shardIndex, shardNum } = status;
      const isBack = problems.clear(what);
      if (known?.pid !== pid || isBack) {
        // A new process knows nothing of earlier failures: it is loaded at once.
        problems.forget((problem) => problem.endsWith(` on ${address}`));
        logger.info({ server: address, shardIndex, shardNum, serverPid: pid }, 'server answers');
      }
      this.#known.set(address, { pid, state: this.#stateOf(address, status) });
      this.#checkRows(address, status);
    } catch (error) {
      if (signal.aborted) return;
      if (known !== undefined) {
        this.#known.set(address, { ...known, state: { ...known.state, answers: false } });
      }
      this.#report(what, error);
    }
  }

  /** Of one name, but not the rows that were published: its lookups fail, and only a restart makes the server forget them. */
  #checkRows(address: string, { bundles }: ControlStatus): void {
    const { bundle, problems } = this.#options;
    const entry = bundles.find((candidate) => candidate.bundle === bundle);
    for (const { version, tablesDigest: held = '' } of entry?.versions ?? []) {
      const manifest = this.#published.get(version)?.manifest;
      if (manifest === undefined || held === '') continue;
      const what = `use version ${version} on ${address}`;
      if (held === tablesDigest(manifest)) problems.clear(what);
      else {
        const message =
          `cube-server at ${address} holds other rows under the name ${version} than ${bundle} ${version} has ` +
          `in ${this.repository.location}: the repository was made anew; restart this server`;
        this.#report(what, new CubeError('CONFLICT', message));
      }
    }
  }

  #stateOf(address: string, status: ControlStatus): ServerState {
    const { bundle } = this.#options;
    const entry = status.bundles.find((candidate) => candidate.bundle === bundle);
    return {
      address,
      shardIndex: status.shardIndex,
      shardNum: status.shardNum,
      active: entry === undefined || entry.active === '' ? undefined : entry.active,
      held: (entry?.versions ?? []).map(({ version, idleMs }) => ({ version, idleMs })),
      loading: status.loading.filter((load) => load.bundle === bundle).map((load) => load.version),
      answers: true,
    };
  }

  #report(what: string, error: unknown): void {
    const { problems, logger } = this.#options;
    const { code, message } = CubeError.from(error);
    if (problems.add(what, error)) logger.warn({ code, error: message }, `cannot ${what}`);
  }
}

/** Equal whatever spaces their texts have. */
function sameContent(a: Manifest, b: Manifest): boolean {
  return formatManifest(a) === formatManifest(b);
}
