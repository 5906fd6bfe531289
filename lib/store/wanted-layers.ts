/** The layers that a shard of a version needs, and whether files are what the manifest says they are. */
import { CubeError } from '../core/errors.ts';
import type { LayerHeader } from '../core/layer-format.ts';
import type { LayerRef, Manifest, TableRef } from '../core/manifest.ts';

/** A layer that a version names, and the table it is of. */
export interface WantedLayer {
  readonly table: TableRef;
  readonly layer: LayerRef;
  /** What the layer goes on top of; '' for a base. */
  readonly parentContentId: string;
}

/** All layers of one shard, table by table, each base first. @throws CubeError INVALID_ARGUMENT without such a shard */
export function wantedLayers(manifest: Manifest, shardIndex: number): WantedLayer[] {
  return manifest.tables.flatMap((table) => {
    const layers = table.shards[shardIndex];
    if (layers === undefined) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${manifest.bundle} ${manifest.version}: table ${table.name} has ${table.shardNum} shards; there is no shard ${shardIndex}`,
      );
    }
    return layers.map((layer, depth) => ({
      table,
      layer,
      parentContentId: layers[depth - 1]?.contentId ?? '',
    }));
  });
}

/**
 * A file with another content than its manifest says is as bad as a damaged one; so is a delta on another layer than the
 * one before it.
 * @throws CubeError CORRUPT naming both
 */
export function checkHeader(header: LayerHeader, wanted: WantedLayer, shardIndex: number): void {
  const { table, layer, parentContentId } = wanted;
  const expected = {
    table: table.name,
    kind: layer.kind,
    dim: table.dim,
    dtype: table.dtype,
    shardIndex,
    shardNum: table.shardNum,
    contentId: layer.contentId,
    rowCount: layer.rows,
  };
  for (const [field, value] of Object.entries(expected)) {
    const found = header[field as keyof typeof expected];
    if (found === value) continue;
    throw new CubeError(
      'CORRUPT',
      `table ${table.name}, layer ${layer.contentId}: ${field} is ${found}, the manifest says ${value}; fetch it again`,
    );
  }
  if (header.parentContentId === parentContentId) return;
  throw new CubeError(
    'CORRUPT',
    `table ${table.name}, delta ${layer.contentId}: its parent is ${header.parentContentId}, ` +
      `but the manifest puts it on ${parentContentId}; publish the version again`,
  );
}
