/** The report of a build or of a dry run, as text for people and as an object for programs. */
import { LAYER_LAYOUTS, type LayerLayout } from '../../lib/core/layer-format.ts';
import type { TableDtype } from '../../lib/core/manifest.ts';
import {
  computeRowBytes,
  mergeRowErrors,
  NO_ROW_ERRORS,
  type RowDtype,
  type RowErrors,
} from '../../lib/core/row-codec.ts';
import { describeComparison, type ScoreComparison } from '../../lib/features/expected-scores.ts';
import type { BuildPlan, ShardPart, TablePlan } from './build-plan.ts';
import { type DtypeErrors, mergeSamples, ROW_DTYPES } from './dtype-samples.ts';
import { countNewLayers, formatRanges, type SealedVersion } from './seal.ts';

/** cube-server --no-in-mem loads such rows into memory anyway. */
const INLINE_NOTE =
  '      layout inline: its rows are always in memory; with --layout indexed they can stay on disk';

export interface TableReport {
  readonly name: string;
  readonly kind: 'base' | 'delta';
  readonly dtype: TableDtype;
  readonly dim: number;
  /** Layouts of the layers built; rows of an inline base cannot stay on disk. */
  readonly layouts: readonly LayerLayout[];
  /** Rows of the layers built; for a delta, upserted rows. */
  readonly rows: number;
  readonly deleted: number;
  /** Records that a later record replaced, or that change nothing. */
  readonly dropped: number;
  readonly bytes: number;
  /** Mean absolute difference between stored values and values read. */
  readonly meanError: number;
  /** Largest absolute difference. */
  readonly maxError: number;
  /** Estimates for each dtype from a sample of the rows; empty for rows read from a version. */
  readonly dtypes: readonly DtypeReport[];
}

export interface DtypeReport {
  readonly dtype: RowDtype;
  /** Bytes of all rows of the layers built, without keys and empty slots. */
  readonly rowBytes: number;
  /** Undefined if an element of a sampled row is out of the dtype's range. */
  readonly meanError: number | undefined;
  readonly maxError: number | undefined;
}

export interface BuildReport {
  readonly repository: string;
  readonly bundle: string;
  readonly version: string;
  /** False if the same version already existed, or if the parts built are not sealed yet. */
  readonly published: boolean;
  /** Missing layers and files of a version that already existed, which are there again. */
  readonly restored: number;
  readonly sealed: boolean;
  /** The shards built, such as 0-3,7, or `all`. */
  readonly shards: string;
  readonly tables: number;
  readonly rows: number;
  readonly shardNum: number;
  /** Bytes of all layers of the version. */
  readonly bytes: number;
  readonly layersNew: number;
  /** Layers that already existed in the repository. */
  readonly layersShared: number;
  readonly perTable: readonly TableReport[];
  /** The verification from raw rows; absent when no scores are expected. */
  readonly expected?: ScoreComparison;
  readonly seconds: number;
}

export function createVersionReport(
  repository: string,
  sealed: SealedVersion,
  seconds: number,
): BuildReport {
  const { manifest, tables, parts, published, restored, expected } = sealed;
  const refs = manifest.tables.flatMap((table) => table.shards.flat());
  const layersNew = countNewLayers(parts);
  return {
    repository,
    bundle: manifest.bundle,
    version: manifest.version,
    published,
    restored,
    sealed: true,
    shards: 'all',
    tables: manifest.tables.length,
    rows: manifest.tables.reduce((sum, table) => sum + table.rows, 0),
    shardNum: manifest.tables[0]?.shardNum ?? 0,
    bytes: refs.reduce((sum, layer) => sum + layer.bytes, 0),
    layersNew,
    layersShared: refs.length - layersNew,
    perTable: createTableReports(tables, parts),
    ...(expected === undefined ? {} : { expected }),
    seconds,
  };
}

export function createPartsReport(
  repository: string,
  plan: BuildPlan,
  shards: readonly number[],
  parts: ReadonlyMap<string, readonly ShardPart[]>,
  seconds: number,
): BuildReport {
  const all = [...parts.values()].flat();
  const perTable = createTableReports(plan.tables, parts);
  const layersNew = countNewLayers(parts);
  const layers = all.filter(({ layer }) => layer !== undefined).length;
  return {
    repository,
    bundle: plan.bundle,
    version: plan.version,
    published: false,
    restored: 0,
    sealed: false,
    shards: formatRanges(shards),
    tables: plan.tables.length,
    rows: perTable.reduce((sum, { rows }) => sum + rows, 0),
    shardNum: plan.shardNum,
    bytes: perTable.reduce((sum, { bytes }) => sum + bytes, 0),
    layersNew,
    layersShared: layers - layersNew,
    perTable,
    seconds,
  };
}

/** What a build would do, as far as it is known before the rows are read. */
export interface DryRunReport {
  readonly repository: string;
  readonly bundle: string;
  readonly version: string;
  readonly dryRun: true;
  /** A version of this name exists; a build with other content would fail. */
  readonly exists: boolean;
  readonly publish: boolean;
  readonly shardNum: number;
  readonly shards: string;
  readonly tables: readonly Pick<TablePlan, 'name' | 'kind' | 'dtype' | 'dim'>[];
}

