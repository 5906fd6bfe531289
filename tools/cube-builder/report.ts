/** What a build did, for people and for programs. */
import type { TableDtype } from '../../lib/core/manifest.ts';
import {
  addErrors,
  NO_ERRORS,
  type RowDtype,
  type RowErrors,
  rowBytesOf,
} from '../../lib/core/row-codec.ts';
import type { BuildPlan, ShardPart, TablePlan } from './build-plan.ts';
import { addSamples, type DtypeErrors, ROW_DTYPES } from './dtype-samples.ts';
import { ranges, type Sealed } from './seal.ts';

export interface TableReport {
  readonly name: string;
  readonly kind: 'base' | 'delta';
  readonly dtype: TableDtype;
  readonly dim: number;
  /** Of the layers built: rows, or upserts of a delta. */
  readonly rows: number;
  readonly deleted: number;
  /** Records that a later one of the same key replaced, or that change nothing. */
  readonly dropped: number;
  readonly bytes: number;
  /** How far stored values are from those read. */
  readonly meanError: number;
  readonly maxError: number;
  /** What each dtype would make of the rows, by a sample of them; none of rows that were stored before. */
  readonly dtypes: readonly DtypeReport[];
}

export interface DtypeReport {
  readonly dtype: RowDtype;
  /** Of all rows of the layers built, without keys and free slots. */
  readonly rowBytes: number;
  /** Undefined when a row of the sample has an element that the dtype cannot hold. */
  readonly meanError: number | undefined;
  readonly maxError: number | undefined;
}

export interface BuildReport {
  readonly repository: string;
  readonly bundle: string;
  readonly version: string;
  /** False: the very same version was there already, or parts were built that are not sealed yet. */
  readonly published: boolean;
  readonly sealed: boolean;
  /** The shards built, when not all. */
  readonly shards: string;
  readonly tables: number;
  readonly rows: number;
  readonly shardNum: number;
  /** Of all layers of the version. */
  readonly bytes: number;
  readonly layersNew: number;
  /** Layers that the repository had already. */
  readonly layersShared: number;
  readonly perTable: readonly TableReport[];
  readonly seconds: number;
}

export function sealedReport(repository: string, sealed: Sealed, seconds: number): BuildReport {
  const { manifest, tables, parts, published } = sealed;
  const refs = manifest.tables.flatMap((table) => table.shards.flat());
  const layersNew = [...parts.values()].flat().filter(isNew).length;
  return {
    ...{ repository, bundle: manifest.bundle, version: manifest.version, published, sealed: true },
    shards: 'all',
    tables: manifest.tables.length,
    rows: manifest.tables.reduce((sum, table) => sum + table.rows, 0),
    shardNum: manifest.tables[0]?.shardNum ?? 0,
    bytes: refs.reduce((sum, layer) => sum + layer.bytes, 0),
    layersNew,
    layersShared: refs.length - layersNew,
    perTable: tableReports(tables, parts),
    seconds,
  };
}

export function partsReport(
  repository: string,
  plan: BuildPlan,
  shards: readonly number[],
  parts: ReadonlyMap<string, readonly ShardPart[]>,
  seconds: number,
): BuildReport {
  const all = [...parts.values()].flat();
  const perTable = tableReports(plan.tables, parts);
  const layersNew = all.filter(isNew).length;
  const layers = all.filter(({ layer }) => layer !== undefined).length;
  return {
    ...{ repository, bundle: plan.bundle, version: plan.version, published: false, sealed: false },
    shards: ranges(shards),
    tables: plan.tables.length,
    rows: perTable.reduce((sum, { rows }) => sum + rows, 0),
    shardNum: plan.shardNum,
    bytes: perTable.reduce((sum, { bytes }) => sum + bytes, 0),
    ...{ layersNew, layersShared: layers - layersNew, perTable, seconds },
  };
}

function isNew({ layer, shared }: ShardPart): boolean {
  return layer !== undefined && !shared;
}

