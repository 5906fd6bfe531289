/**
 * Writes the rows of one layer to its partitions, a few thousand at a time, pipelined and at a
 * limited rate, and counts the fields of each partition.
 */
import type { Clock } from '../../lib/platform/clock.ts';
import type { RedisArgument, RedisConnection } from './redis-connection.ts';
import { findPartition } from './redis-layout.ts';

/** Rows in flight at once: they delay lookups of a server by a few milliseconds. */
const WRITE_ROWS = 2_048;
const KEY_BYTES = 8;

export class RedisWriter {
  /** Rows and deleted keys of each partition. */
  readonly fields: Float64Array;
  readonly #connection: RedisConnection;
  readonly #keys: readonly string[];
  readonly #clock: Clock;
  readonly #bytesPerSecond: number | undefined;
  readonly #startMs: number;
  #bytes = 0;

  constructor(
    connection: RedisConnection,
    keys: readonly string[],
    clock: Clock,
    bytesPerSecond: number | undefined,
  ) {
    this.#connection = connection;
    this.#keys = keys;
    this.#clock = clock;
    this.#bytesPerSecond = bytesPerSecond;
    this.#startMs = clock.nowMs();
    this.fields = new Float64Array(keys.length);
  }

  /** Counts keys that an earlier load wrote. @param keys words */
  countExisting(keys: Uint32Array): void {
    for (let i = 0; i < keys.length; i += 2) {
      this.fields[findPartition(keys[i]!, keys[i + 1]!, this.#keys.length)]! += 1;
    }
  }

  /** @param keys words @param rowBytes length of a row, 0 for deleted keys */
  async write(keys: Uint32Array, rows: Uint8Array, rowBytes: number): Promise<void> {
    const keyBytes = Buffer.from(keys.buffer, keys.byteOffset, 4 * keys.length);
    const rowBuffer = Buffer.from(rows.buffer, rows.byteOffset, rows.length);
    const count = keys.length / 2;
    for (let start = 0; start < count; start += WRITE_ROWS) {
      const end = Math.min(start + WRITE_ROWS, count);
      const commands = new Map<number, RedisArgument[]>();
      for (let i = start; i < end; i++) {
        const partition = findPartition(keys[2 * i]!, keys[2 * i + 1]!, this.#keys.length);
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
          this.#connection.send(this.#keys[partition]!, false, command),
        ),
      );
      await this.#waitForRate((end - start) * (KEY_BYTES + rowBytes));
    }
  }

  async #waitForRate(bytes: number): Promise<void> {
    this.#bytes += bytes;
    if (this.#bytesPerSecond === undefined) return;
    const dueMs = this.#startMs + (this.#bytes / this.#bytesPerSecond) * 1_000;
    await this.#clock.sleep(Math.max(0, dueMs - this.#clock.nowMs()));
  }
}
