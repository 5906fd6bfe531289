/** A diff for people and programs. */
import { table as textTable } from '../../lib/platform/text-table.ts';
import { type ChangedKey, exampleJson, type TableDiff } from './diff.ts';
import { elementsOf, f32Text, rowText, valueText } from './row-text.ts';
import type { TableFiles } from './table-files.ts';

function shapeOf(
  table: TableFiles | undefined,
): { dtype: string; dim: number; shardNum: number } | undefined {
  return table && { dtype: table.dtype, dim: table.dim, shardNum: table.shardNum };
}

export function diffJson(from: string, to: string, diffs: readonly TableDiff[]): object {
  return {
    ...{ from, to },
    tables: diffs.map(({ before, after, examples, ...diff }) => ({
      ...diff,
      before: shapeOf(before),
      after: shapeOf(after),
      examples: examples.map(exampleJson),
    })),
  };
}

export function diffText(from: string, to: string, diffs: readonly TableDiff[]): string {
  const counts = diffs.map((diff) => {
    const { table, added, removed, changed, maxAbsDifference: max } = diff;
    const difference = max === undefined || changed === 0 ? '-' : f32Text(Math.fround(max));
    return [table, String(added), String(removed), String(changed), difference, shapeText(diff)];
  });
  const parts = [
    `${from} → ${to}`,
    textTable(['table', 'added', 'removed', 'changed', 'max abs difference', ''], counts),
  ];
  const shards = diffs.flatMap(({ table, shards }) =>
    shards.flatMap(({ added, removed, changed }, shard) =>
      added + removed + changed === 0
        ? []
        : [[table, String(shard), String(added), String(removed), String(changed)]],
    ),
  );
  if (shards.length > 0) {
    parts.push(textTable(['table', 'shard', 'added', 'removed', 'changed'], shards));
  }
  const examples = diffs.flatMap((diff) => diff.examples.map((one) => exampleRow(diff, one)));
  if (examples.length > 0) {
    parts.push(textTable(['change', 'table', 'key', 'before', 'after'], examples));
  }
  return parts.join('\n\n');
}

function shapeText({ before, after }: TableDiff): string {
  if (before === undefined) return 'a new table';
  if (after === undefined) return 'the table is gone';
  const text = ({ dtype, dim, shardNum }: TableFiles): string =>
    `${dtype} ${dim}, ${shardNum} shards`;
  return text(before) === text(after) ? '' : `${text(before)} → ${text(after)}`;
}

function exampleRow(diff: TableDiff, { change, key, before, after }: ChangedKey): string[] {
  const text = (row: Uint8Array | undefined, table: TableFiles | undefined): string => {
    if (row === undefined || table === undefined) return '-';
    return table.dtype === 'bytes'
      ? valueText(row)
      : rowText(elementsOf(row, table.dtype, table.dim));
  };
  return [change, diff.table, String(key), text(before, diff.before), text(after, diff.after)];
}
