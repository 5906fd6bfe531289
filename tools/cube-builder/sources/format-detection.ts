/** What a file is: by its first bytes where they say it, else by its name. Packed files are looked into. */
import { compressionOf, type InputFile, readerOf } from './input-file.ts';
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

/** The name without folders, ending of compression, and extension. */
export function splitName(path: string): { stem: string; extension: string } {
  const name = path.slice(path.lastIndexOf('/') + 1).replace(/\.(gz|zst|zstd)$/i, '');
  const dot = name.lastIndexOf('.');
  if (dot <= 0) return { stem: name, extension: '' };
  const extension = name.slice(dot + 1).toLowerCase();
  return Object.hasOwn(EXTENSIONS, extension) || extension === 'txt'
    ? { stem: name.slice(0, dot), extension }
    : { stem: name, extension: '' };
}

/** @returns undefined when nothing says it */
export async function detectFormat(file: InputFile): Promise<FileFormat | undefined> {
  const head = await headOf(file);
  const latin1 = head.toString('latin1', 0, 16);
  const known = MAGIC.find(({ bytes }) => latin1.startsWith(bytes));
  if (known !== undefined) return known.format;
  const { extension } = splitName(file.path);
  if (extension === 'safetensors' || looksLikeSafetensors(head, file.bytes)) return 'safetensors';
  const named = EXTENSIONS[extension];
  if (named !== undefined) return named;
  return textFormat(head);
}

async function headOf(file: InputFile): Promise<Buffer> {
  const reader = readerOf(file);
  try {
    await reader.ensure(HEAD_BYTES);
    const length = Math.min(reader.available, HEAD_BYTES);
    return Buffer.from(reader.bytes.subarray(reader.start, reader.start + length));
  } finally {
    await reader.close();
  }
}

/** Text that is not JSON: what stands between the fields of its first line. */
function textFormat(head: Buffer): FileFormat | undefined {
  if (head.includes(0) || compressionOf(head) !== undefined) return undefined;
  const text = head.toString('utf8');
  if (looksLikeJsonLines(text)) return 'jsonl';
  const line = text.split('\n', 1)[0] ?? '';
  if (line.includes('\t')) return 'tsv';
  return line.includes(',') ? 'csv' : undefined;
}
