/** Opens input paths as tables: finds files, detects their formats and groups them by table. */
import { basename, dirname, join, resolve } from 'node:path';
import { Readable } from 'node:stream';
import { CubeError } from '../../../lib/core/errors.ts';
import { toValidName } from '../../../lib/core/names.ts';
import { createArraySource, type TableArrays } from './array-source.ts';
import { openCubeDict } from './cube-dict.ts';
import { openDelimitedFile } from './delimited-file.ts';
import { detectFormat, type FileFormat, splitName } from './format-detection.ts';
import { type InputFile, openFile, openStandardInput } from './input-file.ts';
import { checkFormatOptions } from './input-options.ts';
import { expandPaths, type InputPath } from './input-paths.ts';
import { openJsonLines } from './json-lines.ts';
import { groupTables } from './named-arrays.ts';
import { openNpyFile, openNpzFile } from './npy-file.ts';
import { openParquetFile } from './parquet-file.ts';
import { openPrunedTables } from './pruned-tables.ts';
import { openRecords, type RecordFile } from './record-source.ts';
import { INPUT_FORMATS, type InputFormat, type InputSpec, type RowSource } from './row-source.ts';
import { openSafetensorsFile } from './safetensors-file.ts';
import { openSequenceFile } from './sequence-file.ts';

const STREAM_FORMATS: readonly string[] = ['npy', 'seqfile', 'csv', 'tsv', 'jsonl'];
const COMPRESSIBLE_FORMATS = STREAM_FORMATS;

/** A file or dict directory that is a part of a table. */
interface TablePart {
  readonly table: string;
  readonly records: RecordFile;
}

/**
 * @param stdin the stream that "-" reads; by default that of the process
 * @returns one source per table, in the order of the paths
 * @throws CubeError for a path that is missing, damaged or of unknown format
 */
export async function openSources(
  input: InputSpec,
  stdin?: AsyncIterable<Uint8Array>,
): Promise<RowSource[]> {
  if (input.paths.length === 0) throw new CubeError('INVALID_ARGUMENT', 'no input path');
  if (input.paths.includes('-'))
    return [await openStandardInputSource(input, stdin ?? process.stdin)];
  const parts: TablePart[] = [];
  const tables: TableArrays[] = [];
  const files: InputFile[] = [];
  const formats = new Set<InputFormat>();
  for (const { path, kind } of expandPaths(input.paths)) {
    checkKind(path, kind, input);
    if (kind !== 'file') {
      checkSignKey(kind, path, input);
      formats.add(kind);
    }
    if (kind === 'pruned') tables.push(...(await openPrunedTables(path)));
    else if (kind === 'cube-dict') {
      parts.push({ table: toTableName(path), records: openCubeDict(path, input.delta ?? false) });
    } else files.push(openFile(path));
  }
  const arrays: NamedFile[] = [];
  for (const file of files) {
    const format = await chooseFormat(file, input);
    formats.add(format);
    if (format === 'npy') arrays.push({ file, format });
    else if (format === 'npz' || format === 'safetensors') {
      tables.push(...(await openArchive(file, format, input)));
    } else {
      const records = await openRecordFile(file, format, input);
      parts.push({ table: toTableName(file.path), records });
    }
  }
  checkFormatOptions(input, formats);
  tables.push(...(await openNpyTables(arrays.map(({ file }) => file))));
  return groupSources(parts, tables, input);
}

interface NamedFile {
  readonly file: InputFile;
  readonly format: FileFormat;
}

function checkKind(path: string, kind: InputPath['kind'], { format }: InputSpec): void {
  if (format === undefined || format === kind) return;
  if (kind === 'file' && format !== 'pruned' && format !== 'cube-dict') return;
  const what = kind === 'file' ? 'a file' : `a ${kind} folder`;
  throw new CubeError('INVALID_ARGUMENT', `${path} is ${what}, but --format is ${format}`);
}

async function chooseFormat(file: InputFile, input: InputSpec): Promise<FileFormat> {
  const { format } = input;
  const found = (format as FileFormat | undefined) ?? (await detectFormat(file));
  if (found === undefined) {
    throw new CubeError(
      'UNSUPPORTED',
      `${file.path}: cannot detect the format by content or name; give it with --format ` +
        `(${INPUT_FORMATS.join(', ')})`,
    );
  }
  if (file.compression !== undefined && !COMPRESSIBLE_FORMATS.includes(found)) {
    throw new CubeError(
      'UNSUPPORTED',
      `${file.path}: ${found} cannot be read compressed; decompress the ${file.compression} first`,
    );
  }
  checkSignKey(found, file.path, input);
  return found;
}

