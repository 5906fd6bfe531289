/** How much a disk has left. */
import { statfsSync } from 'node:fs';
import { fileError } from './files.ts';

/** Bytes that this process may still write to the file system of a folder. @throws CubeError */
export function freeDiskBytes(folder: string): number {
  try {
    const { bavail, bsize } = statfsSync(folder);
    return bavail * bsize;
  } catch (error) {
    throw fileError(error, 'ask for the free space of', folder);
  }
}
