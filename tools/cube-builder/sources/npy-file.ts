/** A .npy file, plain or packed, as an array. */
import { decodeNpyHeader, NPY_HEADER_BYTES_MAX, type NpyHeader } from '../../../lib/core/npy.ts';
import type { ArrayPart } from './array-source.ts';
import type { ByteReader } from './byte-reader.ts';
import { type InputFile, readerOf } from './input-file.ts';

/** @throws CubeError when the header is damaged, or the file is not as long as it says */
export function npyFile(file: InputFile): Promise<ArrayPart> {
  return npyArray(file.path, file.unpackedBytes, () => readerOf(file));
}

/** @param bytes the length of the whole array file, where known */
export async function npyArray(
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
