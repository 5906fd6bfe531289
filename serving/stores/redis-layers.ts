/**
 * Finds, loads and removes layers in Redis. A load continues where an interrupted one stopped;
 * several loads at once write the same. The marker of a partition is set in the same atomic step
 * that counts its fields. So no removal, eviction or failover during a load leaves a marker over
 * fewer rows than the layer has.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { LayerRef, Manifest, TableRef } from '../../lib/core/manifest.ts';
import { computeRowBytes, type RowDtype } from '../../lib/core/row-codec.ts';
import { type Clock, systemClock } from '../../lib/platform/clock.ts';
import { readDeletedKeys, readLayerRows } from '../../lib/store/layer-file.ts';
import type { RedisConnection } from './redis-connection.ts';
import {
  countPartitions,
  formatLayerRecord,
  type LayerRecord,
  MARKER,
  makeCatalogKey,
  makePartitionKey,
  parseLayerRecord,
} from './redis-layout.ts';
import { RedisWriter } from './redis-writer.ts';

/**
 * Sets the marker when the partition has ARGV[2] other fields. @returns -1, or how many fields it
 * has
 */
const SEAL_SCRIPT =
  "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return -1 end " +
  "local fields = redis.call('HLEN', KEYS[1]) " +
  'if fields == tonumber(ARGV[2]) then ' +
  "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) return -1 end " +
  'return fields';

export interface RedisLayer {
  readonly bundle: string;
  readonly table: TableRef;
  readonly layer: LayerRef;
}

export interface LoadObserver {
  /** Called with the rows written since the last call. */
  onRows(rows: number): void;
  /** Called with the rows that an earlier load wrote. */
  onSkipped(rows: number): void;
}

export class RedisLayers {
  readonly #connection: RedisConnection;
  readonly #clock: Clock;
  readonly #bytesPerSecond: number | undefined;

  /** @param bytesPerSecond the most bytes of keys and rows that a load writes; default: no limit */
  constructor(connection: RedisConnection, bytesPerSecond?: number, clock: Clock = systemClock) {
    this.#connection = connection;
    this.#bytesPerSecond = bytesPerSecond;
    this.#clock = clock;
  }

