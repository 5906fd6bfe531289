/**
 * An append-only log of objects `<folder>/<seq>.json`, each put if absent. Of two concurrent
 * writers of one seq one wins and the other reads again, so the log needs no lock and no clock.
 */
import { CubeError } from '../core/errors.ts';
import type { JsonReader } from '../core/json.ts';
import type { Backend } from './backend.ts';
import { parseSeq, SEQ_MAX } from './layout.ts';
import {
  type EntryFields,
  putEntry,
  type RepositoryKeys,
  readEntry,
  rethrowAsCorrupt,
} from './signed-entry.ts';

/** Entries read concurrently. */
const CONCURRENT_READS = 16;
/** Invalid entries that `readNewest` skips, at most. */
const SKIPPED_MAX = 100;
/** A longer log means that the server responds to every name. */
const ENTRIES_MAX = 1_000_000;

export interface EntryLogSpec<T> {
  readonly folder: string;
  entryPath(seq: number): string;
  /** @throws CubeError INVALID_ARGUMENT naming the field */
  parse(json: JsonReader, seq: number): T;
}

export interface NewestEntry<T> {
  /** Undefined: the log has no valid entry. */
  readonly entry: T | undefined;
  /** Why the newest entry is not used; undefined: it is. */
  readonly problem: CubeError | undefined;
}

/** What to do about an entry that is missing before the newest one. */
export const RESTORE_MISSING_ENTRY: string =
  'readers over HTTP stop at it: restore it from a copy; if there is none and entries are not ' +
  'signed, copy the next entry to its name';

/**
 * Reads and extends one log. Entries never change, so each is read once. Only the newest known
 * entry is read again, because a repository may be recreated, and a damaged entry replaced.
 */
export class EntryLog<T> {
  readonly #backend: Backend;
  readonly #keys: RepositoryKeys;
  readonly #place: EntryLogSpec<T>;
  readonly #entries = new Map<number, T>();

  constructor(backend: Backend, keys: RepositoryKeys, place: EntryLogSpec<T>) {
    this.#backend = backend;
    this.#keys = keys;
    this.#place = place;
  }

  /** Oldest first. @throws CubeError CORRUPT or DENIED naming a bad entry */
  async readHistory(): Promise<T[]> {
    const seqs = await this.#seqs();
    await this.#forgetReplaced(seqs);
    for (let at = 0; at < seqs.length; at += CONCURRENT_READS) {
      await Promise.all(seqs.slice(at, at + CONCURRENT_READS).map((seq) => this.#remember(seq)));
    }
    return seqs.map((seq) => this.#entries.get(seq) as T);
  }

  /**
   * The newest entry that is neither damaged nor refused, for readers that continue with an older
   * one. @throws CubeError when the repository does not answer
   */
  async readNewest(): Promise<NewestEntry<T>> {
    let problem: CubeError | undefined;
    const seqs = await this.#seqs();
    for (const seq of seqs.toReversed().slice(0, SKIPPED_MAX)) {
      try {
        return { entry: await this.readEntry(seq), problem };
      } catch (error) {
        const failure = CubeError.from(error);
        if (failure.code !== 'CORRUPT' && failure.code !== 'DENIED') throw error;
        problem ??= failure;
      }
    }
    return { entry: undefined, problem };
  }

  /** @returns false if another writer was first */
  append(seq: number, fields: EntryFields): Promise<boolean> {
    return putEntry(this.#backend, this.#place.entryPath(seq), fields, this.#keys.signing);
  }

  async readEntry(seq: number): Promise<T> {
    const json = await readEntry(this.#backend, this.#place.entryPath(seq), this.#keys.trusted);
    return rethrowAsCorrupt(() => this.#place.parse(json, seq));
  }

  async #remember(seq: number): Promise<void> {
    if (this.#entries.has(seq)) return;
    try {
      this.#entries.set(seq, await this.readEntry(seq));
    } catch (error) {
      if (this.#backend.canList || CubeError.from(error).code !== 'NOT_FOUND') throw error;
      // A log that cannot be listed is read up to its newest entry, so an entry before it is lost.
      const path = `${this.#backend.location}/${this.#place.entryPath(seq)}`;
      const what = `entry ${seq} is missing, although a newer one exists`;
      throw new CubeError('CORRUPT', `${path}: ${what}; ${RESTORE_MISSING_ENTRY}`);
    }
  }

  /** The seqs of all entries, ascending. */
  async #seqs(): Promise<number[]> {
    if (!this.#backend.canList) {
      return Array.from({ length: await this.#findNewest() }, (_, i) => i + 1);
    }
    const names = await this.#backend.list(this.#place.folder);
    return names
      .map(parseSeq)
      .filter((seq) => seq !== undefined)
      .sort((a, b) => a - b);
  }

  /**
   * For stores that cannot list: probes from the newest known entry in steps that double, then
   * halve. @returns 0 for an empty log
   */
  async #findNewest(): Promise<number> {
    const known = this.#newestKnown();
    let found = known > 0 && (await this.#exists(known)) ? known : 0;
    let step = 1;
    while (await this.#exists(found + step)) {
      found += step;
      step *= 2;
    }
    let absent = found + step;
    while (absent - found > 1) {
      const middle = Math.floor((found + absent) / 2);
      if (await this.#exists(middle)) found = middle;
      else absent = middle;
    }
    return found;
  }

  async #exists(seq: number): Promise<boolean> {
    if (seq > SEQ_MAX) return false;
    if ((await this.#backend.size(this.#place.entryPath(seq))) === undefined) return false;
    if (seq <= ENTRIES_MAX) return true;
    throw new CubeError(
      'CORRUPT',
      `${this.#backend.location}/${this.#place.folder}: more than ${ENTRIES_MAX} entries; ` +
        'the server seems to respond to every name, which a repository must not do',
    );
  }

  #newestKnown(): number {
    let newest = 0;
    for (const seq of this.#entries.keys()) newest = Math.max(newest, seq);
    return newest;
  }

  /** Forgets all entries if the log was replaced. @param seqs those of all entries */
  async #forgetReplaced(seqs: readonly number[]): Promise<void> {
    const newest = this.#newestKnown();
    if (newest === 0) return;
    const known = JSON.stringify(this.#entries.get(newest));
    const isPresent = seqs.includes(newest);
    if (isPresent && JSON.stringify(await this.readEntry(newest)) === known) return;
    this.#entries.clear();
  }
}
