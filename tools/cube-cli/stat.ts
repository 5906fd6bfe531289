/** Describes a layer file, a version or servers without reading rows. */

import { isOriginal, readServerStatus } from '../../lib/client/server-status.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { Fleet } from '../../lib/core/fleet.ts';
import type { LayerHeader } from '../../lib/core/layer-format.ts';
import {
  getShardNum,
  getTablesDigest,
  type Manifest,
  type TableRef,
} from '../../lib/core/manifest.ts';
import { versionKey } from '../../lib/core/names.ts';
import { formatBytes, formatTable } from '../../lib/platform/terminal-output.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';
import type { ControlStatus } from '../../proto/control.ts';

const ORIGINAL_KIND = 'PaddlePaddle Cube (C++)';
/** The text output lists shards one by one up to this number. */
const SHARDS_SHOWN_MAX = 64;

export function toLayerJson(header: LayerHeader): object {
  const { table, kind, layout, dtype, dim, rowBytes, rowCount, deletedCount } = header;
  const { shardIndex, shardNum, contentId, parentContentId, fileBytes, blockCount } = header;
  return {
    table,
    kind,
    layout,
    dtype,
    dim,
    rowBytes,
    rows: rowCount,
    deleted: deletedCount,
    shardIndex,
    shardNum,
    bytes: fileBytes,
    blocks: blockCount,
    contentId,
    ...(kind === 'delta' ? { parentContentId } : {}),
  };
}

export function formatLayer(header: LayerHeader): string {
  const rows = Object.entries(toLayerJson(header)).map(([name, value]) => [name, String(value)]);
  return formatTable(['field', 'value'], rows);
}

interface ShardStat {
  readonly shard: number;
  readonly layers: number;
  readonly rows: number;
  readonly bytes: number;
}

function computeShardStats({ shards }: TableRef): ShardStat[] {
  return shards.map((layers, shard) => ({
    shard,
    layers: layers.length,
    rows: layers.reduce((sum, layer) => sum + layer.rows, 0),
    bytes: layers.reduce((sum, layer) => sum + layer.bytes, 0),
  }));
}

export function toVersionJson(manifest: Manifest): object {
  const { bundle, version, files, hash, slots, tables } = manifest;
  return {
    bundle,
    version,
    shardNum: getShardNum(manifest),
    tablesDigest: getTablesDigest(manifest),
    hash: { scheme: hash.scheme, seed: String(hash.seed), modulo: String(hash.modulo) },
    slots: slots.length,
    files: files.map(({ path, bytes }) => ({ path, bytes })),
    tables: tables.map((table) => {
      const shards = computeShardStats(table);
      const { name, dim, dtype, rows } = table;
      const depth = Math.max(...shards.map(({ layers }) => layers));
      const bytes = shards.reduce((sum, shard) => sum + shard.bytes, 0);
      return { name, dim, dtype, rows, bytes, depth, shards };
    }),
  };
}

/** Formats a version. Its rows are those of all layers, including replaced ones. */
export function formatVersion(manifest: Manifest): string {
  const { bundle, version, hash, slots, tables } = manifest;
  const shardNum = getShardNum(manifest);
  const head =
    `${bundle} ${version}: ${tables.length} tables in ${shardNum} shards, keys ${hash.scheme}` +
    `${hash.modulo === 0n ? '' : ` mod ${hash.modulo}`}, ${slots.length} slots`;
  const lines = tables.map((table) => {
    const shards = computeShardStats(table);
    const bytes = shards.reduce((sum, shard) => sum + shard.bytes, 0);
    const depth = Math.max(...shards.map(({ layers }) => layers));
    const { name, dim, dtype, rows } = table;
    return [name, String(dim), dtype, String(rows), formatBytes(bytes), String(depth)];
  });
  const parts = [head, formatTable(['table', 'dim', 'dtype', 'rows', 'bytes', 'chain'], lines)];
  if (shardNum <= SHARDS_SHOWN_MAX) {
    const perShard = tables.flatMap((table) =>
      computeShardStats(table).map(({ shard, layers, rows, bytes }) => [
        table.name,
        String(shard),
        String(layers),
        String(rows),
        formatBytes(bytes),
      ]),
    );
    parts.push(formatTable(['table', 'shard', 'layers', 'rows', 'bytes'], perShard));
  }
  return parts.join('\n\n');
}

/** The status of one server, or why it could not be read. */
export interface ReplicaStat {
  readonly address: string;
  readonly shard: number | undefined;
  readonly status: ControlStatus | undefined;
  /** The version of a server of PaddlePaddle Cube (C++), which has no status. */
  readonly originalVersion?: string;
  readonly error: string | undefined;
}

