/** Looks keys up and prints a line for each: what came of it, where, and its row. */
import { CubeError } from '../../lib/core/errors.ts';
import { keyToBigint } from '../../lib/core/keys.ts';
import { printPiece, table as textTable } from '../../lib/platform/text-table.ts';
import type { FoundKey, FoundKeys, RowSource, SourceTable } from './row-source.ts';
import { elementsOf, hexOf, rowJson, rowText, valueText } from './row-text.ts';

export interface SeekWish {
  /** Undefined: all tables. */
  readonly tables: readonly string[] | undefined;
  /** Rows as stored, in hex. */
  readonly raw: boolean;
  readonly json: boolean;
}

const HEAD = ['key', 'table', 'outcome', 'shard', 'version', 'dtype', 'row'];

/** @returns how many lookups ended without an answer; it ends early when nobody reads its output any more */
export async function seekKeys(
  source: RowSource,
  batches: AsyncIterable<Uint32Array> | Iterable<Uint32Array>,
  wish: SeekWish,
): Promise<number> {
  const tables = tablesOf(source, wish.tables);
  let unavailable = 0;
  let head = true;
  const told = new Set<string>();
  for await (const keys of batches) {
    for (const table of tables) {
      const found = await source.lookup(table, keys, wish.raw);
      unavailable += found.keys.filter(({ outcome }) => outcome === 'unavailable').length;
      const text = wish.json
        ? jsonLines(table, keys, found, wish)
        : lines(table, keys, found, wish, head);
      if (!(await printPiece(text))) return unavailable;
      head = false;
      const { trouble } = found;
      if (trouble === undefined || told.has(trouble)) continue;
      told.add(trouble);
      process.stderr.write(`cube-cli: ${trouble}\n`);
    }
  }
  return unavailable;
}

function tablesOf({ tables }: RowSource, names: readonly string[] | undefined): SourceTable[] {
  if (names === undefined) return [...tables];
  return names.map((name) => {
    const table = tables.find((candidate) => candidate.name === name);
    if (table !== undefined) return table;
    const known = tables.map((candidate) => candidate.name).join(', ');
    throw new CubeError(
      'NOT_FOUND',
      `there is no table ${JSON.stringify(name)} (there are: ${known})`,
    );
  });
}

function lines(
  table: SourceTable,
  keys: Uint32Array,
  { keys: found, version, rowsAs }: FoundKeys,
  { raw }: SeekWish,
  head: boolean,
): string {
  const rows = found.map((key, i) => [
    String(keyToBigint(keys, i)),
    table.name,
    key.outcome,
    String(key.shard),
    version === '' ? '-' : version,
    table.dtype ?? '-',
    textOf(table, key, rowsAs, raw),
  ]);
  const text = textTable(HEAD, rows);
  return head ? text : text.slice(text.indexOf('\n') + 1);
}

function textOf(
  { dim, dtype }: SourceTable,
  { row }: FoundKey,
  rowsAs: FoundKeys['rowsAs'],
  raw: boolean,
): string {
  if (row === undefined) return '-';
  if (raw) return hexOf(row);
  return isValue(dtype, row) ? valueText(row) : rowText(elementsOf(row, rowsAs, dim));
}

/** A server that does not say what it answers may answer rows of floats. */
function isValue(dtype: SourceTable['dtype'], row: Uint8Array): boolean {
  return dtype === 'bytes' || (dtype === undefined && (row.length % 4 !== 0 || row.length === 0));
}

function jsonLines(
  table: SourceTable,
  keys: Uint32Array,
  { keys: found, version, rowsAs }: FoundKeys,
  { raw }: SeekWish,
): string {
  const { name, dtype, dim } = table;
  return found
    .map(({ outcome, shard, layer, row }, i) => {
      const key = String(keyToBigint(keys, i));
      const common = { key, table: name, outcome, shard, version, dtype, layer };
      if (row === undefined) return JSON.stringify(common);
      if (raw) return JSON.stringify({ ...common, raw: hexOf(row) });
      if (isValue(dtype, row)) {
        return JSON.stringify({ ...common, value: Buffer.from(row).toString('base64') });
      }
      return JSON.stringify({ ...common, row: rowJson(elementsOf(row, rowsAs, dim)) });
    })
    .join('\n');
}
