/**
 * An append-only log: `<folder>/<seq>.json`, each entry put if absent. Of two writers of one seq one wins and the other reads
 * again, so the log is history and fence at once. No lock, no clock.
 */
import { CubeError } from '../core/errors.ts';
import type { JsonReader } from '../core/json.ts';
import type { Backend } from './backend.ts';
import {
  corruptWhenUnreadable,
  type EntryFields,
  type Keys,
  putEntry,
  readEntry,
} from './entries.ts';
import { SEQ_MAX, seqOf } from './layout.ts';

/** Entries read at once. */
const READS_AT_ONCE = 16;
/** A log longer than this is a server that answers to every name. */
const ENTRIES_MAX = 1_000_000;

export interface LogPlace<T> {
  readonly folder: string;
  pathOf(seq: number): string;
  /** @throws CubeError INVALID_ARGUMENT naming the field */
  read(json: JsonReader, seq: number): T;
}

/**
 * Reads and extends one log. Entries never change, so each is read once; but the newest one known is read again, because a
 * repository may be made anew, and a damaged entry removed and written again.
 */
export class EntryLog<T> {
  readonly #backend: Backend;
  readonly #keys: Keys;
  readonly #place: LogPlace<T>;
  readonly #entries = new Map<number, T>();

  constructor(backend: Backend, keys: Keys, place: LogPlace<T>) {
    this.#backend = backend;
    this.#keys = keys;
    this.#place = place;
  }

  /** Oldest first. @throws CubeError CORRUPT or DENIED naming a bad entry */
  async history(): Promise<T[]> {
    const seqs = await this.#seqs();
    await this.#forgetOthers(seqs);
    for (let at = 0; at < seqs.length; at += READS_AT_ONCE) {
      await Promise.all(seqs.slice(at, at + READS_AT_ONCE).map((seq) => this.#remember(seq)));
    }
    return seqs.map((seq) => this.#entries.get(seq) as T);
  }

  /** @returns false when another writer was first */
  append(seq: number, fields: EntryFields): Promise<boolean> {
    return putEntry(this.#backend, this.#place.pathOf(seq), fields, this.#keys.signing);
  }

  async read(seq: number): Promise<T> {
    const json = await readEntry(this.#backend, this.#place.pathOf(seq), this.#keys.trusted);
    return corruptWhenUnreadable(() => this.#place.read(json, seq));
  }

  async #remember(seq: number): Promise<void> {
    if (!this.#entries.has(seq)) this.#entries.set(seq, await this.read(seq));
  }

  /** Those there are, ascending. */
  async #seqs(): Promise<number[]> {
    if (!this.#backend.canList) {
      return Array.from({ length: await this.#findNewest() }, (_, i) => i + 1);
    }
    const names = await this.#backend.list(this.#place.folder);
    return names
      .map(seqOf)
      .filter((seq) => seq !== undefined)
      .sort((a, b) => a - b);
  }

  /** Where nobody can list: from the newest entry known, in steps that double, then halve. 0 for an empty log. */
  async #findNewest(): Promise<number> {
    const known = this.#newestKnown();
    let there = known > 0 && (await this.#exists(known)) ? known : 0;
    let step = 1;
    while (await this.#exists(there + step)) {
      there += step;
      step *= 2;
    }
    let absent = there + step;
    while (absent - there > 1) {
      const middle = Math.floor((there + absent) / 2);
      if (await this.#exists(middle)) there = middle;
      else absent = middle;
    }
    return there;
  }

  async #exists(seq: number): Promise<boolean> {
    if (seq > SEQ_MAX) return false;
    if ((await this.#backend.size(this.#place.pathOf(seq))) === undefined) return false;
    if (seq <= ENTRIES_MAX) return true;
    throw new CubeError(
      'CORRUPT',
      `${this.#backend.location}/${this.#place.folder}: more than ${ENTRIES_MAX} entries; ` +
        'a server that answers to every name is no repository',
    );
  }

  #newestKnown(): number {
    let newest = 0;
    for (const seq of this.#entries.keys()) newest = Math.max(newest, seq);
    return newest;
  }

  /** Of a log that is not the one we knew, nothing known is true. @param seqs those there are */
  async #forgetOthers(seqs: readonly number[]): Promise<void> {
    const newest = this.#newestKnown();
    if (newest === 0) return;
    const known = JSON.stringify(this.#entries.get(newest));
    const isThere = seqs.includes(newest);
    if (isThere && JSON.stringify(await this.read(newest)) === known) return;
    this.#entries.clear();
  }
}
