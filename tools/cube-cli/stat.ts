/** What a layer file, a version or servers are made of, without reading rows. */
import { readServerStatus } from '../../lib/client/server-status.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { Fleet } from '../../lib/core/fleet.ts';
import type { LayerHeader } from '../../lib/core/layer-format.ts';
import { type Manifest, shardNumOf, type TableRef } from '../../lib/core/manifest.ts';
import { tablesDigest } from '../../lib/core/tables-digest.ts';
import { bytesText, table as textTable } from '../../lib/platform/text-table.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';
import type { ControlStatus } from '../../proto/control.ts';

/** Of more shards, people are told the sum. */
const SHARDS_SHOWN_MAX = 64;

export function layerJson(header: LayerHeader): object {
  const { table, kind, layout, dtype, dim, rowBytes, rowCount, deletedCount } = header;
  const { shardIndex, shardNum, contentId, parentContentId, fileBytes, blockCount } = header;
  return {
    ...{ table, kind, layout, dtype, dim, rowBytes, rows: rowCount, deleted: deletedCount },
    ...{ shardIndex, shardNum, bytes: fileBytes, blocks: blockCount, contentId },
    ...(kind === 'delta' ? { parentContentId } : {}),
  };
}

export function layerText(header: LayerHeader): string {
  const rows = Object.entries(layerJson(header)).map(([name, value]) => [name, String(value)]);
  return textTable(['field', 'value'], rows);
}

interface ShardStat {
  readonly shard: number;
  readonly layers: number;
  readonly rows: number;
  readonly bytes: number;
}

function shardsOf({ shards }: TableRef): ShardStat[] {
  return shards.map((layers, shard) => ({
    ...{ shard, layers: layers.length },
    rows: layers.reduce((sum, layer) => sum + layer.rows, 0),
    bytes: layers.reduce((sum, layer) => sum + layer.bytes, 0),
  }));
}

export function versionJson(manifest: Manifest): object {
  const { bundle, version, files, hash, slots, tables } = manifest;
  return {
    ...{ bundle, version, shardNum: shardNumOf(manifest), tablesDigest: tablesDigest(manifest) },
    hash: { scheme: hash.scheme, seed: String(hash.seed), modulo: String(hash.modulo) },
    ...{ slots: slots.length, files: files.map(({ path, bytes }) => ({ path, bytes })) },
    tables: tables.map((table) => {
      const shards = shardsOf(table);
      const { name, dim, dtype, rows } = table;
      const depth = Math.max(...shards.map(({ layers }) => layers));
      const bytes = shards.reduce((sum, shard) => sum + shard.bytes, 0);
      return { name, dim, dtype, rows, bytes, depth, shards };
    }),
  };
}

/** Rows of all layers count, those that a newer layer hides too. */
export function versionText(manifest: Manifest): string {
  const { bundle, version, hash, slots, tables } = manifest;
  const shardNum = shardNumOf(manifest);
  const head =
    `${bundle} ${version}: ${tables.length} tables in ${shardNum} shards, keys ${hash.scheme}` +
    `${hash.modulo === 0n ? '' : ` mod ${hash.modulo}`}, ${slots.length} slots`;
  const lines = tables.map((table) => {
    const shards = shardsOf(table);
    const bytes = shards.reduce((sum, shard) => sum + shard.bytes, 0);
    const depth = Math.max(...shards.map(({ layers }) => layers));
    const { name, dim, dtype, rows } = table;
    return [name, String(dim), dtype, String(rows), bytesText(bytes), String(depth)];
  });
  const parts = [head, textTable(['table', 'dim', 'dtype', 'rows', 'bytes', 'chain'], lines)];
  if (shardNum <= SHARDS_SHOWN_MAX) {
    const perShard = tables.flatMap((table) =>
      shardsOf(table).map(({ shard, layers, rows, bytes }) => [
        ...[table.name, String(shard), String(layers), String(rows), bytesText(bytes)],
      ]),
    );
    parts.push(textTable(['table', 'shard', 'layers', 'rows', 'bytes'], perShard));
  }
  return parts.join('\n\n');
}

/** What one server said. */
export interface ReplicaStat {
  readonly address: string;
  readonly shard: number | undefined;
  readonly status: ControlStatus | undefined;
  readonly error: string | undefined;
}

/** Asks the control endpoints of a fleet, or of addresses whose shards nobody says. */
export async function askReplicas(
  replicas: readonly { readonly address: string; readonly shard: number | undefined }[],
  options: { readonly credentials: Credentials; readonly timeoutMs: number },
): Promise<ReplicaStat[]> {
  return Promise.all(
    replicas.map(async ({ address, shard }): Promise<ReplicaStat> => {
      try {
        const status = await readServerStatus(address, options);
        return { address, shard: shard ?? status.shardIndex, status, error: undefined };
      } catch (error) {
        return { address, shard, status: undefined, error: CubeError.from(error).message };
      }
    }),
  );
}

/** @throws CubeError NOT_FOUND */
export function replicasOf(fleet: Fleet, bundle: string): { address: string; shard: number }[] {
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

interface HeldVersion {
  readonly bundle: string;
  readonly version: string;
  readonly active: boolean;
  readonly rows: number;
  readonly bytes: number;
  /** Whether its rows are those of the manifest; undefined when there is none to compare with. */
  readonly asPublished?: boolean;
}

function heldVersions(
  { bundles }: ControlStatus,
  bundle: string | undefined,
  manifest: Manifest | undefined,
): HeldVersion[] {
  return bundles
    .filter((entry) => bundle === undefined || entry.bundle === bundle)
    .flatMap((entry) =>
      entry.versions.map(({ version, rows, bytes, tablesDigest: digest }) => {
        const compared = manifest?.bundle === entry.bundle && manifest.version === version;
        const asPublished = compared ? digest === tablesDigest(manifest) : undefined;
        const held = {
          bundle: entry.bundle,
          version,
          active: version === entry.active,
          rows,
          bytes,
        };
        return asPublished === undefined ? held : { ...held, asPublished };
      }),
    );
}

export function replicasJson(
  replicas: readonly ReplicaStat[],
  bundle: string | undefined,
  manifest: Manifest | undefined,
): object[] {
  return replicas.map(({ address, shard, status, error }) => {
    if (status === undefined) return { address, shard, error };
    const { shardNum, ready, memory } = status;
    return {
      address,
      shard,
      shardNum,
      ready,
      memory,
      versions: heldVersions(status, bundle, manifest),
    };
  });
}

export function replicasText(
  replicas: readonly ReplicaStat[],
  bundle: string | undefined,
  manifest: Manifest | undefined,
): string {
  const rows = replicas.map(({ address, shard, status, error }) => {
    const place = [String(shard ?? '?'), address];
    if (status === undefined) return [...place, 'no', '-', '-', error ?? ''];
    const held = heldVersions(status, bundle, manifest).map((entry) => {
      const name = bundle === undefined ? `${entry.bundle}/${entry.version}` : entry.version;
      const other = entry.asPublished === false ? ' (other rows than the manifest)' : '';
      return `${name}${entry.active ? '*' : ''}${other}`;
    });
    const { usedBytes, budgetBytes } = status.memory;
    const memory = `${bytesText(usedBytes)} of ${bytesText(budgetBytes)}`;
    const shards = `${status.shardIndex} of ${status.shardNum}`;
    return [shards, address, status.ready ? 'yes' : 'no', held.join(', ') || 'none', memory, ''];
  });
  return textTable(['shard', 'server', 'ready', 'versions (* active)', 'memory', ''], rows);
}