export function createDryRunReport(
  repository: string,
  { bundle, version, shardNum, tables }: BuildPlan,
  { shards, publish, exists }: { shards: readonly number[]; publish: boolean; exists: boolean },
): DryRunReport {
  return {
    repository,
    bundle,
    version,
    dryRun: true,
    exists,
    publish,
    shardNum,
    shards: formatRanges(shards),
    tables: tables.map(({ name, kind, dtype, dim }) => ({ name, kind, dtype, dim })),
  };
}

export function formatDryRunReport(report: DryRunReport): string {
  const { repository, bundle, version, exists, publish, shardNum, shards, tables } = report;
  const done = publish ? 'build and publish' : 'build';
  const lines = tables.map(
    ({ name, kind, dtype, dim }) =>
      `  ${name}: ${kind} of ${dtype === 'bytes' ? 'values' : `${dim} × ${dtype}`}`,
  );
  return [
    `would ${done} ${bundle} ${version} in ${repository}: shards ${shards} of ${shardNum}`,
    ...lines,
    ...(exists ? [`version ${version} exists: a build with other content would fail`] : []),
    'dry run: nothing was written',
  ].join('\n');
}

function createTableReports(
  tables: readonly TablePlan[],
  parts: ReadonlyMap<string, readonly ShardPart[]>,
): TableReport[] {
  return tables.map(({ name, kind, dtype, dim }) => {
    const own = parts.get(name) ?? [];
    const sum = (count: (part: ShardPart) => number): number =>
      own.reduce((total, part) => total + count(part), 0);
    const rows = sum(({ layer }) => layer?.rows ?? 0);
    const deleted = sum((part) => part.deleted);
    const errors = own.reduce<RowErrors>(
      (all, part) => mergeRowErrors(all, part.errors),
      NO_ROW_ERRORS,
    );
    return {
      name,
      kind,
      dtype,
      dim,
      layouts: LAYER_LAYOUTS.filter((one) => own.some(({ layout }) => layout === one)),
      rows,
      deleted,
      dropped: sum(({ records }) => records) - rows - deleted,
      bytes: sum(({ layer }) => layer?.bytes ?? 0),
      meanError: errors.meanAbsolute,
      maxError: errors.maxAbsolute,
      dtypes: createDtypeReports(rows, dim, own),
    };
  });
}

function createDtypeReports(rows: number, dim: number, parts: readonly ShardPart[]): DtypeReport[] {
  const samples = parts.reduce<DtypeErrors | undefined>(
    (all, part) => mergeSamples(all, part.samples),
    undefined,
  );
  if (samples === undefined) return [];
  return ROW_DTYPES.map((dtype) => ({
    dtype,
    rowBytes: rows * computeRowBytes(dtype, dim),
    meanError: samples[dtype]?.meanAbsolute,
    maxError: samples[dtype]?.maxAbsolute,
  }));
}

export function formatReport(report: BuildReport): string {
  return [
    formatOutcome(report),
    `  tables  ${report.tables}`,
    ...report.perTable.map(formatTable),
    `  rows    ${report.rows}`,
    `  shards  ${report.sealed ? report.shardNum : `${report.shards} of ${report.shardNum}`}`,
    `  layers  ${report.layersNew} new, ${report.layersShared} shared`,
    `  size    ${formatSize(report.bytes)}`,
    ...(report.expected === undefined ? [] : [`  scores  ${describeComparison(report.expected)}`]),
    `  time    ${report.seconds.toFixed(1)} s`,
  ].join('\n');
}

function formatOutcome({
  bundle,
  version,
  repository,
  published,
  restored,
  sealed,
  shards,
}: BuildReport): string {
  if (!sealed) {
    return (
      `built shards ${shards} of version ${version} of ${bundle} in ${repository}; ` +
      'not published: run cube-builder seal when all shards are built'
    );
  }
  if (published) return `published version ${version} of ${bundle} in ${repository}`;
  const note = restored === 0 ? '' : `; missing files restored: ${restored}`;
  const name = `version ${version} of ${bundle}`;
  return `${name} is already published in ${repository} with this content${note}`;
}

function formatTable(table: TableReport): string {
  const { name, kind, dtype, dim, rows, deleted, dropped, bytes, meanError, maxError } = table;
  const shape = dtype === 'bytes' ? 'bytes' : `${dtype} × ${dim}`;
  const counts = kind === 'base' ? `${rows} rows` : `${rows} upserts, ${deleted} deleted`;
  const errors =
    dtype === 'f32' || dtype === 'bytes' || table.dtypes.length === 0
      ? ''
      : `, error mean ${meanError.toPrecision(3)} max ${maxError.toPrecision(3)}`;
  const replaced = dropped > 0 ? `, ${dropped} replaced or unchanged` : '';
  const size = formatSize(bytes);
  const line = `    ${name}: ${kind}, ${shape}, ${counts}${replaced}, ${size}${errors}`;
  const note = kind === 'base' && table.layouts.includes('inline') ? [INLINE_NOTE] : [];
  return [line, ...note, ...table.dtypes.map(formatDtype)].join('\n');
}

function formatDtype({ dtype, rowBytes, meanError, maxError }: DtypeReport): string {
  const errors =
    meanError === undefined || maxError === undefined
      ? 'a value is out of range'
      : `error mean ${meanError.toPrecision(3)} max ${maxError.toPrecision(3)}`;
  return `      as ${dtype.padEnd(4)}  ${formatSize(rowBytes)} of rows, ${errors}`;
}

/** "31.3 KiB"; small tables are common in first trials. */
function formatSize(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 2 ** 20) return `${(bytes / 1024).toFixed(1)} KiB`;
  return `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}
