/** A file that is read at positions and not held open: a model may have a parameter file for each of its thousands of variables. */
import { RandomReader } from '../../../lib/platform/files.ts';

export class DataFile {
  readonly path: string;
  readonly bytes: number;

  constructor(path: string) {
    this.path = path;
    const reader = new RandomReader(path);
    this.bytes = reader.bytes;
    reader.close();
  }

  /** Fills `target` from `position`. @throws CubeError CORRUPT when the file ends before */
  readInto(target: Uint8Array, position: number): void {
    const reader = new RandomReader(this.path);
    try {
      reader.readInto(target, position);
    } finally {
      reader.close();
    }
  }
}
