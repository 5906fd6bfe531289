/** Detects the format of a file by its first (decompressed) bytes, else by its name. */
import { detectCompression, type InputFile, openReader } from './input-file.ts';
import { looksLikeJsonLines } from './json-lines.ts';
import type { InputFormat } from './row-source.ts';
import { looksLikeSafetensors } from './safetensors-file.ts';

const HEAD_BYTES = 64 << 10;

export type FileFormat = Exclude<InputFormat, 'pruned' | 'cube-dict'>;

const MAGIC: readonly { readonly bytes: string; readonly format: FileFormat }[] = [
  { bytes: '\x93NUMPY', format: 'npy' },
  { bytes: 'PK\x03\x04', format: 'npz' },
  { bytes: 'PK\x05\x06', format: 'npz' },
  { bytes: 'SEQ', format: 'seqfile' },
  { bytes: 'PAR1', format: 'parquet' },
];

const EXTENSIONS: Readonly<Record<string, FileFormat>> = {
  npy: 'npy',
  npz: 'npz',
  seq: 'seqfile',
  seqfile: 'seqfile',
  parquet: 'parquet',
  csv: 'csv',
  tsv: 'tsv',
  jsonl: 'jsonl',
  ndjson: 'jsonl',
  json: 'jsonl',
  safetensors: 'safetensors',
};

/** Splits a file name, without folders and compression suffix, into stem and extension. */
export function splitName(path: string): { stem: string; extension: string } {
  const name = path.slice(path.lastIndexOf('/') + 1).replace(/\.(gz|zst|zstd)$/i, '');
  const dot = name.lastIndexOf('.');
  if (dot <= 0) return { stem: name, extension: '' };
  const extension = name.slice(dot + 1).toLowerCase();
  return Object.hasOwn(EXTENSIONS, extension) || extension === 'txt'
    ? { stem: name.slice(0, dot), extension }
    : { stem: name, extension: '' };
}

/** @returns undefined if the format is unknown */
export async function detectFormat(file: InputFile): Promise<FileFormat | undefined> {
  const head = await readHead(file);
  const latin1 = head.toString('latin1', 0, 16);
  const match = MAGIC.find(({ bytes }) => latin1.startsWith(bytes));
  if (match !== undefined) return match.format;
  const { extension } = splitName(file.path);
  if (extension === 'safetensors' || looksLikeSafetensors(head, file.bytes)) return 'safetensors';
  const named = EXTENSIONS[extension];
  if (named !== undefined) return named;
  return detectTextFormat(head);
}

async function readHead(file: InputFile): Promise<Buffer> {
  const reader = openReader(file);
  try {
    await reader.ensure(HEAD_BYTES);
    const length = Math.min(reader.available, HEAD_BYTES);
    return Buffer.from(reader.bytes.subarray(reader.start, reader.start + length));
  } finally {
    await reader.close();
  }
}

/** Detects JSON lines by the first character, TSV and CSV by the delimiter of the first line. */
function detectTextFormat(head: Buffer): FileFormat | undefined {
  if (head.includes(0) || detectCompression(head) !== undefined) return undefined;
  const text = head.toString('utf8');
  if (looksLikeJsonLines(text)) return 'jsonl';
  const line = text.split('\n', 1)[0] ?? '';
  if (line.includes('\t')) return 'tsv';
  return line.includes(',') ? 'csv' : undefined;
}
