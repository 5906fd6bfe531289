/** Merging chains of layers into bases: a base build whose input is what the version holds, rows as they are stored. */

import { CubeError } from '../../lib/core/errors.ts';
import { layoutFor } from '../../lib/core/layer-sections.ts';
import type { TableRef } from '../../lib/core/manifest.ts';
import { rowBytesOf } from '../../lib/core/row-codec.ts';
import { RandomReader } from '../../lib/platform/files.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { readHeader } from '../../lib/store/layer-reader.ts';
import { type ResourceOptions, resourcesOf } from './build-options.ts';
import type { BuildRequest } from './build-request.ts';

export interface CompactWish extends ResourceOptions {
  readonly bundle: string;
  readonly version: string;
  readonly curVersion: string;
  readonly layout?: 'indexed';
  readonly onlyShards?: string;
}

/** @throws CubeError NOT_FOUND when there is no such version */
export async function compactRequest(
  repository: Repository,
  wish: CompactWish,
): Promise<BuildRequest> {
  const { tables } = await repository.manifest(wish.bundle, wish.version);
  const merged = tables.filter(isChain).map((table) => ({
    input: { version: wish.version, table: table.name },
    dtype: table.dtype,
    defaultRow: table.defaultRow,
    layout: wish.layout ?? layoutOf(repository, wish.bundle, table),
  }));
  if (merged.length === 0) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `version ${wish.version} of ${wish.bundle} has no deltas: there is nothing to merge`,
    );
  }
  return {
    ...{ bundle: wish.bundle, version: wish.curVersion, jobMode: 'compact', parent: wish.version },
    ...{ shardNum: undefined, tables: merged, golden: undefined, onlyShards: wish.onlyShards },
    publish: true,
    ...resourcesOf(wish),
  };
}

/** Tables without deltas are carried over as they are. */
function isChain({ shards }: TableRef): boolean {
  return shards.some((layers) => layers.length > 1);
}

/** Who asked for an index once, wants it again. */
function layoutOf(
  repository: Repository,
  bundle: string,
  { name, dim, dtype, shards }: TableRef,
): 'indexed' | undefined {
  const base = shards[0]![0]!;
  const reader = new RandomReader(repository.layerTarget(bundle, name, base.contentId));
  try {
    const asked = readHeader(reader).layout === 'indexed';
    return asked && layoutFor('base', dtype, rowBytesOf(dtype, dim), false) !== 'indexed'
      ? 'indexed'
      : undefined;
  } finally {
    reader.close();
  }
}
