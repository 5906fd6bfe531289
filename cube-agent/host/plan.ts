/**
 * What an agent does next: a pure function of the desired and the observed state. An action is
 * planned only when its precondition is observed, never because an earlier action should have
 * established it. So a plan may be carried out in part, twice, or by an agent that has just
 * restarted; planning again continues from the actual state.
 *
 * Safety rules:
 * - Only a loaded, desired version that is not quarantined is activated.
 * - A server leaves a quarantined version as soon as it has loaded another desired one.
 * - A version that is active, desired or recently looked up is not unloaded.
 * - Files that a server may need are not removed.
 * - A server loads only versions of its own shard count. Others leave it unchanged, so that two
 *   shard counts can coexist during a reshard.
 */
import { getShardNum, type LayerRef, type Manifest } from '../../lib/core/manifest.ts';

interface LoadedVersion {
  readonly version: string;
  /** Since its last lookup, or since it was loaded. */
  readonly idleMs: number;
}

export interface ServerState {
  readonly address: string;
  readonly shardIndex: number;
  readonly shardNum: number;
  /** One of the loaded versions. */
  readonly active: string | undefined;
  readonly loaded: readonly LoadedVersion[];
  /** Versions that are being loaded. */
  readonly loading: readonly string[];
  /**
   * False: this is the last known state of a server that does not answer or has changed since. No
   * action is planned for it, and its versions still count as loaded.
   */
  readonly isCurrent: boolean;
}

/** The host's own copy of the repository. A layer is named "table/contentId". */
export interface DiskState {
  /** Versions whose manifest is on disk. It is written after all their layers. */
  readonly versions: ReadonlySet<string>;
  readonly layers: ReadonlySet<string>;
  readonly partialLayers: ReadonlySet<string>;
}

/** The versions that the channels of a bundle ask for. */
export interface DesiredVersions {
  /** Version of the first channel, for lookups without a version. Undefined: it has none yet. */
  readonly pointer: string | undefined;
  /** The version that the first channel would roll back to. */
  readonly previous: string | undefined;
  /**
   * Versions that are loaded for lookups by name and never activated, in order of priority: those
   * of further channels, the rollout candidate, and what the further channels would roll back to.
   */
  readonly loadOnly: readonly string[];
  readonly quarantined: ReadonlySet<string>;
  /** All versions that the channels have pointed to, newest first. */
  readonly history: readonly string[];
}

/** Limits up to which a host keeps versions on disk that are no longer desired. */
export interface RetentionPolicy {
  /** Versions on disk, desired ones included. */
  readonly maxVersions: number;
  /** Bytes of their layers. */
  readonly maxBytes: number;
}

export interface PlanInput {
  /** Undefined while no channel points to a version or none can be read: nothing is planned. */
  readonly desired: DesiredVersions | undefined;
  /** Every channel was read at least once. Until then nothing is removed or unloaded. */
  readonly allChannelsRead: boolean;
  /** Readable manifests of desired versions and of versions on disk. */
  readonly manifests: ReadonlyMap<string, Manifest>;
  readonly disk: DiskState;
  readonly servers: readonly ServerState[];
  /** Every configured server has answered at least once. Until then no file is removed. */
  readonly allServersSeen: boolean;
  /** How long a version stays loaded after its last lookup. */
  readonly retireGraceMs: number;
  readonly retention: RetentionPolicy;
}

export type DiskAction =
  | {
      readonly kind: 'fetch';
      readonly version: string;
      readonly table: string;
      readonly layer: LayerRef;
    }
  /** Writes the host's copy of the manifest once all layers of the version are on disk. */
  | { readonly kind: 'stage'; readonly version: string }
  | { readonly kind: 'remove-version'; readonly version: string }
  | { readonly kind: 'remove-layer'; readonly layer: string };

export interface ServerAction {
  readonly kind: 'load' | 'activate' | 'unload';
  readonly server: string;
  readonly version: string;
}

