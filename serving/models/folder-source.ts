/**
 * The version in a folder, taken again when a file of it changes: what Paddle Serving calls reloadable_meta and reloadable_type.
 * A folder that is half written is never loaded: its files are not those that its manifest names.
 */
import { createHash } from 'node:crypto';
import { join, resolve } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { parseManifest } from '../../lib/core/manifest.ts';
import { readFile, readText, statPath } from '../../lib/platform/files.ts';
import type { Wish, WishSource } from './wish-source.ts';

/**
 * When the folder counts as changed, by the file that is watched: its time is another one, or a later one; its content is another
 * one; never.
 */
export const RELOADS = ['timestamp_ne', 'timestamp_gt', 'md5sum', 'none'] as const;
export type Reload = (typeof RELOADS)[number];

export const MANIFEST_FILE = 'manifest.json';
const MANIFEST_BYTES_MAX = 64 << 20;
const WATCHED_BYTES_MAX = 64 << 20;

export interface FolderSourceOptions {
  readonly folder: string;
  readonly reload: Reload;
  /** The file that is watched, as seen from the folder. Default: the manifest, which is written last. */
  readonly reloadFile?: string;
}

interface Read {
  readonly text: string;
  readonly bundle: string;
  readonly version: string;
  readonly wish: Wish;
}

export class FolderSource implements WishSource {
  readonly labels: readonly [string] = ['stable'];
  readonly #options: FolderSourceOptions;
  #seen: number | string | undefined;
  #read: Read | undefined;

  constructor(options: FolderSourceOptions) {
    this.#options = options;
  }

  /** As the manifest that was read last says. @throws CubeError NOT_READY before one was */
  get bundle(): string {
    if (this.#read !== undefined) return this.#read.bundle;
    throw new CubeError('NOT_READY', `${this.#options.folder}: no manifest was read yet`);
  }

  async read(): Promise<Wish | undefined> {
    const { folder } = this.#options;
    const path = join(folder, MANIFEST_FILE);
    const stamp = this.#stamp();
    if (this.#read !== undefined && !this.#isChange(stamp)) return this.#read.wish;
    if (this.#read === undefined && statPath(path) === undefined) return undefined;
    const text = readText(path, MANIFEST_BYTES_MAX);
    this.#read = this.#take(text, path);
    // After the manifest could be read: one that cannot be is looked at again at the next poll.
    this.#seen = stamp;
    return { ...this.#read.wish, rewritten: true };
  }

  async whyNothing(): Promise<string> {
    const { folder } = this.#options;
    return `${folder} has no ${MANIFEST_FILE}; put a whole version there, the manifest last`;
  }

  #take(text: string, path: string): Read {
    const { bundle, version } = parseManifest(text, path);
    const before = this.#read;
    const problem =
      before?.version === version && before.text !== text
        ? `${path}: its content changed, its version is still ${version}; build it under a new version`
        : undefined;
    const wish = { pointer: version, target: version, previous: undefined, problem };
    return { text: problem === undefined ? text : before!.text, bundle, version, wish };
  }

  #stamp(): number | string | undefined {
    const { folder, reload, reloadFile = MANIFEST_FILE } = this.#options;
    const path = resolve(folder, reloadFile);
    const stat = statPath(path);
    if (stat === undefined || reload === 'none') return undefined;
    if (reload !== 'md5sum') return stat.mtimeMs;
    return createHash('md5').update(readFile(path, WATCHED_BYTES_MAX)).digest('hex');
  }

  /** A file that is away for a moment is being replaced. */
  #isChange(stamp: number | string | undefined): boolean {
    if (stamp === undefined) return false;
    if (this.#options.reload !== 'timestamp_gt' || this.#seen === undefined) {
      return stamp !== this.#seen;
    }
    return stamp > this.#seen;
  }
}
