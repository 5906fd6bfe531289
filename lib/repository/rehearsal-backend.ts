/**
 * A store that is only read: what would be written is said to be, and is not. A command that runs on it goes through every check,
 * loses every race that it would lose now, and changes nothing: that is `--dry-run`.
 */
import type { Backend, Eraser } from './backend.ts';

export class RehearsalBackend implements Backend {
  readonly eraser?: Eraser;
  readonly #real: Backend;

  constructor(real: Backend) {
    this.#real = real;
    const { eraser } = real;
    if (eraser === undefined) return;
    this.eraser = { objects: (folder) => eraser.objects(folder), remove: async () => undefined };
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

  /** What can only be read refuses in a rehearsal too. */
  async putIfAbsent(path: string, bytes: Uint8Array): Promise<boolean> {
    if (!this.canList) return this.#real.putIfAbsent(path, bytes);
    return (await this.size(path)) === undefined;
  }

  async putFileIfAbsent(path: string, source: string): Promise<boolean> {
    if (!this.canList) return this.#real.putFileIfAbsent(path, source);
    return (await this.size(path)) === undefined;
  }

  async removeUnfinished(): Promise<void> {}

  localPath(path: string): string | undefined {
    return this.#real.localPath(path);
  }
}
