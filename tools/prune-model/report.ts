/** What prune-model did: report.json, and the same as a small table for people. */
import type { SlotSpec } from '../../lib/core/slots.ts';
import type { CutModel } from './cut-model.ts';
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
    readonly columns: readonly number[];
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
  }[];
  readonly inputs: { readonly kept: readonly string[]; readonly removed: readonly string[] };
  readonly nodes: { readonly before: number; readonly after: number };
  readonly bytes: { readonly before: number; readonly after: number; readonly tables: number };
  /** Absent after a dry run. */
  readonly verify?: Proof;
}

export function buildReport(cut: CutModel, spec: SlotSpec): Report {
  const names = new Map(cut.tables.map(({ name, source }) => [source, name]));
  const kept = new Set(cut.keptInputs.map(({ name }) => name));
  const tables = cut.tables.map(({ name, source, rows, dim, keptFor }) => ({
    name,
    source,
    rows,
    dim,
    bytes: rows * dim * 4,
    lookups: cut.lookups.filter(({ table }) => table === source).length,
    keptFor,
  }));
  return {
    format: REPORT_FORMAT,
    lookups: cut.lookups.map(({ node, input, table, ids, columns, shape }, i) => ({
      node,
      input,
      table: names.get(table)!,
      ids: ids.name,
      columns,
      shape: shape.map((dim) => dim ?? null),
      slots: spec.embeddings[i]!.slots,
    })),
    tables,
    inputs: {
      kept: [...kept],
      removed: cut.inputs.map(({ name }) => name).filter((name) => !kept.has(name)),
    },
    nodes: cut.nodes,
    bytes: { ...cut.bytes, tables: tables.reduce((sum, { bytes }) => sum + bytes, 0) },
  };
}

/** The report for a terminal. */
export function formatReport(report: Report, title: string): string {
  const { bytes, nodes, verify } = report;
  const rows = report.tables.map((table) => [
    table.name,
    `${count(table.rows)} x ${table.dim}`,
    size(table.bytes),
    count(table.lookups),
  ]);
  const saved = Math.round((1 - bytes.after / bytes.before) * 100);
  const lines = [
    title,
    '',
    ...alignColumns([['table', 'rows x dim', 'size', 'lookups'], ...rows]),
    '',
    `lookups  ${count(report.lookups.length)}`,
    `graph    ${size(bytes.before)} -> ${size(bytes.after)} (${saved} % less), ${count(nodes.before)} -> ${count(nodes.after)} nodes`,
    verify === undefined
      ? 'proof    none: a dry run writes nothing'
      : `proof    ${count(verify.samples)} samples, largest difference ${verify.maxAbsDifference.toExponential(1)}`,
  ];
  for (const { name, keptFor } of report.tables) {
    if (keptFor.length === 0) continue;
    lines.push(`note     table ${name} also stays in the graph: ${keptFor.join(', ')} reads it`);
  }
  return `${lines.join('\n')}\n`;
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
