/** NumPy's .npz: a ZIP archive of .npy arrays. */
import { CubeError } from '../../../lib/core/errors.ts';
import { ByteReader } from './byte-reader.ts';
import type { NamedArray } from './named-arrays.ts';
import { npyArray } from './npy-file.ts';
import { readZipDirectory, zipEntryChunks } from './zip-archive.ts';

const SUFFIX = '.npy';

/** @throws CubeError when the archive or an array's header is damaged */
export async function npzArrays(path: string): Promise<NamedArray[]> {
  const arrays: NamedArray[] = [];
  for (const entry of readZipDirectory(path)) {
    const label = `${path}: ${entry.name}`;
    if (!entry.name.endsWith(SUFFIX)) {
      throw new CubeError('UNSUPPORTED', `${label} is no .npy array`);
    }
    const open = (): ByteReader => new ByteReader(label, zipEntryChunks(path, entry));
    const part = await npyArray(label, entry.bytes, open);
    arrays.push({ name: entry.name.slice(0, -SUFFIX.length), part });
  }
  return arrays;
}