export interface Plan {
  /** To be carried out in this order. */
  readonly disk: readonly DiskAction[];
  /** In order for each server; servers do not wait for each other. */
  readonly servers: readonly ServerAction[];
}

export const EMPTY_PLAN: Plan = { disk: [], servers: [] };

export function toLayerName(table: string, contentId: string): string {
  return `${table}/${contentId}`;
}

export function parseLayerName(name: string): { table: string; contentId: string } {
  const [table = '', contentId = ''] = name.split('/');
  return { table, contentId };
}

export function plan(input: PlanInput): Plan {
  const { desired } = input;
  if (desired === undefined) return EMPTY_PLAN;
  const versions = listDesiredVersions(desired);
  return {
    disk: [...planFetches(input, versions), ...planRemovals(input, versions)],
    servers: input.servers
      .filter((server) => server.isCurrent)
      .flatMap((server) => planServerActions(input, desired, versions, server)),
  };
}

/** Versions to fetch and load, most important first. */
export function listDesiredVersions(desired: DesiredVersions): string[] {
  const { pointer, previous, loadOnly, quarantined } = desired;
  const versions = new Set([pointer, previous, ...loadOnly]);
  return [...versions].filter(
    (version): version is string => version !== undefined && !quarantined.has(version),
  );
}

/**
 * The same versions in the order in which they stay in a memory that has no room for all: here the
 * rollback target comes last, after the rollout candidate.
 */
export function orderByMemoryPriority({ previous, ...desired }: DesiredVersions): string[] {
  const loadOnly = previous === undefined ? desired.loadOnly : [...desired.loadOnly, previous];
  return listDesiredVersions({ ...desired, previous: undefined, loadOnly });
}

/** The layers that a server of this shard needs, as [table, layer]. */
function listShardLayers(manifest: Manifest, shardIndex: number): [string, LayerRef][] {
  return manifest.tables.flatMap((table) =>
    (table.shards[shardIndex] ?? []).map((layer): [string, LayerRef] => [table.name, layer]),
  );
}

/** A server can load only versions of its own shard count. */
function canLoad(server: ServerState, manifest: Manifest | undefined): manifest is Manifest {
  return manifest !== undefined && getShardNum(manifest) === server.shardNum;
}

function planFetches(input: PlanInput, versions: readonly string[]): DiskAction[] {
  const actions: DiskAction[] = [];
  const present = new Set<string>(input.disk.layers);
  for (const version of versions) {
    const manifest = input.manifests.get(version);
    const servers = input.servers.filter((server) => canLoad(server, manifest));
    if (manifest === undefined || servers.length === 0) continue;
    const shards = new Set(servers.map((server) => server.shardIndex));
    for (const shard of [...shards].sort((a, b) => a - b)) {
      for (const [table, layer] of listShardLayers(manifest, shard)) {
        const name = toLayerName(table, layer.contentId);
        if (present.has(name)) continue;
        present.add(name);
        actions.push({ kind: 'fetch', version, table, layer });
      }
    }
    if (!input.disk.versions.has(version)) actions.push({ kind: 'stage', version });
  }
  return actions;
}

function planRemovals(input: PlanInput, desired: readonly string[]): DiskAction[] {
  const { disk, servers, manifests } = input;
  if (!input.allServersSeen || !input.allChannelsRead) return [];
  const needed = new Set(desired);
  for (const { loaded, loading } of servers) {
    for (const { version } of loaded) needed.add(version);
    for (const version of loading) needed.add(version);
  }
  for (const version of selectRetainedVersions(input, needed)) needed.add(version);
  const actions: DiskAction[] = [];
  for (const version of disk.versions) {
    if (!needed.has(version)) actions.push({ kind: 'remove-version', version });
  }
  // A layer is removed only when no manifest on disk, and none that is yet to arrive, refers to it.
  const versions = [...disk.versions, ...needed];
  if (versions.some((version) => !manifests.has(version))) return actions;
  const referenced = new Set<string>();
  for (const version of versions) {
    for (const table of manifests.get(version)?.tables ?? []) {
      for (const { contentId } of table.shards.flat()) {
        referenced.add(toLayerName(table.name, contentId));
      }
    }
  }
  for (const layer of new Set([...disk.layers, ...disk.partialLayers])) {
    if (!referenced.has(layer)) actions.push({ kind: 'remove-layer', layer });
  }
  return actions;
}

