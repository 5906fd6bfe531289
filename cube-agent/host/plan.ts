/**
 * What an agent does next: a pure function of what is wanted and what is there. An action is planned only when its
 * precondition is seen to hold, never because an earlier action should have made it hold; so a plan may be carried
 * out in part, twice, or by an agent that was just restarted, and planning again goes on from wherever things are.
 *
 * Safety: only a held, wanted, not quarantined version is activated; an active, wanted or lately used version is not
 * unloaded; files that a server may need are not removed. A server whose shardNum is not that of a version is no
 * place for it: it keeps what it has (two shard counts coexist during a reshard).
 */
import { type LayerRef, type Manifest, shardNumOf } from '../../lib/core/manifest.ts';

interface HeldVersion {
  readonly version: string;
  /** Since its last lookup, or since it was loaded. */
  readonly idleMs: number;
}

export interface ServerState {
  readonly address: string;
  readonly shardIndex: number;
  readonly shardNum: number;
  /** One of those held. */
  readonly active: string | undefined;
  readonly held: readonly HeldVersion[];
  readonly loading: readonly string[];
  /** False: this is what it last said. It is left alone, and what it held counts as held. */
  readonly answers: boolean;
}

/** The host's own copy. A layer is named "table/contentId". */
export interface DiskState {
  /** Versions whose manifest is there: written after their layers. */
  readonly versions: ReadonlySet<string>;
  readonly layers: ReadonlySet<string>;
  /** Layers of which a part has arrived. */
  readonly parts: ReadonlySet<string>;
}

export interface Wanted {
  /** Of the first channel: what unpinned lookups shall get. Undefined while that channel points nowhere. */
  readonly pointer: string | undefined;
  readonly previous: string | undefined;
  /**
   * What further channels point to, what a rollout stages, and what those channels may go back to, in this order: held for
   * pinned lookups, never activated.
   */
  readonly others: readonly string[];
  readonly quarantined: ReadonlySet<string>;
  /** What channels pointed to before, newest first. */
  readonly past: readonly string[];
}

/** Versions in all that a host keeps on disk, and what their layers may take, beyond which only wanted ones stay. */
export interface KeepPolicy {
  readonly versions: number;
  readonly bytes: number;
}

export interface PlanInput {
  /** Undefined while nobody has pointed a channel anywhere, or none can be read: nothing is done then. */
  readonly wanted: Wanted | undefined;
  /** Every channel was read at least once: else one may want what we do not know of, and nothing goes. */
  readonly allChannelsKnown: boolean;
  /** Of the wanted versions and of those on disk, as far as they can be read. */
  readonly manifests: ReadonlyMap<string, Manifest>;
  readonly disk: DiskState;
  readonly servers: readonly ServerState[];
  /** Every configured server has answered at least once: else one may hold what we do not know of. */
  readonly allServersKnown: boolean;
  readonly retireGraceMs: number;
  readonly keep: KeepPolicy;
}

export type DiskAction =
  | {
      readonly kind: 'fetch';
      readonly version: string;
      readonly table: string;
      readonly layer: LayerRef;
    }
  /** Writes the host's copy of the manifest: the version's layers are here. */
  | { readonly kind: 'stage'; readonly version: string }
  | { readonly kind: 'remove-version'; readonly version: string }
  | { readonly kind: 'remove-layer'; readonly layer: string };

export interface ServerAction {
  readonly kind: 'load' | 'activate' | 'unload';
  readonly server: string;
  readonly version: string;
}

export interface Plan {
  /** In order: one after another. */
  readonly disk: readonly DiskAction[];
  /** Of each server in order; servers do not wait for each other. */
  readonly servers: readonly ServerAction[];
}

export const NOTHING: Plan = { disk: [], servers: [] };

export function layerName(table: string, contentId: string): string {
  return `${table}/${contentId}`;
}

export function plan(input: PlanInput): Plan {
  const { wanted } = input;
  if (wanted === undefined) return NOTHING;
  const versions = wantedVersions(wanted);
  return {
    disk: [...fetches(input, versions), ...removals(input, versions)],
    servers: input.servers
      .filter((server) => server.answers)
      .flatMap((server) => serverActions(input, wanted, versions, server)),
  };
}

/** Pointer first: what is wanted most is fetched and loaded first. */
export function wantedVersions({ pointer, previous, others, quarantined }: Wanted): string[] {
  const versions = new Set([pointer, previous, ...others]);
  return [...versions].filter(
    (version): version is string => version !== undefined && !quarantined.has(version),
  );
}

/** In a memory that has no room for all, a version of the front stays: what a rollout stages before what it would go back to. */
export function versionsByMemory({ previous, ...wanted }: Wanted): string[] {
  const others = previous === undefined ? wanted.others : [...wanted.others, previous];
  return wantedVersions({ ...wanted, previous: undefined, others });
}

/** The layers that a server of this shard needs, as [table, layer]. */
function layersOf(manifest: Manifest, shardIndex: number): [string, LayerRef][] {
  return manifest.tables.flatMap((table) =>
    (table.shards[shardIndex] ?? []).map((layer): [string, LayerRef] => [table.name, layer]),
  );
}

function fits(server: ServerState, manifest: Manifest | undefined): manifest is Manifest {
  return manifest !== undefined && shardNumOf(manifest) === server.shardNum;
}

