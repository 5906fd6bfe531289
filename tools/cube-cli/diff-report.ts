/** Formats a diff as text or JSON. */
import { formatTable } from '../../lib/platform/terminal-output.ts';
import { type ChangedKey, type TableDiff, toExampleJson } from './diff.ts';
import { decodeElements, formatF32, formatRow, formatValue } from './row-text.ts';
import type { TableFiles } from './table-files.ts';

function toShapeJson(
  table: TableFiles | undefined,
): { dtype: string; dim: number; shardNum: number } | undefined {
  return table && { dtype: table.dtype, dim: table.dim, shardNum: table.shardNum };
}

export function toDiffJson(from: string, to: string, diffs: readonly TableDiff[]): object {
  return {
    from,
    to,
    tables: diffs.map(({ before, after, examples, ...diff }) => ({
      ...diff,
      before: toShapeJson(before),
      after: toShapeJson(after),
      examples: examples.map(toExampleJson),
    })),
  };
}

export function formatDiff(from: string, to: string, diffs: readonly TableDiff[]): string {
  const counts = diffs.map((diff) => {
    const { table, added, removed, changed, maxAbsDifference: max } = diff;
    const difference = max === undefined || changed === 0 ? '-' : formatF32(Math.fround(max));
    return [
      table,
      String(added),
      String(removed),
      String(changed),
      difference,
      formatShapeChange(diff),
    ];
  });
  const parts = [
    `${from} → ${to}`,
    formatTable(['table', 'added', 'removed', 'changed', 'max abs difference', ''], counts),
  ];
  const shards = diffs.flatMap(({ table, shards }) =>
    shards.flatMap(({ added, removed, changed }, shard) =>
      added + removed + changed === 0
        ? []
        : [[table, String(shard), String(added), String(removed), String(changed)]],
    ),
  );
  if (shards.length > 0) {
    parts.push(formatTable(['table', 'shard', 'added', 'removed', 'changed'], shards));
  }
  const examples = diffs.flatMap((diff) =>
    diff.examples.map((example) => toExampleCells(diff, example)),
  );
  if (examples.length > 0) {
    parts.push(formatTable(['change', 'table', 'key', 'before', 'after'], examples));
  }
  return parts.join('\n\n');
}

function formatShapeChange({ before, after }: TableDiff): string {
  if (before === undefined) return 'the table is new';
  if (after === undefined) return 'the table was removed';
  const text = ({ dtype, dim, shardNum }: TableFiles): string =>
    `${dtype} ${dim}, ${shardNum} shards`;
  return text(before) === text(after) ? '' : `${text(before)} → ${text(after)}`;
}

function toExampleCells(diff: TableDiff, { change, key, before, after }: ChangedKey): string[] {
  const text = (row: Uint8Array | undefined, table: TableFiles | undefined): string => {
    if (row === undefined || table === undefined) return '-';
    return table.dtype === 'bytes'
      ? formatValue(row)
      : formatRow(decodeElements(row, table.dtype, table.dim));
  };
  return [change, diff.table, String(key), text(before, diff.before), text(after, diff.after)];
}
