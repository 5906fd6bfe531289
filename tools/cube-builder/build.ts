/**
 * From a pruned model to a published version: check the input, write each table's shards as layers straight to their
 * place, publish with the manifest last. Nothing depends on time or machine: same input, same bytes.
 */
import { createHash } from 'node:crypto';
import { CubeError } from '../../lib/core/errors.ts';
import type { LayerRef, Manifest, TableRef } from '../../lib/core/manifest.ts';
import type { HashSpec } from '../../lib/core/slots.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { fileExists, isFolder, listFolder } from '../../lib/platform/files.ts';
import { type Progress, startProgress } from '../../lib/platform/progress.ts';
import {
  type LayerSource,
  openRepository,
  type Repository,
} from '../../lib/repository/repository.ts';
import { writeLayer } from '../../lib/store/layer-file.ts';
import { checkGraph } from './graph-check.ts';
import { type PrunedModel, readPrunedModel, type TableFile } from './pruned-model.ts';
import type { BuildReport } from './report.ts';
import { shardsOf } from './sharding.ts';

/** Rows held in memory at once; making a layer's bytes takes about as much again. */
const GATHER_BYTES = 1 << 30;
/** A model pruned without features.json takes keys, not feature strings. */
const RAW_KEYS: HashSpec = { scheme: 'raw', seed: 0n, modulo: 0n };

export interface BuildOptions {
  readonly input: string;
  readonly shardNum: number;
  readonly outputPath: string;
  readonly bundle: string;
  readonly version: string;
  readonly golden: string | undefined;
}

interface BuiltTable {
  readonly table: TableRef;
  readonly sources: readonly LayerSource[];
  readonly shared: number;
}

/** @throws CubeError when the input is wrong or the version exists with other content; nothing is published then */
export async function buildVersion(options: BuildOptions): Promise<BuildReport> {
  const { bundle, version, shardNum } = options;
  const startMs = systemClock.nowMs();
  const model = readPrunedModel(options.input, options.golden);
  await checkGraph(model.graph, model.spec, model.graphPath);
  const repository = await openTarget(options.outputPath);
  await repository.removeLeftovers(bundle);
  const rows = model.tables.reduce((sum, table) => sum + table.rows, 0);
  const progress = startProgress(`building ${bundle} ${version}`, rows, 'rows');
  let built: BuiltTable[];
  try {
    built = buildTables(model, repository, options, progress);
  } finally {
    progress.stop();
  }
  const manifest = manifestOf(options, model, built);
  const layers = built.flatMap(({ sources }) => sources);
  const { published } = await repository.publish({ manifest, files: model.files, layers });
  const refs = built.flatMap(({ table }) => table.shards.flat());
  const layersShared = built.reduce((sum, { shared }) => sum + shared, 0);
  return {
    repository: repository.location,
    bundle,
    version,
    published,
    tables: built.length,
    rows,
    shardNum,
    bytes: refs.reduce((sum, layer) => sum + layer.bytes, 0),
    layersNew: refs.length - layersShared,
    layersShared,
    seconds: Math.round(systemClock.nowMs() - startMs) / 1000,
  };
}

/** A repository, or a folder that may become one: an empty or an absent one. */
async function openTarget(folder: string): Promise<Repository> {
  const isNew = !isFolder(folder) || listFolder(folder).length === 0;
  const repository = openRepository(folder, { create: true });
  if (isNew || (await repository.bundles()).length > 0) return repository;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `--output-path ${folder} is not a repository: it holds ${listFolder(folder)[0]} and no bundle; ` +
      'give a repository, or a new folder',
  );
}

function buildTables(
  model: PrunedModel,
  repository: Repository,
  { bundle, shardNum }: BuildOptions,
  progress: Progress,
): BuiltTable[] {
  let done = 0;
  return model.tables.map((table) => {
    const target = { repository, bundle, shardNum };
    return buildTable(table, target, (count) => {
      done += count;
      progress.update(done);
    });
  });
}

function buildTable(
  table: TableFile,
  { repository, bundle, shardNum }: { repository: Repository; bundle: string; shardNum: number },
  onRows: (count: number) => void,
): BuiltTable {
  const shards: LayerRef[][] = [];
  const sources: LayerSource[] = [];
  let shared = 0;
  for (const { shardIndex, keys, rows } of shardsOf(table, shardNum, GATHER_BYTES)) {
    let wasThere = false;
    const layer = writeLayer(
      {
        ...{ table: table.name, dtype: 'f32', dim: table.dim, shardIndex, shardNum, keys },
        rows: new Uint8Array(rows.buffer, rows.byteOffset, rows.byteLength),
      },
      (contentId) => {
        const path = repository.layerTarget(bundle, table.name, contentId);
        wasThere = fileExists(path);
        return path;
      },
    );
    const { contentId, path, bytes, sha256 } = layer;
    if (wasThere) shared += 1;
    shards.push([{ contentId, kind: 'base', bytes, sha256, rows: layer.rows }]);
    sources.push({ table: table.name, contentId, path });
    onRows(layer.rows);
  }
  const { name, dim, dtype, rows } = table;
  return { table: { name, dim, dtype, rows, defaultRow: [], shardNum, shards }, sources, shared };
}

function manifestOf(
  { bundle, version }: BuildOptions,
  { spec, files }: PrunedModel,
  built: readonly BuiltTable[],
): Manifest {
  return {
    bundle,
    version,
    files: [...files].map(([path, bytes]) => ({
      path,
      bytes: bytes.length,
      sha256: createHash('sha256').update(bytes).digest('hex'),
    })),
    hash: spec.features?.hash ?? RAW_KEYS,
    slots: spec.features?.slots ?? [],
    tables: built.map(({ table }) => table),
  };
}
