/** What prune-model did: report.json, and the same as a small table for people. */
import type { SlotSpec } from '../../lib/core/slots.ts';
import { table } from '../../lib/platform/text-table.ts';
import { type CutModel, plainColumns } from './cut-model.ts';
import type { Proof } from './proof.ts';

const REPORT_FORMAT = 1;

/** Nothing in it depends on time or place: the same model gives the same report. */
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
    /** A number, a symbol of the model, or null when the model does not say. */
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
    /** Who still reads it in the pruned model; empty when it is gone from there. */
    readonly keptFor: readonly string[];
    /** Its rows are not in the model. */
    readonly external?: boolean;
  }[];
  /** What the pruned graph was written to, where that is not model.onnx. */
  readonly files?: readonly string[];
  readonly inputs: { readonly kept: readonly string[]; readonly removed: readonly string[] };
  readonly nodes: { readonly before: number; readonly after: number };
  readonly bytes: { readonly before: number; readonly after: number; readonly tables: number };
  readonly warnings: readonly string[];
  /** Absent after a dry run, and when no proof was asked for. */
  readonly verify?: Proof;
}

export function buildReport(cut: CutModel, spec: SlotSpec): Report {
  const names = new Map(cut.tables.map(({ name, source }) => [source, name]));
  const kept = new Set(cut.keptInputs.map(({ name }) => name));
  const tables = cut.tables.map(({ name, source, rows, dim, keptFor, isExternal }) => ({
    name,
    source,
    rows,
    dim,
    bytes: rows * dim * 4,
    lookups: cut.lookups.filter(({ table }) => table === source).length,
    keptFor,
    ...(isExternal === true ? { external: true } : {}),
  }));
  return {
    format: REPORT_FORMAT,
    lookups: cut.lookups.map((lookup, i) => ({
      node: lookup.node,
      input: lookup.input,
      table: names.get(lookup.table)!,
      ids: lookup.ids.map(({ name }) => name).join(', '),
      columns: plainColumns(lookup) ?? null,
      pooling: lookup.bags?.pooling ?? 'none',
      shape: lookup.shape.map((dim) => dim ?? null),
      slots: spec.embeddings[i]!.slots,
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
  const { bytes, nodes, verify } = report;
  const rows = report.tables.map((table) => [
    table.name,
    table.external === true
      ? `held elsewhere x ${table.dim}`
      : `${count(table.rows)} x ${table.dim}`,
    size(table.bytes),
    count(table.lookups),
  ]);
  const saved = Math.round((1 - bytes.after / bytes.before) * 100);
  const lines = [
    title,
    '',
    ...alignColumns([['table', 'rows x dim', 'size', 'lookups'], ...rows]),
    '',
    lookupTable(report),
    '',
    `lookups  ${count(report.lookups.length)}`,
    `graph    ${size(bytes.before)} -> ${size(bytes.after)} (${saved} % less), ${count(nodes.before)} -> ${count(nodes.after)} nodes`,
    verify === undefined
      ? `proof    none: ${isDry ? 'a dry run writes nothing' : 'none was asked for (--verify 0)'}`
      : `proof    ${count(verify.samples)} samples, largest difference ${verify.maxAbsDifference.toExponential(1)}`,
  ];
  for (const warning of report.warnings) lines.push(`note     ${warning}`);
  return `${lines.join('\n')}\n`;
}

/** Lookups that are listed; report.json has them all. */
const LISTED_MAX = 50;

/** Which new input takes the rows of which ids. */
function lookupTable({ lookups }: Report): string {
  const rows = lookups.slice(0, LISTED_MAX).map((lookup) => {
    const { input, ids, columns, pooling } = lookup;
    const text = columns === null ? 'computed' : columns.join(', ');
    const from = text.length > 40 ? `${columns!.length} columns` : text;
    return [input, lookup.table, `${ids} [${from}]`, pooling];
  });
  const more = lookups.length - rows.length;
  const text = table(['input', 'table', 'ids [columns]', 'pooling'], rows);
  return more > 0 ? `${text}\nand ${count(more)} more, in report.json` : text;
}

function alignColumns(rows: readonly (readonly string[])[]): string[] {
  const widths = rows[0]!.map((_, i) => Math.max(...rows.map((row) => row[i]?.length ?? 0)));
  return rows.map((row) =>
    row
      .map((cell, i) => (i === 0 ? cell.padEnd(widths[0]!) : cell.padStart(widths[i]!)))
      .join('  '),
  );
}

function count(value: number): string {
  return value.toLocaleString('en-US');
}

function size(bytes: number): string {
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