  /**
   * The layers of a version that are missing or incomplete, each once.
   * @throws CubeError UNAVAILABLE when not all of Redis answers
   */
  async findMissing({ bundle, tables }: Manifest): Promise<RedisLayer[]> {
    const all = new Map<string, RedisLayer>();
    for (const table of tables) {
      for (const layer of table.shards.flat()) all.set(layer.contentId, { bundle, table, layer });
    }
    const layers = [...all.values()];
    const complete = await Promise.all(layers.map((layer) => this.#isComplete(layer)));
    return layers.filter((_, i) => !complete[i]);
  }

  async #isComplete({ bundle, table, layer }: RedisLayer): Promise<boolean> {
    const partitions = countPartitions(table, layer);
    const checks = Array.from({ length: partitions }, async (_, p) => {
      const key = makePartitionKey(bundle, layer.contentId, p);
      const [marker, fields] = await Promise.all([
        this.#connection.send<Buffer | null>(key, true, ['HGET', key, MARKER]),
        this.#connection.send<number>(key, true, ['HLEN', key]),
      ]);
      return marker !== null && fields === Number(marker.toString()) + 1;
    });
    return (await Promise.all(checks)).every(Boolean);
  }

  /**
   * Writes the rows that are missing.
   * @param path the layer's file
   * @throws CubeError UNAVAILABLE when Redis fails: the next load continues from there
   */
  async load(entry: RedisLayer, path: string, observer: LoadObserver): Promise<void> {
    const { bundle, table, layer } = entry;
    const { written } = (await this.#readRecord(entry)) ?? { written: 0 };
    if (await this.#write(entry, path, written, observer)) return;
    // Rows of an earlier load were lost since, or had another layout.
    await this.#unlink(bundle, layer.contentId, countPartitions(table, layer));
    if (await this.#write(entry, path, 0, observer)) return;
    throw new CubeError(
      'CONFLICT',
      `layer ${layer.contentId}: redis ${this.#connection.name} ` +
        `loses rows during the load: check ` +
        'whether it is out of memory (maxmemory with an eviction policy), or whether another ' +
        'process removes layers. See docs/stores.md',
    );
  }

  /**
   * @param written rows at the beginning of the file that an earlier load wrote
   * @returns false when a partition has fewer fields than it should: it gets no marker
   */
  async #write(
    entry: RedisLayer,
    path: string,
    written: number,
    observer: LoadObserver,
  ): Promise<boolean> {
    const { bundle, table, layer } = entry;
    const partitions = countPartitions(table, layer);
    const keys = Array.from({ length: partitions }, (_, p) =>
      makePartitionKey(bundle, layer.contentId, p),
    );
    const writer = new RedisWriter(this.#connection, keys, this.#clock, this.#bytesPerSecond);
    const rowBytes = computeRowBytes(table.dtype as RowDtype, table.dim);
    let done = 0;
    for (const batch of readLayerRows(path)) {
      done += batch.count;
      if (done <= written) {
        writer.countExisting(batch.keys);
        observer.onSkipped(batch.count);
        continue;
      }
      await writer.write(batch.keys, batch.rows, rowBytes);
      await this.#writeRecord(entry, done, false);
      observer.onRows(batch.count);
    }
    for (const deleted of readDeletedKeys(path)) await writer.write(deleted, NO_ROWS, 0);
    const short = await Promise.all(keys.map((key, p) => this.#seal(key, writer.fields[p]!)));
    if (short.includes(true)) return false;
    await this.#writeRecord(entry, done, true);
    return true;
  }

  /**
   * Sets the marker of a partition. @returns true when fields are missing, so that it was not set
   */
  async #seal(key: string, fields: number): Promise<boolean> {
    const args = ['EVAL', SEAL_SCRIPT, '1', key, MARKER, String(fields)];
    return (await this.#connection.send<number>(key, false, args)) !== -1;
  }

  /** The layers of the bundle that are not in use. @param inUse contentIds @returns contentIds */
  async findUnused(bundle: string, inUse: ReadonlySet<string>): Promise<string[]> {
    return [...(await this.#readCatalog(bundle)).keys()].filter((id) => !inUse.has(id));
  }

  /** Removes layers of the bundle, their records last. */
  async remove(bundle: string, contentIds: readonly string[]): Promise<void> {
    const records = await this.#readCatalog(bundle);
    const catalog = makeCatalogKey(bundle);
    for (const contentId of contentIds) {
      await this.#unlink(bundle, contentId, records.get(contentId)?.partitions ?? 0);
      await this.#connection.send(catalog, false, ['HDEL', catalog, contentId]);
    }
  }

  async #unlink(bundle: string, contentId: string, partitions: number): Promise<void> {
    const keys = Array.from({ length: partitions }, (_, p) =>
      makePartitionKey(bundle, contentId, p),
    );
    await Promise.all(keys.map((key) => this.#connection.send(key, false, ['UNLINK', key])));
  }

  async #readCatalog(bundle: string): Promise<Map<string, LayerRecord>> {
    const key = makeCatalogKey(bundle);
    const fields = await this.#connection.send<Buffer[]>(key, true, ['HGETALL', key]);
    const records = new Map<string, LayerRecord>();
    for (let i = 0; i + 1 < fields.length; i += 2) {
      const contentId = String(fields[i]);
      records.set(contentId, parseLayerRecord(String(fields[i + 1]), `${key} ${contentId}`));
    }
    return records;
  }

  /** The record of an earlier load, if it divided the layer into partitions as this build does. */
  async #readRecord({ bundle, table, layer }: RedisLayer): Promise<LayerRecord | undefined> {
    const key = makeCatalogKey(bundle);
    const args = ['HGET', key, layer.contentId];
    const text = await this.#connection.send<Buffer | null>(key, true, args);
    if (text === null) return undefined;
    const record = parseLayerRecord(text.toString(), `${key} ${layer.contentId}`);
    return record.partitions === countPartitions(table, layer) ? record : undefined;
  }

  async #writeRecord(
    { bundle, table, layer }: RedisLayer,
    written: number,
    complete: boolean,
  ): Promise<void> {
    const key = makeCatalogKey(bundle);
    const partitions = countPartitions(table, layer);
    const record = { table: table.name, dtype: table.dtype, partitions, written, complete };
    const args = ['HSET', key, layer.contentId, formatLayerRecord(record)];
    await this.#connection.send(key, false, args);
  }
}

const NO_ROWS = new Uint8Array(0);