const TEXT_KEYS: readonly string[] = ['csv', 'tsv', 'jsonl', 'parquet'];

function checkSignKey(format: string, path: string, { signKey }: InputSpec): void {
  if (signKey === undefined || TEXT_KEYS.includes(format)) return;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${path}: ${format} has no text keys; --sign-key applies to ${TEXT_KEYS.join(', ')}`,
  );
}

async function openRecordFile(
  file: InputFile,
  format: FileFormat,
  input: InputSpec,
): Promise<RecordFile> {
  if (format === 'seqfile') return openSequenceFile(file);
  if (format === 'parquet') return openParquetFile(file, input);
  if (format === 'jsonl') return openJsonLines(file, input);
  return openDelimitedFile(file, format === 'tsv' ? 'tsv' : 'csv', input);
}

async function openArchive(
  file: InputFile,
  format: 'npz' | 'safetensors',
  { arrays: selected }: InputSpec,
): Promise<TableArrays[]> {
  const { path } = file;
  const arrays = format === 'npz' ? await openNpzFile(path) : openSafetensorsFile(file, selected);
  return groupTables(arrays, {
    path,
    fileName: toTableName(path),
    selected,
    files: [file],
  });
}

/** Each .npy file is a table; its keys are `<name>.keys.npy` in the same folder. */
async function openNpyTables(files: readonly InputFile[]): Promise<TableArrays[]> {
  const byPath = new Map(files.map((file) => [stripExtension(file.path), file]));
  const tables: TableArrays[] = [];
  for (const [path, file] of byPath) {
    if (path.endsWith('.keys') && byPath.has(path.slice(0, -'.keys'.length))) continue;
    const keysFile = byPath.get(`${path}.keys`);
    const used = keysFile === undefined ? [file] : [file, keysFile];
    const rows = await openNpyFile(file);
    const keys = keysFile && (await openNpyFile(keysFile));
    tables.push({ name: toValidName(splitName(file.path).stem), rows, keys, files: used });
  }
  return tables;
}

function stripExtension(path: string): string {
  return join(dirname(path), splitName(path).stem);
}

/** Makes one source of all parts of a table. */
async function groupSources(
  parts: readonly TablePart[],
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
    createArraySource(isRenamed ? { ...table, name: input.table as string } : table, input.dim),
  );
  for (const [name, records] of groups) sources.push(await openRecords(name, records, input));
  if (input.table !== undefined && sources.length > 1) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `--table ${input.table} names one table, but the input has ${sources.length} ` +
        `(${sources.map(({ name }) => name).join(', ')}): read one of them`,
    );
  }
  const names = sources.map(({ name }) => name);
  const twice = names.find((name, i) => names.indexOf(name) !== i);
  if (twice !== undefined) {
    throw new CubeError('CONFLICT', `two inputs are named table ${twice}; rename one`);
  }
  return sources;
}

/**
 * Derives the table name from a path if no name is given. Files `<table>-part-3`, `<table>_part3`
 * and `<table>-3-of-8` are parts of one table; files `part-3…` belong to the table of their folder.
 */
function toTableName(path: string): string {
  const { stem } = splitName(path);
  const match = /^(.*?)[-_.]?(?:(?:part|shard)[-_.]?\d.*|\d+-of-\d+)$/.exec(stem);
  const name = match === null ? stem : (match[1] as string);
  return toValidName(name === '' ? basename(dirname(resolve(path))) : name);
}

async function openStandardInputSource(
  input: InputSpec,
  stdin: AsyncIterable<Uint8Array>,
): Promise<RowSource> {
  const { paths, format, table = 'table' } = input;
  if (paths.length > 1) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      'standard input (-) cannot be combined with other inputs',
    );
  }
  if (format === undefined || !STREAM_FORMATS.includes(format)) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `standard input needs --format, one of ${STREAM_FORMATS.join(', ')}` +
        (format === undefined ? '' : `; ${format} must be read from a file`),
    );
  }
  checkSignKey(format, 'standard input', input);
  checkFormatOptions(input, new Set([format]));
  const file = await openStandardInput(stdin);
  try {
    if (format === 'npy') {
      const rows = await openNpyFile(file);
      return createArraySource({ name: table, rows, keys: undefined, files: [] }, input.dim);
    }
    const records = { ...(await openRecordFile(file, format as FileFormat, input)), files: [] };
    return await openRecords(table, [records], input);
  } catch (error) {
    if (stdin instanceof Readable) stdin.destroy();
    throw error;
  }
}
