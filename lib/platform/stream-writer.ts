/** Streams text or bytes to a temporary sibling file, which `finish` renames into place. */
import { createWriteStream, rmSync, type WriteStream } from 'node:fs';
import { dirname } from 'node:path';
import {
  fileError,
  getTemporarySiblingPath,
  makeFolder,
  movePath,
  requireReplaceable,
} from './files.ts';

export class StreamWriter {
  readonly #path: string;
  readonly #temporary: string;
  readonly #stream: WriteStream;
  #failed: Error | undefined;

  constructor(path: string) {
    this.#path = path;
    requireReplaceable(path);
    makeFolder(dirname(path));
    this.#temporary = getTemporarySiblingPath(path);
    this.#stream = createWriteStream(this.#temporary, { flags: 'wx' });
    this.#stream.on('error', (error) => {
      this.#failed = error;
    });
  }

  async write(data: string | Uint8Array): Promise<void> {
    if (this.#failed) throw fileError(this.#failed, 'write', this.#path);
    if (this.#stream.write(data)) return;
    await new Promise<void>((resolve) => {
      const settle = (): void => {
        this.#stream.off('drain', settle).off('error', settle);
        resolve();
      };
      this.#stream.on('drain', settle).on('error', settle);
    });
  }

  async finish(): Promise<void> {
    await new Promise<void>((resolve) => {
      this.#stream.once('error', () => resolve());
      this.#stream.end(() => resolve());
    });
    if (this.#failed) {
      rmSync(this.#temporary, { force: true });
      throw fileError(this.#failed, 'write', this.#path);
    }
    movePath(this.#temporary, this.#path);
  }

  abort(): void {
    this.#stream.destroy();
    rmSync(this.#temporary, { force: true });
  }
}
