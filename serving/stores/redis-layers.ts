/**
 * Layers in Redis: which are there, loading one, removing those that nobody wants. A load goes on where an interrupted one
 * stopped; several at once write the same. The marker of a partition is set in one step with counting its fields, so that no
 * removal, eviction or failover beside a load leaves a marker over fewer rows than the layer has.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { LayerRef, Manifest, TableRef } from '../../lib/core/manifest.ts';
import { type RowDtype, rowBytesOf } from '../../lib/core/row-codec.ts';
import { type Clock, systemClock } from '../../lib/platform/clock.ts';
import { readDeletedKeys, readLayerRows } from '../../lib/store/layer-file.ts';
import {
  catalogKey,
  formatRecord,
  type LayerRecord,
  MARKER,
  parseRecord,
  partitionKey,
  partitionsOf,
} from './redis-layout.ts';
import type { RedisLink } from './redis-link.ts';
import { RedisWriter } from './redis-writer.ts';

/** Sets the marker when the partition has as many other fields as the layer says. */
const SEAL =
  "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return -1 end " +
  "local fields = redis.call('HLEN', KEYS[1]) " +
  "if fields == tonumber(ARGV[2]) then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) return -1 end " +
  'return fields';

export interface LayerName {
  readonly bundle: string;
  readonly table: TableRef;
  readonly layer: LayerRef;
}

export interface LoadWatcher {
  /** Rows written since the last call. */
  onRows(rows: number): void;
  /** Rows that an earlier load had written. */
  onSkipped(rows: number): void;
}

export class RedisLayers {
  readonly #link: RedisLink;
  readonly #clock: Clock;
  readonly #bytesPerSecond: number | undefined;

  /** @param bytesPerSecond of keys and rows, at most */
  constructor(link: RedisLink, bytesPerSecond?: number, clock: Clock = systemClock) {
    this.#link = link;
    this.#bytesPerSecond = bytesPerSecond;
    this.#clock = clock;
  }

