/** Compaction: a base build whose input is the stored rows of a version. It merges layer chains. */
import { CubeError } from '../../lib/core/errors.ts';
import { chooseLayout } from '../../lib/core/layer-sections.ts';
import type { TableRef } from '../../lib/core/manifest.ts';
import { computeRowBytes } from '../../lib/core/row-codec.ts';
import type { ExpectOptions } from '../../lib/features/expect-options.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { openLayerFile } from '../../lib/store/layer-open.ts';
import { readHeader } from '../../lib/store/layer-reader.ts';
import { type ResourceOptions, toExpectation, toResources } from './build-options.ts';
import type { BuildRequest } from './build-request.ts';

export interface CompactOptions extends ResourceOptions, ExpectOptions {
  readonly bundle: string;
  readonly version: string;
  readonly curVersion: string;
  readonly layout?: 'indexed';
  readonly onlyShards?: string;
}

/** @throws CubeError NOT_FOUND if the version does not exist */
export async function createCompactRequest(
  repository: Repository,
  options: CompactOptions,
): Promise<BuildRequest> {
  const { tables } = await repository.readManifest(options.bundle, options.version);
  const merged = tables.filter(isChain).map((table) => ({
    input: { version: options.version, table: table.name },
    dtype: table.dtype,
    defaultRow: table.defaultRow,
    layout: options.layout ?? chooseLayoutOption(repository, options.bundle, table),
  }));
  if (merged.length === 0) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `version ${options.version} of ${options.bundle} has no deltas to merge`,
    );
  }
  return {
    bundle: options.bundle,
    version: options.curVersion,
    jobMode: 'compact',
    parent: options.version,
    shardNum: undefined,
    tables: merged,
    golden: undefined,
    expect: toExpectation(options),
    onlyShards: options.onlyShards,
    publish: true,
    ...toResources(options),
  };
}

/** Tables without deltas are carried over as they are. */
function isChain({ shards }: TableRef): boolean {
  return shards.some((layers) => layers.length > 1);
}

/** Keeps --layout indexed if the base was built with it and it is not the default layout. */
function chooseLayoutOption(
  repository: Repository,
  bundle: string,
  { name, dim, dtype, shards }: TableRef,
): 'indexed' | undefined {
  const base = shards[0]![0]!;
  const reader = openLayerFile(repository.layerWritePath(bundle, name, base.contentId));
  try {
    const isIndexed = readHeader(reader).layout === 'indexed';
    return isIndexed &&
      chooseLayout('base', dtype, computeRowBytes(dtype, dim), false) !== 'indexed'
      ? 'indexed'
      : undefined;
  } finally {
    reader.close();
  }
}
