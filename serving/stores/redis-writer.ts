/** Rows of one layer into its partitions: a few thousand at a time, pipelined, at a limited rate; and how many each partition got. */
import type { Clock } from '../../lib/platform/clock.ts';
import { partitionOf } from './redis-layout.ts';
import type { RedisArgument, RedisLink } from './redis-link.ts';

/** Rows on the wire at once: a server is kept from lookups for a few milliseconds. */
const WRITE_ROWS = 2_048;
const KEY_BYTES = 8;

export class RedisWriter {
  /** Of each partition: rows and deleted keys. */
  readonly fields: Float64Array;
  readonly #link: RedisLink;
  readonly #keys: readonly string[];
  readonly #clock: Clock;
  readonly #bytesPerSecond: number | undefined;
  readonly #startMs: number;
  #bytes = 0;

  constructor(
    link: RedisLink,
    keys: readonly string[],
    clock: Clock,
    bytesPerSecond: number | undefined,
  ) {
    this.#link = link;
    this.#keys = keys;
    this.#clock = clock;
    this.#bytesPerSecond = bytesPerSecond;
    this.#startMs = clock.nowMs();
    this.fields = new Float64Array(keys.length);
  }

  /** Keys that are there already. @param keys words */
  count(keys: Uint32Array): void {
    for (let i = 0; i < keys.length; i += 2) {
      this.fields[partitionOf(keys[i]!, keys[i + 1]!, this.#keys.length)]! += 1;
    }
  }

  /** Rows of so many bytes; of none for deleted keys. @param keys words */
  async write(keys: Uint32Array, rows: Uint8Array, rowBytes: number): Promise<void> {
    const keyBytes = Buffer.from(keys.buffer, keys.byteOffset, 4 * keys.length);
    const rowBuffer = Buffer.from(rows.buffer, rows.byteOffset, rows.length);
    const count = keys.length / 2;
    for (let start = 0; start < count; start += WRITE_ROWS) {
      const end = Math.min(start + WRITE_ROWS, count);
      const commands = new Map<number, RedisArgument[]>();
      for (let i = start; i < end; i++) {
        const partition = partitionOf(keys[2 * i]!, keys[2 * i + 1]!, this.#keys.length);
        this.fields[partition]! += 1;
        let command = commands.get(partition);
        if (command === undefined) {
          command = ['HSET', this.#keys[partition]!];
          commands.set(partition, command);
        }
        command.push(keyBytes.subarray(KEY_BYTES * i, KEY_BYTES * (i + 1)));
        command.push(rowBuffer.subarray(rowBytes * i, rowBytes * (i + 1)));
      }
      await Promise.all(
        [...commands].map(([partition, command]) =>
          this.#link.send(this.#keys[partition]!, false, command),
        ),
      );
      await this.#pace((end - start) * (KEY_BYTES + rowBytes));
    }
  }

  async #pace(bytes: number): Promise<void> {
    this.#bytes += bytes;
    if (this.#bytesPerSecond === undefined) return;
    const dueMs = this.#startMs + (this.#bytes / this.#bytesPerSecond) * 1_000;
    await this.#clock.sleep(Math.max(0, dueMs - this.#clock.nowMs()));
  }
}
