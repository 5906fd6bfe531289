/** The report of prune-model: report.json, and a short text for the terminal. */
import { requireDefined } from '../../lib/core/errors.ts';
import type { SlotSpec } from '../../lib/core/slots.ts';
import { describeComparison, type ScoreComparison } from '../../lib/features/expected-scores.ts';
import { formatTable } from '../../lib/platform/terminal-output.ts';
import { type CutModel, findPlainColumns } from './cut/cut-model.ts';
import type { Verification } from './cut/verification.ts';

const REPORT_FORMAT = 1;

/** Independent of time and paths: the same model gives the same report. */
export interface Report {
  readonly format: typeof REPORT_FORMAT;
  readonly lookups: readonly {
    readonly node: string;
    /** The new input of the pruned model. */
    readonly input: string;
    readonly table: string;
    readonly ids: string;
    /** Columns of the ids; null when the keys are computed from them (`keys` in slots.json). */
    readonly columns: readonly number[] | null;
    readonly pooling: 'none' | 'sum' | 'mean';
    /** A number, a symbol of the model, or null when the model does not declare it. */
    readonly shape: readonly (number | string | null)[];
    readonly slots: readonly string[];
  }[];
  readonly tables: readonly {
    readonly name: string;
    /** Its name in the model. */
    readonly source: string;
    readonly rows: number;
    readonly dim: number;
    readonly bytes: number;
    readonly lookups: number;
    /** Nodes of the pruned model that still read the table; empty when it was removed. */
    readonly keptFor: readonly string[];
    /** Its rows are not in the model. */
    readonly external?: boolean;
  }[];
  /** Files with the pruned graph, when it is not model.onnx alone. */
  readonly files?: readonly string[];
  readonly inputs: { readonly kept: readonly string[]; readonly removed: readonly string[] };
  readonly nodes: { readonly before: number; readonly after: number };
  readonly bytes: { readonly before: number; readonly after: number; readonly tables: number };
  readonly warnings: readonly string[];
  /** Absent after a dry run and with --verify 0. */
  readonly verify?: Verification;
  /** The verification from raw rows; absent without --expect. */
  readonly expected?: ScoreComparison;
}

export function buildReport(cut: CutModel, spec: SlotSpec): Report {
  const names = new Map(cut.tables.map(({ name, source }) => [source, name]));
  const kept = new Set(cut.keptInputs.map(({ name }) => name));
  const tables = cut.tables.map(({ name, source, rows, dim, remainingReaders, isExternal }) => ({
    name,
    source,
    rows,
    dim,
    bytes: rows * dim * 4,
    lookups: cut.lookups.filter(({ table }) => table === source).length,
    keptFor: remainingReaders,
    ...(isExternal === true ? { external: true } : {}),
  }));
  return {
    format: REPORT_FORMAT,
    lookups: cut.lookups.map((lookup, i) => ({
      node: lookup.node,
      input: lookup.input,
      table: requireDefined(names.get(lookup.table), 'the name of a table'),
      ids: lookup.ids.map(({ name }) => name).join(', '),
      columns: findPlainColumns(lookup) ?? null,
      pooling: lookup.bags?.pooling ?? 'none',
      shape: lookup.shape.map((dim) => dim ?? null),
      slots: requireDefined(spec.embeddings[i], 'the input of a lookup').slots,
    })),
    tables,
    inputs: {
      kept: [...kept],
      removed: cut.inputs.map(({ name }) => name).filter((name) => !kept.has(name)),
    },
    nodes: cut.nodes,
    ...(cut.files === undefined ? {} : { files: cut.files }),
    warnings: cut.warnings,
    bytes: { ...cut.bytes, tables: tables.reduce((sum, { bytes }) => sum + bytes, 0) },
  };
}

/** The report for a terminal. */
export function formatReport(report: Report, title: string, isDry = false): string {
  const { bytes, nodes, verify, expected } = report;
  const rows = report.tables.map((table) => [
    table.name,
    table.external === true
      ? `held elsewhere x ${table.dim}`
      : `${formatCount(table.rows)} x ${table.dim}`,
    formatSize(table.bytes),
    formatCount(table.lookups),
  ]);
  const saved = Math.round((1 - bytes.after / bytes.before) * 100);
  const lines = [
    title,
    '',
    ...alignColumns([['table', 'rows x dim', 'size', 'lookups'], ...rows]),
    '',
    formatLookups(report),
    '',
    `lookups  ${formatCount(report.lookups.length)}`,
    `graph    ${formatSize(bytes.before)} -> ${formatSize(bytes.after)} (${saved} % less), ` +
      `${formatCount(nodes.before)} -> ${formatCount(nodes.after)} nodes`,
    verify === undefined
      ? `verified no: ${isDry ? 'a dry run writes nothing' : 'skipped (--verify 0)'}`
      : `verified ${formatCount(verify.samples)} samples, largest difference ` +
        verify.maxAbsDifference.toExponential(1),
  ];
  if (expected !== undefined) lines.push(`scores   ${describeComparison(expected)}`);
  for (const warning of report.warnings) lines.push(`note     ${warning}`);
  return `${lines.join('\n')}\n`;
}

/** Lookups listed on the terminal; report.json lists all. */
const LISTED_MAX = 50;

/** The new inputs with the ids whose rows they take. */
function formatLookups({ lookups }: Report): string {
  const rows = lookups.slice(0, LISTED_MAX).map((lookup) => {
    const { input, ids, columns, pooling } = lookup;
    const text = columns === null ? 'computed' : columns.join(', ');
    const from = columns !== null && text.length > 40 ? `${columns.length} columns` : text;
    return [input, lookup.table, `${ids} [${from}]`, pooling];
  });
  const more = lookups.length - rows.length;
  const text = formatTable(['input', 'table', 'ids [columns]', 'pooling'], rows);
  return more > 0 ? `${text}\n${formatCount(more)} more in report.json` : text;
}

function alignColumns(rows: readonly (readonly string[])[]): string[] {
  const widths = (rows[0] ?? []).map((_, i) => Math.max(...rows.map((row) => row[i]?.length ?? 0)));
  return rows.map((row) =>
    row
      .map((cell, i) => {
        const width = widths[i] ?? 0;
        return i === 0 ? cell.padEnd(width) : cell.padStart(width);
      })
      .join('  '),
  );
}

function formatCount(value: number): string {
  return value.toLocaleString('en-US');
}

function formatSize(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  const units = ['KiB', 'MiB', 'GiB'];
  let value = bytes / 1024;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${value.toFixed(1)} ${units[unit]}`;
}