function tableReports(
  tables: readonly TablePlan[],
  parts: ReadonlyMap<string, readonly ShardPart[]>,
): TableReport[] {
  return tables.map(({ name, kind, dtype, dim }) => {
    const own = parts.get(name) ?? [];
    const sum = (of: (part: ShardPart) => number): number =>
      own.reduce((total, part) => total + of(part), 0);
    const rows = sum(({ layer }) => layer?.rows ?? 0);
    const deleted = sum((part) => part.deleted);
    const errors = own.reduce<RowErrors>((all, part) => addErrors(all, part.errors), NO_ERRORS);
    return {
      ...{ name, kind, dtype, dim, rows, deleted },
      dropped: sum(({ records }) => records) - rows - deleted,
      bytes: sum(({ layer }) => layer?.bytes ?? 0),
      meanError: errors.meanAbsolute,
      maxError: errors.maxAbsolute,
      dtypes: dtypeReports(rows, dim, own),
    };
  });
}

function dtypeReports(rows: number, dim: number, parts: readonly ShardPart[]): DtypeReport[] {
  const samples = parts.reduce<DtypeErrors | undefined>(
    (all, part) => addSamples(all, part.samples),
    undefined,
  );
  if (samples === undefined) return [];
  return ROW_DTYPES.map((dtype) => ({
    dtype,
    rowBytes: rows * rowBytesOf(dtype, dim),
    meanError: samples[dtype]?.meanAbsolute,
    maxError: samples[dtype]?.maxAbsolute,
  }));
}

export function formatReport(report: BuildReport): string {
  return [
    outcome(report),
    `  tables  ${report.tables}`,
    ...report.perTable.map(tableLine),
    `  rows    ${report.rows}`,
    `  shards  ${report.sealed ? report.shardNum : `${report.shards} of ${report.shardNum}`}`,
    `  layers  ${report.layersNew} new, ${report.layersShared} shared`,
    `  size    ${megabytes(report.bytes)}`,
    `  time    ${report.seconds.toFixed(1)} s`,
  ].join('\n');
}

function outcome({ bundle, version, repository, published, sealed, shards }: BuildReport): string {
  if (!sealed) {
    return (
      `built shards ${shards} of version ${version} of ${bundle} in ${repository}; nothing is published: ` +
      'cube-builder seal does that when all shards are there'
    );
  }
  return published
    ? `published version ${version} of ${bundle} in ${repository}`
    : `version ${version} of ${bundle} is published in ${repository} already, with this very content`;
}

function tableLine(table: TableReport): string {
  const { name, kind, dtype, dim, rows, deleted, dropped, bytes, meanError, maxError } = table;
  const shape = dtype === 'bytes' ? 'bytes' : `${dtype} × ${dim}`;
  const counts = kind === 'base' ? `${rows} rows` : `${rows} upserts, ${deleted} deleted`;
  const errors =
    dtype === 'f32' || dtype === 'bytes' || table.dtypes.length === 0
      ? ''
      : `, error mean ${meanError.toPrecision(3)} max ${maxError.toPrecision(3)}`;
  const replaced = dropped > 0 ? `, ${dropped} replaced or unchanged` : '';
  const line = `    ${name}: ${kind}, ${shape}, ${counts}${replaced}, ${megabytes(bytes)}${errors}`;
  return [line, ...table.dtypes.map(dtypeLine)].join('\n');
}

function dtypeLine({ dtype, rowBytes, meanError, maxError }: DtypeReport): string {
  const errors =
    meanError === undefined || maxError === undefined
      ? 'cannot hold these rows'
      : `error mean ${meanError.toPrecision(3)} max ${maxError.toPrecision(3)}`;
  return `      as ${dtype.padEnd(4)}  ${megabytes(rowBytes)} of rows, ${errors}`;
}

function megabytes(bytes: number): string {
  return `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}
