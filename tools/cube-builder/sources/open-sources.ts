/** From paths to tables: which files there are, what format they have, which of them make one table. */
import { basename, dirname, join, resolve } from 'node:path';
import { Readable } from 'node:stream';
import { CubeError } from '../../../lib/core/errors.ts';
import { toName } from '../../../lib/core/names.ts';
import { arraySource, type TableArrays } from './array-source.ts';
import { cubeDict } from './cube-dict.ts';
import { delimitedFile } from './delimited-file.ts';
import { detectFormat, type FileFormat, splitName } from './format-detection.ts';
import { checkFormatOptions } from './format-options.ts';
import { type InputFile, openFile, standardInput } from './input-file.ts';
import { expandPaths, type InputPath } from './input-paths.ts';
import { jsonLines } from './json-lines.ts';
import { tablesOf } from './named-arrays.ts';
import { npyFile } from './npy-file.ts';
import { npzArrays } from './npz-file.ts';
import { parquetFile } from './parquet-file.ts';
import { prunedTables } from './pruned-tables.ts';
import { openRecords, type RecordFile } from './record-source.ts';
import { INPUT_FORMATS, type InputFormat, type InputSpec, type RowSource } from './row-source.ts';
import { safetensorsArrays } from './safetensors-file.ts';
import { sequenceFile } from './sequence-file.ts';

const STREAM_FORMATS: readonly string[] = ['npy', 'seqfile', 'csv', 'tsv', 'jsonl'];
const PACKED_FORMATS = STREAM_FORMATS;

/** One file, or a dict directory, as a part of a table. */
interface Part {
  readonly table: string;
  readonly records: RecordFile;
}

/**
 * @param stdin what "-" reads; the process's own when absent
 * @returns one source a table, in the order of the paths
 * @throws CubeError saying which path is missing, unknown or damaged
 */
export async function openSources(
  input: InputSpec,
  stdin?: AsyncIterable<Uint8Array>,
): Promise<RowSource[]> {
  if (input.paths.length === 0) throw new CubeError('INVALID_ARGUMENT', 'no input path');
  if (input.paths.includes('-')) return [await openStandardInput(input, stdin ?? process.stdin)];
  const parts: Part[] = [];
  const tables: TableArrays[] = [];
  const files: InputFile[] = [];
  const formats = new Set<InputFormat>();
  for (const { path, kind } of expandPaths(input.paths)) {
    checkKind(path, kind, input);
    if (kind !== 'file') {
      checkSignable(kind, path, input);
      formats.add(kind);
    }
    if (kind === 'pruned') tables.push(...(await prunedTables(path)));
    else if (kind === 'cube-dict') {
      parts.push({ table: tableOf(path), records: cubeDict(path, input.delta ?? false) });
    } else files.push(openFile(path));
  }
  const arrays: NamedFile[] = [];
  for (const file of files) {
    const format = await formatOf(file, input);
    formats.add(format);
    if (format === 'npy') arrays.push({ file, format });
    else if (format === 'npz' || format === 'safetensors') {
      tables.push(...(await archiveTables(file, format, input)));
    } else {
      const records = await recordFile(file, format, input);
      parts.push({ table: tableOf(file.path), records });
    }
  }
  checkFormatOptions(input, formats);
  tables.push(...(await npyTables(arrays.map(({ file }) => file))));
  return gather(parts, tables, input);
}

interface NamedFile {
  readonly file: InputFile;
  readonly format: FileFormat;
}

function checkKind(path: string, kind: InputPath['kind'], { format }: InputSpec): void {
  if (format === undefined || format === kind) return;
  if (kind === 'file' && format !== 'pruned' && format !== 'cube-dict') return;
  const what = kind === 'file' ? 'a file' : `a ${kind} folder`;
  throw new CubeError('INVALID_ARGUMENT', `${path} is ${what}, not ${format} (--format)`);
}

async function formatOf(file: InputFile, input: InputSpec): Promise<FileFormat> {
  const { format } = input;
  const found = (format as FileFormat | undefined) ?? (await detectFormat(file));
  if (found === undefined) {
    throw new CubeError(
      'UNSUPPORTED',
      `${file.path}: not a format known by content or name; --format says it ` +
        `(${INPUT_FORMATS.join(', ')})`,
    );
  }
  if (file.compression !== undefined && !PACKED_FORMATS.includes(found)) {
    throw new CubeError(
      'UNSUPPORTED',
      `${file.path}: ${found} is not a stream; unpack the ${file.compression} first`,
    );
  }
  checkSignable(found, file.path, input);
  return found;
}

const TEXT_KEYS: readonly string[] = ['csv', 'tsv', 'jsonl', 'parquet'];

