/**
 * A repository in memory as each process sees it: sometimes unavailable, and interrupted at any
 * call.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { Backend, ObjectDeleter, StoredObject } from '../../lib/repository/backend.ts';
import type { SimProcess, World } from './world.ts';

export interface StoredBytes {
  bytes: Uint8Array;
  readonly atMs: number;
}

/** Observes every change before it takes effect. */
export interface StoreObserver {
  put(path: string, bytes: Uint8Array, by: Writer): void;
  removed(path: string, by: Writer): void;
}

/** The writer, and when it began to decide on the write. */
export type Writer = Pick<SimProcess, 'name' | 'decidedAtCall'>;

export class MemoryStore {
  readonly objects: Map<string, StoredBytes> = new Map();
  readonly world: World;
  readonly observer: StoreObserver;
  readonly #folders = new Map<string, Set<string>>();
  /** Sorted names of folders that have not changed since they were listed. */
  readonly #lists = new Map<string, readonly string[]>();

  constructor(world: World, watch: StoreObserver) {
    this.world = world;
    this.observer = watch;
  }

  put(path: string, bytes: Uint8Array, by: Writer): boolean {
    if (this.objects.has(path)) return false;
    this.observer.put(path, bytes, by);
    this.objects.set(path, { bytes, atMs: this.world.nowMs });
    for (let at = path.lastIndexOf('/'), end = path.length; ; ) {
      const folder = path.slice(0, Math.max(0, at));
      const names = this.#folders.get(folder) ?? new Set();
      this.#folders.set(folder, names.add(path.slice(at + 1, end)));
      this.#lists.delete(folder);
      if (at < 0) return true;
      end = at;
      at = path.lastIndexOf('/', at - 1);
    }
  }

  remove(path: string, by: Writer): void {
    if (!this.objects.delete(path)) return;
    this.observer.removed(path, by);
    let end = path.length;
    for (let at = path.lastIndexOf('/'); at >= 0; at = path.lastIndexOf('/', at - 1)) {
      const names = this.#folders.get(path.slice(0, at));
      names?.delete(path.slice(at + 1, end));
      this.#lists.delete(path.slice(0, at));
      if (names === undefined || names.size > 0) return;
      end = at;
    }
  }

  list(folder: string): string[] {
    const names = this.#lists.get(folder) ?? [...(this.#folders.get(folder) ?? [])].sort();
    this.#lists.set(folder, names);
    return [...names];
  }

  listBelow(folder: string): StoredObject[] {
    const found: StoredObject[] = [];
    for (const [path, { bytes, atMs }] of this.objects) {
      if (!path.startsWith(`${folder}/`)) continue;
      found.push({ path, bytes: bytes.length, ageMs: this.world.nowMs - atMs });
    }
    return found;
  }
}

/** @param isUnreachable whether the process cannot reach the store now */
export class ProcessStore implements Backend {
  readonly location = 'memory';
  readonly canList = true;
  readonly deleter: ObjectDeleter = {
    listObjects: (folder) => this.#call(() => this.#store.listBelow(folder)),
    remove: (path) => this.#call(() => this.#store.remove(path, this.#process)),
  };
  readonly #store: MemoryStore;
  readonly #process: SimProcess;
  readonly #isAway: () => boolean;

  constructor(store: MemoryStore, process: SimProcess, isAway: () => boolean) {
    this.#store = store;
    this.#process = process;
    this.#isAway = isAway;
  }

  read(path: string, maxBytes: number): Promise<Uint8Array> {
    return this.#call(() => {
      const bytes = this.#bytes(path);
      if (bytes.length <= maxBytes) return bytes;
      throw new CubeError('TOO_LARGE', `${path}: ${bytes.length} bytes`);
    });
  }

  readRange(path: string, start: number, bytes: number): Promise<Uint8Array> {
    return this.#call(() => this.#bytes(path).subarray(start, start + bytes));
  }

  size(path: string): Promise<number | undefined> {
    return this.#call(() => this.#store.objects.get(path)?.bytes.length);
  }

  list(folder: string): Promise<string[]> {
    return this.#call(() => this.#store.list(folder));
  }

  putIfAbsent(path: string, bytes: Uint8Array): Promise<boolean> {
    const { name, decidedAtCall } = this.#process;
    return this.#call(() => this.#store.put(path, bytes, { name, decidedAtCall }), true);
  }

  async putFileIfAbsent(): Promise<boolean> {
    throw new CubeError('UNSUPPORTED', 'nothing lies on a disk here');
  }

  async removeUnfinishedWrites(): Promise<void> {}

  localPath(): undefined {
    return undefined;
  }

  #bytes(path: string): Uint8Array {
    const object = this.#store.objects.get(path);
    if (object !== undefined) return object.bytes;
    throw new CubeError('NOT_FOUND', `memory/${path} is missing`);
  }

  #call<T>(effect: () => T, mayBeLate = false): Promise<T> {
    return this.#process.callRemote(() => {
      if (this.#isAway()) throw new CubeError('UNAVAILABLE', 'the repository is away');
      return effect();
    }, mayBeLate);
  }
}