/**
 * The newest versions on disk that are not needed but fit the retention policy: a rollback to one
 * of them needs no fetch.
 */
function selectRetainedVersions(input: PlanInput, needed: ReadonlySet<string>): string[] {
  const { desired, disk, manifests, retention } = input;
  const layerBytes = new Map<string, number>();
  const addLayers = (version: string): void => {
    for (const table of manifests.get(version)?.tables ?? []) {
      for (const { contentId, bytes } of table.shards.flat()) {
        const name = toLayerName(table.name, contentId);
        if (disk.layers.has(name)) layerBytes.set(name, bytes);
      }
    }
  };
  for (const version of needed) addLayers(version);
  const retained: string[] = [];
  for (const version of desired?.history ?? []) {
    if (needed.has(version) || !disk.versions.has(version)) continue;
    if (desired?.quarantined.has(version) || !manifests.has(version)) continue;
    addLayers(version);
    const totalBytes = [...layerBytes.values()].reduce((sum, bytes) => sum + bytes, 0);
    const isFull = needed.size + retained.length >= retention.maxVersions;
    if (isFull || totalBytes > retention.maxBytes) break;
    retained.push(version);
  }
  return retained;
}

function planServerActions(
  input: PlanInput,
  desired: DesiredVersions,
  versions: readonly string[],
  server: ServerState,
): ServerAction[] {
  const toAction = (kind: ServerAction['kind'], version: string): ServerAction => ({
    kind,
    server: server.address,
    version,
  });
  const activate = chooseVersionToActivate(input, desired, server);
  // Unload before loading: the next version may need the memory.
  const unload = (input.allChannelsRead ? server.loaded : [])
    .filter(({ version, idleMs }) => {
      const isActive = version === server.active || version === activate;
      return !isActive && !versions.includes(version) && idleMs >= input.retireGraceMs;
    })
    .map(({ version }) => toAction('unload', version));
  const present = new Set([...server.loaded.map(({ version }) => version), ...server.loading]);
  const load = versions
    .filter((version) => !present.has(version) && isStaged(input, version, server))
    .map((version) => toAction('load', version));
  return [...(activate === undefined ? [] : [toAction('activate', activate)]), ...unload, ...load];
}

/**
 * The first channel's version as soon as it is loaded. Until then a server without an active
 * version, or with a quarantined one, gets the previous one. Versions of further channels are for
 * lookups by name only.
 */
function chooseVersionToActivate(
  input: PlanInput,
  { pointer, previous, quarantined }: DesiredVersions,
  server: ServerState,
): string | undefined {
  const best = [pointer, previous].find(
    (version) =>
      version !== undefined &&
      !quarantined.has(version) &&
      canLoad(server, input.manifests.get(version)) &&
      server.loaded.some((loaded) => loaded.version === version),
  );
  if (best === undefined || best === server.active) return undefined;
  const canStay = server.active !== undefined && !quarantined.has(server.active);
  return best === pointer || !canStay ? best : undefined;
}

/** The manifest and all layers of this server's shard are on disk. */
function isStaged({ manifests, disk }: PlanInput, version: string, server: ServerState): boolean {
  const manifest = manifests.get(version);
  if (!canLoad(server, manifest) || !disk.versions.has(version)) return false;
  return listShardLayers(manifest, server.shardIndex).every(([table, layer]) =>
    disk.layers.has(toLayerName(table, layer.contentId)),
  );
}
