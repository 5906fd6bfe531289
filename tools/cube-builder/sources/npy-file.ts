/** Opens .npy files, compressed or not, and .npz archives as arrays. */

import { CubeError } from '../../../lib/core/errors.ts';
import { decodeNpyHeader, NPY_HEADER_BYTES_MAX, type NpyHeader } from '../../../lib/core/npy.ts';
import type { ArrayPart } from './array-source.ts';
import { ByteReader } from './byte-reader.ts';
import { type InputFile, openReader } from './input-file.ts';
import type { NamedArray } from './named-arrays.ts';
import { readZipDirectory, readZipEntry } from './zip-archive.ts';

/** @throws CubeError if the header is damaged or does not match the file size */
export function openNpyFile(file: InputFile): Promise<ArrayPart> {
  return openNpyArray(file.path, file.unpackedBytes, () => openReader(file));
}

/** @param bytes size of the .npy file, header included, if known */
async function openNpyArray(
  label: string,
  bytes: number | undefined,
  open: () => ByteReader,
): Promise<ArrayPart> {
  const probe = open();
  let header: NpyHeader;
  try {
    header = await readHeader(probe, bytes);
  } finally {
    await probe.close();
  }
  return {
    label,
    type: header.dtype,
    shape: header.shape,
    open: async () => {
      const reader = open();
      try {
        await readHeader(reader, bytes);
      } catch (error) {
        await reader.close();
        throw error;
      }
      return reader;
    },
  };
}

async function readHeader(reader: ByteReader, bytes: number | undefined): Promise<NpyHeader> {
  await reader.ensure(NPY_HEADER_BYTES_MAX);
  const length = Math.min(reader.available, NPY_HEADER_BYTES_MAX);
  const head = reader.bytes.subarray(reader.start, reader.start + length);
  const header = decodeNpyHeader(head, bytes, reader.path);
  reader.start += header.dataOffset;
  return header;
}

const NPY_SUFFIX = '.npy';

/** @throws CubeError if the archive or the header of an array is damaged */
export async function openNpzFile(path: string): Promise<NamedArray[]> {
  const arrays: NamedArray[] = [];
  for (const entry of readZipDirectory(path)) {
    const label = `${path}: ${entry.name}`;
    if (!entry.name.endsWith(NPY_SUFFIX)) {
      throw new CubeError('UNSUPPORTED', `${label} is not a .npy array`);
    }
    const open = (): ByteReader => new ByteReader(label, readZipEntry(path, entry));
    const part = await openNpyArray(label, entry.bytes, open);
    arrays.push({ name: entry.name.slice(0, -NPY_SUFFIX.length), part });
  }
  return arrays;
}