/** Reads the status of servers by their control endpoints; `shard` is undefined when unknown. */
export async function readReplicaStats(
  replicas: readonly { readonly address: string; readonly shard: number | undefined }[],
  options: { readonly credentials: Credentials; readonly timeoutMs: number },
): Promise<ReplicaStat[]> {
  return Promise.all(
    replicas.map(async ({ address, shard }): Promise<ReplicaStat> => {
      try {
        const status = await readServerStatus(address, options);
        if (isOriginal(status)) {
          const { originalVersion } = status;
          return { address, shard, status: undefined, originalVersion, error: undefined };
        }
        return { address, shard: shard ?? status.shardIndex, status, error: undefined };
      } catch (error) {
        return { address, shard, status: undefined, error: CubeError.from(error).message };
      }
    }),
  );
}

/** Lists the control endpoints of a bundle. @throws CubeError NOT_FOUND when the fleet lacks it */
export function listReplicas(fleet: Fleet, bundle: string): { address: string; shard: number }[] {
  const maps = fleet.bundles.get(bundle);
  if (maps === undefined) {
    const known = [...fleet.bundles.keys()].join(', ');
    throw new CubeError('NOT_FOUND', `the fleet has no bundle ${bundle} (it has: ${known})`);
  }
  return maps.flatMap(({ shards }) =>
    shards.flatMap((replicas, shard) =>
      replicas.map(({ control }) => ({ address: control, shard })),
    ),
  );
}

interface LoadedVersion {
  readonly bundle: string;
  readonly version: string;
  readonly active: boolean;
  readonly rows: number;
  readonly bytes: number;
  /** Whether the tables match the manifest; undefined when there is none to compare with. */
  readonly asPublished?: boolean;
}

function listLoadedVersions(
  { bundles }: ControlStatus,
  bundle: string | undefined,
  manifest: Manifest | undefined,
): LoadedVersion[] {
  return bundles
    .filter((entry) => bundle === undefined || entry.bundle === bundle)
    .flatMap((entry) =>
      entry.versions.map(({ version, rows, bytes, tablesDigest: digest }) => {
        const compared = manifest?.bundle === entry.bundle && manifest.version === version;
        const asPublished = compared ? digest === getTablesDigest(manifest) : undefined;
        const loaded = {
          bundle: entry.bundle,
          version,
          active: version === entry.active,
          rows,
          bytes,
        };
        return asPublished === undefined ? loaded : { ...loaded, asPublished };
      }),
    );
}

export function toReplicasJson(
  replicas: readonly ReplicaStat[],
  bundle: string | undefined,
  manifest: Manifest | undefined,
): object[] {
  return replicas.map(({ address, shard, status, originalVersion, error }) => {
    if (originalVersion !== undefined) {
      return { address, shard, kind: ORIGINAL_KIND, ready: true, version: originalVersion };
    }
    if (status === undefined) return { address, shard, error };
    const { shardNum, ready, memory } = status;
    return {
      address,
      shard,
      shardNum,
      ready,
      memory,
      versions: listLoadedVersions(status, bundle, manifest),
    };
  });
}

export function formatReplicas(
  replicas: readonly ReplicaStat[],
  bundle: string | undefined,
  manifest: Manifest | undefined,
): string {
  const rows = replicas.map(({ address, shard, status, originalVersion, error }) => {
    const server = [String(shard ?? '?'), address];
    if (originalVersion !== undefined) {
      return [...server, 'yes', `${originalVersion || '(data folder)'}*`, '-', ORIGINAL_KIND];
    }
    if (status === undefined) return [...server, 'no', '-', '-', error ?? ''];
    const loaded = listLoadedVersions(status, bundle, manifest).map((entry) => {
      const name = bundle === undefined ? versionKey(entry) : entry.version;
      const other = entry.asPublished === false ? ' (rows differ from the manifest)' : '';
      return `${name}${entry.active ? '*' : ''}${other}`;
    });
    const { usedBytes, budgetBytes } = status.memory;
    const memory = `${formatBytes(usedBytes)} of ${formatBytes(budgetBytes)}`;
    const shards = `${status.shardIndex} of ${status.shardNum}`;
    return [shards, address, status.ready ? 'yes' : 'no', loaded.join(', ') || 'none', memory, ''];
  });
  return formatTable(['shard', 'server', 'ready', 'versions (* active)', 'memory', ''], rows);
}
