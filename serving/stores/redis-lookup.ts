/**
 * One lookup in Redis: the keys of a batch by partition, one HMGET for each partition (so one round trip to each node), and
 * what came back. An answer without the partition's marker says nothing.
 */
import type { LookupGroup } from '../../lib/client/lookup-group.ts';
import type { TableRef } from '../../lib/core/manifest.ts';
import { MARKER } from './redis-layout.ts';
import type { RedisArgument, RedisLink } from './redis-link.ts';
import type { RedisVersion } from './redis-version.ts';
import { RowOutput } from './row-output.ts';

/** A server is kept from others for about a millisecond by so many. */
const FIELDS_MAX = 2_048;
const KEY_BYTES = 8;

/** What a partition says about a key: a row, empty for a deleted key, or null for one that it does not have. */
type Answer = Buffer | null;

/** One HMGET under way. */
interface Ask {
  readonly partition: string;
  readonly args: RedisArgument[];
  /** Where in `answers` each field's answer belongs. */
  readonly places: number[];
}

export class RedisLookup {
  /** Why the first of the keys without an answer has none. */
  reason: string | undefined;
  readonly #version: RedisVersion;
  readonly #groups: readonly LookupGroup[];
  readonly #tables: readonly TableRef[];
  /** Key i's answers, newest layer first, at i · depth; undefined: none came. */
  readonly #answers: (Answer | undefined)[];
  /** Layers of each key's chain. */
  readonly #depths: Uint8Array;
  readonly #asks: Ask[] = [];

  constructor(version: RedisVersion, groups: readonly LookupGroup[], tables: readonly TableRef[]) {
    this.#version = version;
    this.#groups = groups;
    this.#tables = tables;
    let total = 0;
    for (const { count } of groups) total += count;
    this.#answers = new Array(total * version.depth);
    this.#depths = new Uint8Array(total);
    this.#plan();
  }

  /** Settles when every partition has answered or failed; never rejects. */
  async ask(link: RedisLink): Promise<void> {
    await Promise.all(this.#asks.map((ask) => this.#askOne(link, ask)));
  }

  /** Writes rows and outcomes as far as answers are there. */
  finish(): { unseen: number; unavailable: number } {
    let at = 0;
    let unseen = 0;
    let unavailable = 0;
    this.#groups.forEach((group, g) => {
      const output = new RowOutput(group, this.#tables[g]!);
      for (let i = 0; i < group.count; i++) this.#decide(at++, output, i);
      unseen += output.unseen;
      unavailable += output.unavailable;
    });
    return { unseen, unavailable };
  }

  #plan(): void {
    const open = new Map<number, Ask>();
    const numbers = new Uint32Array(this.#version.depth);
    let at = 0;
    this.#groups.forEach(({ keys, count }, g) => {
      // The caller may reuse its keys when the deadline has passed; commands may be written later.
      const fields = Buffer.from(new Uint32Array(keys.subarray(0, 2 * count)).buffer);
      for (let i = 0; i < count; i++, at++) {
        const field = fields.subarray(KEY_BYTES * i, KEY_BYTES * (i + 1));
        const low = keys[2 * i]!;
        const high = keys[2 * i + 1]!;
        const depth = this.#version.locate(this.#tables[g]!, low, high, numbers);
        this.#depths[at] = depth;
        for (let l = 0; l < depth; l++) {
          const ask = this.#askOf(open, numbers[l]!);
          ask.args.push(field);
          ask.places.push(at * numbers.length + l);
        }
      }
    });
  }

  #askOf(open: Map<number, Ask>, number: number): Ask {
    let ask = open.get(number);
    if (ask === undefined || ask.places.length === FIELDS_MAX) {
      const partition = this.#version.partitionKeys[number]!;
      ask = { partition, args: ['HMGET', partition, MARKER], places: [] };
      open.set(number, ask);
      this.#asks.push(ask);
    }
    return ask;
  }

  async #askOne(link: RedisLink, { partition, args, places }: Ask): Promise<void> {
    try {
      const values = await link.send<Answer[]>(partition, true, args);
      if (values[0] === null) {
        this.reason ??= `${partition} is not, or not any more, in redis ${link.name}: load the version again (serving load-redis)`;
        return;
      }
      for (let i = 0; i < places.length; i++) this.#answers[places[i]!] = values[i + 1]!;
    } catch (error) {
      this.reason ??= (error as Error).message;
    }
  }

  /** The newest layer that has a word on the key decides, if all newer ones have answered. */
  #decide(at: number, output: RowOutput, i: number): void {
    const from = at * this.#version.depth;
    for (let l = 0; l < this.#depths[at]!; l++) {
      const answer = this.#answers[from + l];
      if (answer === undefined) {
        output.setUnavailable(i);
        return;
      }
      if (answer === null) continue;
      if (answer.length === 0) break;
      if (!output.put(i, answer)) {
        this.reason ??= `a row of ${answer.length} bytes in redis, expected ${4 * output.rowWords}`;
        output.setUnavailable(i);
      }
      return;
    }
    output.setUnseen(i);
  }
}