function fetches(input: PlanInput, versions: readonly string[]): DiskAction[] {
  const actions: DiskAction[] = [];
  const planned = new Set<string>(input.disk.layers);
  for (const version of versions) {
    const manifest = input.manifests.get(version);
    const servers = input.servers.filter((server) => fits(server, manifest));
    if (manifest === undefined || servers.length === 0) continue;
    const shards = new Set(servers.map((server) => server.shardIndex));
    for (const shard of [...shards].sort((a, b) => a - b)) {
      for (const [table, layer] of layersOf(manifest, shard)) {
        const name = layerName(table, layer.contentId);
        if (planned.has(name)) continue;
        planned.add(name);
        actions.push({ kind: 'fetch', version, table, layer });
      }
    }
    if (!input.disk.versions.has(version)) actions.push({ kind: 'stage', version });
  }
  return actions;
}

function removals(input: PlanInput, versions: readonly string[]): DiskAction[] {
  const { disk, servers, manifests } = input;
  if (!input.allServersKnown || !input.allChannelsKnown) return [];
  const needed = new Set(versions);
  for (const { held, loading } of servers) {
    for (const { version } of held) needed.add(version);
    for (const version of loading) needed.add(version);
  }
  for (const version of keptVersions(input, needed)) needed.add(version);
  const actions: DiskAction[] = [];
  for (const version of disk.versions) {
    if (!needed.has(version)) actions.push({ kind: 'remove-version', version });
  }
  // A layer goes once no manifest on disk, and none that is still to arrive, names it.
  const unreadable = [...disk.versions, ...needed].some((version) => !manifests.has(version));
  if (unreadable) return actions;
  const named = new Set<string>();
  for (const version of [...disk.versions, ...needed]) {
    for (const table of manifests.get(version)?.tables ?? []) {
      for (const layer of table.shards.flat()) named.add(layerName(table.name, layer.contentId));
    }
  }
  for (const layer of new Set([...disk.layers, ...disk.parts])) {
    if (!named.has(layer)) actions.push({ kind: 'remove-layer', layer });
  }
  return actions;
}

/** Of the versions on disk that nobody needs now, the newest that the policy has room for: going back to one takes no fetch. */
function keptVersions({ wanted, disk, manifests, keep }: PlanInput, needed: Set<string>): string[] {
  const layers = new Map<string, number>();
  const addLayers = (version: string): void => {
    for (const table of manifests.get(version)?.tables ?? []) {
      for (const { contentId, bytes } of table.shards.flat()) {
        const name = layerName(table.name, contentId);
        if (disk.layers.has(name)) layers.set(name, bytes);
      }
    }
  };
  for (const version of needed) addLayers(version);
  const kept: string[] = [];
  for (const version of wanted?.past ?? []) {
    if (needed.has(version) || !disk.versions.has(version)) continue;
    if (wanted?.quarantined.has(version) || !manifests.has(version)) continue;
    addLayers(version);
    const bytes = [...layers.values()].reduce((sum, layerBytes) => sum + layerBytes, 0);
    if (needed.size + kept.length >= keep.versions || bytes > keep.bytes) break;
    kept.push(version);
  }
  return kept;
}

function serverActions(
  input: PlanInput,
  wanted: Wanted,
  versions: readonly string[],
  server: ServerState,
): ServerAction[] {
  const act = (kind: ServerAction['kind'], version: string): ServerAction => ({
    kind,
    server: server.address,
    version,
  });
  const held = new Set(server.held.map(({ version }) => version));
  const activate = versionToActivate(input, wanted, server);
  // What nobody uses goes first: a version to load may need its memory.
  const unload = (input.allChannelsKnown ? server.held : [])
    .filter(({ version, idleMs }) => {
      const used = version === server.active || version === activate || versions.includes(version);
      return !used && idleMs >= input.retireGraceMs;
    })
    .map(({ version }) => act('unload', version));
  const load = versions
    .filter((version) => !held.has(version) && !server.loading.includes(version))
    .filter((version) => isStaged(input, version, server))
    .map((version) => act('load', version));
  return [...(activate === undefined ? [] : [act('activate', activate)]), ...unload, ...load];
}

/**
 * The first channel's pointer as soon as it is held; before that a server that answers nothing yet gets the previous
 * version. What only other channels want is for those who ask for it by name.
 */
function versionToActivate(
  input: PlanInput,
  { pointer, previous, quarantined }: Wanted,
  server: ServerState,
): string | undefined {
  const usable = [pointer, previous].filter(
    (version): version is string =>
      version !== undefined &&
      !quarantined.has(version) &&
      fits(server, input.manifests.get(version)) &&
      server.held.some((held) => held.version === version),
  );
  const best = usable[0];
  if (best === undefined || best === server.active) return undefined;
  return best === pointer || server.active === undefined ? best : undefined;
}

/** Manifest and all layers of this server's shard are on disk. */
function isStaged({ manifests, disk }: PlanInput, version: string, server: ServerState): boolean {
  const manifest = manifests.get(version);
  if (!fits(server, manifest) || !disk.versions.has(version)) return false;
  return layersOf(manifest, server.shardIndex).every(([table, layer]) =>
    disk.layers.has(layerName(table, layer.contentId)),
  );
}
