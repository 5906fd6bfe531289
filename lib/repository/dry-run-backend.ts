/**
 * A backend that reads and does not write: writes return what they would return. A command on it
 * makes every check and changes nothing. This is `--dry-run`.
 */
import type { Backend, ObjectDeleter } from './backend.ts';

export class DryRunBackend implements Backend {
  readonly deleter?: ObjectDeleter;
  readonly #real: Backend;

  constructor(real: Backend) {
    this.#real = real;
    const { deleter } = real;
    if (deleter === undefined) return;
    this.deleter = {
      listObjects: (folder) => deleter.listObjects(folder),
      remove: async () => undefined,
    };
  }

  get location(): string {
    return this.#real.location;
  }

  get canList(): boolean {
    return this.#real.canList;
  }

  read(path: string, maxBytes: number): Promise<Uint8Array> {
    return this.#real.read(path, maxBytes);
  }

  readRange(path: string, start: number, bytes: number, signal?: AbortSignal): Promise<Uint8Array> {
    return this.#real.readRange(path, start, bytes, signal);
  }

  size(path: string): Promise<number | undefined> {
    return this.#real.size(path);
  }

  list(folder: string): Promise<string[]> {
    return this.#real.list(folder);
  }

  /** A read-only store refuses writes in a dry run too. */
  async putIfAbsent(path: string, bytes: Uint8Array): Promise<boolean> {
    if (!this.canList) return this.#real.putIfAbsent(path, bytes);
    return (await this.size(path)) === undefined;
  }

  async putFileIfAbsent(path: string, source: string): Promise<boolean> {
    if (!this.canList) return this.#real.putFileIfAbsent(path, source);
    return (await this.size(path)) === undefined;
  }

  async removeUnfinishedWrites(): Promise<void> {}

  localPath(path: string): string | undefined {
    return this.#real.localPath(path);
  }
}
