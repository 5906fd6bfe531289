/** Looks up keys and prints a line for each: outcome, shard, version and row. */
import { CubeError } from '../../lib/core/errors.ts';
import { keyToBigint } from '../../lib/core/keys.ts';
import { formatTable, printChunk } from '../../lib/platform/terminal-output.ts';
import type { FoundKey, FoundKeys, RowSource, SourceTable } from './row-source.ts';
import { decodeElements, formatRow, formatValue, toHex, toRowJson } from './row-text.ts';

export interface SeekOptions {
  /** Undefined for all tables. */
  readonly tables: readonly string[] | undefined;
  /** Print rows as stored, in hex. */
  readonly raw: boolean;
  readonly json: boolean;
}

const COLUMNS = ['key', 'table', 'outcome', 'shard', 'version', 'dtype', 'row'];

/** Returns the number of unavailable keys. Ends early when the reader of stdout closes the pipe. */
export async function seekKeys(
  source: RowSource,
  batches: AsyncIterable<Uint32Array> | Iterable<Uint32Array>,
  options: SeekOptions,
): Promise<number> {
  const tables = selectTables(source, options.tables);
  let unavailable = 0;
  let isFirst = true;
  const warned = new Set<string>();
  for await (const keys of batches) {
    for (const table of tables) {
      const found = await source.lookup(table, keys, options.raw);
      unavailable += found.keys.filter(({ outcome }) => outcome === 'unavailable').length;
      const text = options.json
        ? formatJsonLines(table, keys, found, options)
        : formatLines(table, keys, found, options, isFirst);
      if (!(await printChunk(text))) return unavailable;
      isFirst = false;
      const { warning } = found;
      if (warning === undefined || warned.has(warning)) continue;
      warned.add(warning);
      process.stderr.write(`cube-cli: ${warning}\n`);
    }
  }
  return unavailable;
}

function selectTables({ tables }: RowSource, names: readonly string[] | undefined): SourceTable[] {
  if (names === undefined) return [...tables];
  return names.map((name) => {
    const table = tables.find((candidate) => candidate.name === name);
    if (table !== undefined) return table;
    const known = tables.map((candidate) => candidate.name).join(', ');
    throw new CubeError(
      'NOT_FOUND',
      `there is no table ${JSON.stringify(name)} (existing tables: ${known})`,
    );
  });
}

function formatLines(
  table: SourceTable,
  keys: Uint32Array,
  { keys: found, version, rowDtype }: FoundKeys,
  { raw }: SeekOptions,
  withHeader: boolean,
): string {
  const rows = found.map((key, i) => [
    String(keyToBigint(keys, i)),
    table.name,
    key.outcome,
    String(key.shard),
    version === '' ? '-' : version,
    table.dtype ?? '-',
    formatFoundRow(table, key, rowDtype, raw),
  ]);
  const text = formatTable(COLUMNS, rows);
  return withHeader ? text : text.slice(text.indexOf('\n') + 1);
}

function formatFoundRow(
  { dim, dtype }: SourceTable,
  { row }: FoundKey,
  rowsAs: FoundKeys['rowDtype'],
  raw: boolean,
): string {
  if (row === undefined) return '-';
  if (raw) return toHex(row);
  return isValue(dtype, row) ? formatValue(row) : formatRow(decodeElements(row, rowsAs, dim));
}

/**
 * Decides whether bytes are a value rather than a row of floats. Cube's seek does not report the
 * dtype, so there the length decides.
 */
function isValue(dtype: SourceTable['dtype'], row: Uint8Array): boolean {
  return dtype === 'bytes' || (dtype === undefined && (row.length % 4 !== 0 || row.length === 0));
}

function formatJsonLines(
  table: SourceTable,
  keys: Uint32Array,
  { keys: found, version, rowDtype }: FoundKeys,
  { raw }: SeekOptions,
): string {
  const { name, dtype, dim } = table;
  return found
    .map(({ outcome, shard, layer, row }, i) => {
      const key = String(keyToBigint(keys, i));
      const common = { key, table: name, outcome, shard, version, dtype, layer };
      if (row === undefined) return JSON.stringify(common);
      if (raw) return JSON.stringify({ ...common, raw: toHex(row) });
      if (isValue(dtype, row)) {
        return JSON.stringify({ ...common, value: Buffer.from(row).toString('base64') });
      }
      return JSON.stringify({ ...common, row: toRowJson(decodeElements(row, rowDtype, dim)) });
    })
    .join('\n');
}