  /** The layers of a version that are not there whole, each once. @throws CubeError UNAVAILABLE when not all of Redis answers */
  async missing({ bundle, tables }: Manifest): Promise<LayerName[]> {
    const all = new Map<string, LayerName>();
    for (const table of tables) {
      for (const layer of table.shards.flat()) all.set(layer.contentId, { bundle, table, layer });
    }
    const names = [...all.values()];
    const whole = await Promise.all(names.map((name) => this.#isWhole(name)));
    return names.filter((_, i) => !whole[i]);
  }

  async #isWhole({ bundle, table, layer }: LayerName): Promise<boolean> {
    const partitions = partitionsOf(table, layer);
    const checks = Array.from({ length: partitions }, async (_, p) => {
      const key = partitionKey(bundle, layer.contentId, p);
      const [marker, fields] = await Promise.all([
        this.#link.send<Buffer | null>(key, true, ['HGET', key, MARKER]),
        this.#link.send<number>(key, true, ['HLEN', key]),
      ]);
      return marker !== null && fields === Number(marker.toString()) + 1;
    });
    return (await Promise.all(checks)).every(Boolean);
  }

  /**
   * Writes what is not there yet.
   * @param path its file
   * @throws CubeError UNAVAILABLE when Redis fails: the next load goes on from there
   */
  async load(name: LayerName, path: string, watcher: LoadWatcher): Promise<void> {
    const { written } = (await this.#record(name)) ?? { written: 0 };
    if (await this.#write(name, path, written, watcher)) return;
    // What an earlier load had written is not all there any more, or was of another layout.
    await this.#unlink(name.bundle, name.layer.contentId, partitionsOf(name.table, name.layer));
    if (await this.#write(name, path, 0, watcher)) return;
    throw new CubeError(
      'CONFLICT',
      `layer ${name.layer.contentId}: redis ${this.#link.name} loses rows while they are loaded: is it out of memory ` +
        '(maxmemory with an eviction policy), or is somebody removing them? See docs/stores.md',
    );
  }

  /**
   * @param written rows at the beginning of the file that are there
   * @returns false when a partition has not as many fields as it should: no marker was set there
   */
  async #write(
    name: LayerName,
    path: string,
    written: number,
    watcher: LoadWatcher,
  ): Promise<boolean> {
    const { bundle, table, layer } = name;
    const partitions = partitionsOf(table, layer);
    const keys = Array.from({ length: partitions }, (_, p) =>
      partitionKey(bundle, layer.contentId, p),
    );
    const writer = new RedisWriter(this.#link, keys, this.#clock, this.#bytesPerSecond);
    const rowBytes = rowBytesOf(table.dtype as RowDtype, table.dim);
    let done = 0;
    for (const batch of readLayerRows(path)) {
      done += batch.count;
      if (done <= written) {
        writer.count(batch.keys);
        watcher.onSkipped(batch.count);
        continue;
      }
      await writer.write(batch.keys, batch.rows, rowBytes);
      await this.#putRecord(name, done, false);
      watcher.onRows(batch.count);
    }
    for (const deleted of readDeletedKeys(path)) await writer.write(deleted, NO_ROWS, 0);
    const short = await Promise.all(keys.map((key, p) => this.#seal(key, writer.fields[p]!)));
    if (short.includes(true)) return false;
    await this.#putRecord(name, done, true);
    return true;
  }

  /** @returns true when fields are missing */
  async #seal(key: string, fields: number): Promise<boolean> {
    const args = ['EVAL', SEAL, '1', key, MARKER, String(fields)];
    return (await this.#link.send<number>(key, false, args)) !== -1;
  }

  /** Removes the layers of the bundle that are not among the wanted. @returns the contentIds removed */
  async removeOthers(bundle: string, wanted: ReadonlySet<string>): Promise<string[]> {
    const removed: string[] = [];
    for (const [contentId, { partitions }] of await this.#catalog(bundle)) {
      if (wanted.has(contentId)) continue;
      await this.#unlink(bundle, contentId, partitions);
      const catalog = catalogKey(bundle);
      await this.#link.send(catalog, false, ['HDEL', catalog, contentId]);
      removed.push(contentId);
    }
    return removed;
  }

  async #unlink(bundle: string, contentId: string, partitions: number): Promise<void> {
    const keys = Array.from({ length: partitions }, (_, p) => partitionKey(bundle, contentId, p));
    await Promise.all(keys.map((key) => this.#link.send(key, false, ['UNLINK', key])));
  }

  async #catalog(bundle: string): Promise<Map<string, LayerRecord>> {
    const key = catalogKey(bundle);
    const fields = await this.#link.send<Buffer[]>(key, true, ['HGETALL', key]);
    const records = new Map<string, LayerRecord>();
    for (let i = 0; i < fields.length; i += 2) {
      const contentId = fields[i]!.toString();
      records.set(contentId, parseRecord(fields[i + 1]!.toString(), `${key} ${contentId}`));
    }
    return records;
  }

  /** What a load before this one said, if it cut the layer as this build does. */
  async #record({ bundle, table, layer }: LayerName): Promise<LayerRecord | undefined> {
    const key = catalogKey(bundle);
    const args = ['HGET', key, layer.contentId];
    const text = await this.#link.send<Buffer | null>(key, true, args);
    if (text === null) return undefined;
    const record = parseRecord(text.toString(), `${key} ${layer.contentId}`);
    return record.partitions === partitionsOf(table, layer) ? record : undefined;
  }

  async #putRecord(
    { bundle, table, layer }: LayerName,
    written: number,
    complete: boolean,
  ): Promise<void> {
    const key = catalogKey(bundle);
    const partitions = partitionsOf(table, layer);
    const record = { table: table.name, dtype: table.dtype, partitions, written, complete };
    const args = ['HSET', key, layer.contentId, formatRecord(record)];
    await this.#link.send(key, false, args);
  }
}

const NO_ROWS = new Uint8Array(0);