function checkSignable(format: string, path: string, { signKey }: InputSpec): void {
  if (signKey === undefined || TEXT_KEYS.includes(format)) return;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${path}: ${format} has no text keys to sign (--sign-key is for ${TEXT_KEYS.join(', ')})`,
  );
}

async function recordFile(
  file: InputFile,
  format: FileFormat,
  input: InputSpec,
): Promise<RecordFile> {
  if (format === 'seqfile') return sequenceFile(file);
  if (format === 'parquet') return parquetFile(file, input);
  if (format === 'jsonl') return jsonLines(file, input);
  return delimitedFile(file, format === 'tsv' ? 'tsv' : 'csv', input);
}

async function archiveTables(
  file: InputFile,
  format: 'npz' | 'safetensors',
  { arrays: wanted }: InputSpec,
): Promise<TableArrays[]> {
  const { path } = file;
  const arrays = format === 'npz' ? await npzArrays(path) : safetensorsArrays(file, wanted);
  return tablesOf(arrays, { path, fileName: tableOf(path), wanted, files: [file] });
}

/** Each .npy file is a table, with the keys of `<name>.keys.npy` beside it. */
async function npyTables(files: readonly InputFile[]): Promise<TableArrays[]> {
  const byPath = new Map(files.map((file) => [arrayPath(file.path), file]));
  const tables: TableArrays[] = [];
  for (const [path, file] of byPath) {
    if (path.endsWith('.keys') && byPath.has(path.slice(0, -'.keys'.length))) continue;
    const keysFile = byPath.get(`${path}.keys`);
    const used = keysFile === undefined ? [file] : [file, keysFile];
    const rows = await npyFile(file);
    const keys = keysFile && (await npyFile(keysFile));
    tables.push({ name: toName(splitName(file.path).stem), rows, keys, files: used });
  }
  return tables;
}

function arrayPath(path: string): string {
  return join(dirname(path), splitName(path).stem);
}

/** Parts of the same table become one source. */
async function gather(
  parts: readonly Part[],
  tables: readonly TableArrays[],
  input: InputSpec,
): Promise<RowSource[]> {
  const groups = new Map<string, RecordFile[]>();
  for (const { table, records } of parts) {
    const name = input.table ?? table;
    groups.set(name, [...(groups.get(name) ?? []), records]);
  }
  const isRenamed = input.table !== undefined && tables.length === 1 && groups.size === 0;
  const sources = tables.map((table) =>
    arraySource(isRenamed ? { ...table, name: input.table as string } : table, input.dim),
  );
  for (const [name, records] of groups) sources.push(await openRecords(name, records, input));
  if (input.table !== undefined && sources.length > 1) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${sources.length} tables in the input (${sources.map(({ name }) => name).join(', ')}), ` +
        `but one name for them: ${input.table}`,
    );
  }
  const names = sources.map(({ name }) => name);
  const twice = names.find((name, i) => names.indexOf(name) !== i);
  if (twice !== undefined) {
    throw new CubeError('CONFLICT', `two inputs give a table ${twice}; build them apart`);
  }
  return sources;
}

/**
 * The table that a file belongs to, when nobody names it: files called `<table>-part-3`, `<table>_part3` or
 * `<table>-3-of-8` are parts of one, files called `part-3…` parts of their folder's.
 */
function tableOf(path: string): string {
  const { stem } = splitName(path);
  const match = /^(.*?)[-_.]?(?:(?:part|shard)[-_.]?\d.*|\d+-of-\d+)$/.exec(stem);
  const name = match === null ? stem : (match[1] as string);
  return toName(name === '' ? basename(dirname(resolve(path))) : name);
}

async function openStandardInput(
  input: InputSpec,
  stdin: AsyncIterable<Uint8Array>,
): Promise<RowSource> {
  const { paths, format, table = 'table' } = input;
  if (paths.length > 1) {
    throw new CubeError('INVALID_ARGUMENT', 'standard input (-) cannot be one of several inputs');
  }
  if (format === undefined || !STREAM_FORMATS.includes(format)) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `standard input needs --format, one of ${STREAM_FORMATS.join(', ')}` +
        (format === undefined ? '' : `; ${format} must be a file`),
    );
  }
  checkSignable(format, 'standard input', input);
  checkFormatOptions(input, new Set([format]));
  const file = await standardInput(stdin);
  try {
    if (format === 'npy') {
      const rows = await npyFile(file);
      return arraySource({ name: table, rows, keys: undefined, files: [] }, input.dim);
    }
    const records = { ...(await recordFile(file, format as FileFormat, input)), files: [] };
    return await openRecords(table, [records], input);
  } catch (error) {
    if (stdin instanceof Readable) stdin.destroy();
    throw error;
  }
}
