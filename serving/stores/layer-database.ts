/**
 * Layers in an embedded database (classic-level): which are there, filling, reading, removing. It knows nothing of
 * versions.
 *
 * Invariants: a layer counts as there only by its record with `complete`, written after all of its rows are durable; a
 * fill that was interrupted leaves a record without it and is done again under the same number. Numbers are never shared by
 * two contents, because a record goes only after its rows are gone.
 */
import { ClassicLevel } from 'classic-level';
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { CONTENT_ID_PATTERN } from '../../lib/core/names.ts';
import { addToFilter, newFilter } from '../../lib/store/key-filter.ts';
import type { RowBatch } from '../../lib/store/layer-file.ts';
import {
  CHECKSUM_BYTES,
  LOCAL_KEY_BYTES,
  readBigEndian,
  readLocalRow,
  writeLocalKey,
  writeLocalRow,
} from './local-row.ts';

const FORMAT = '1';
/** Layer number 0 is the catalog: no layer has it. */
const CATALOG = '\0\0\0\0';
const FORMAT_KEY = `${CATALOG}format`;
const RECORD_PREFIX = `${CATALOG}layer/`;
const RECORD_END = `${CATALOG}layer0`;
const LAYER_NUMBER_MAX = 0xffff_ffff;

/** Rows written at once: about two milliseconds of this thread, so that a fill beside live traffic does not stall it. */
const WRITE_ROWS = 2_048;
/** Blocks kept uncompressed in memory, beside what the system's page cache holds. */
const CACHE_BYTES = 128 << 20;
const WRITE_BUFFER_BYTES = 16 << 20;
const NO_ROWS = new Uint8Array(0);

export interface StoredLayer {
  readonly contentId: string;
  readonly number: number;
  readonly rows: number;
  /** Deleted keys of a delta. */
  readonly deleted: number;
  readonly complete: boolean;
}

/** A layer as its reader knows it. */
export interface LayerShape {
  readonly contentId: string;
  readonly rows: number;
  /** Of a row as stored. */
  readonly rowBytes: number;
  readonly kind: 'base' | 'delta';
}

export interface LayerContent {
  readonly rows: Iterable<RowBatch>;
  /** Deleted keys as words. */
  readonly deleted: Iterable<Uint32Array>;
}

type Database = ClassicLevel<Uint8Array, Uint8Array>;

export class LayerDatabase {
  readonly folder: string;
  readonly #database: Database;
  readonly #layers = new Map<string, StoredLayer>();
  /** Layers that this process wrote, or has read through; of a delta the filter of its keys. */
  readonly #verified = new Map<string, Uint32Array | undefined>();

  private constructor(folder: string, database: Database) {
    this.folder = folder;
    this.#database = database;
  }

  /**
   * Opens the folder's database, or makes a new one.
   * @throws CubeError CONFLICT when it is open already, CORRUPT when it is damaged, UNSUPPORTED for another format
   */
  static async open(folder: string): Promise<LayerDatabase> {
    const database: Database = new ClassicLevel(folder, {
      keyEncoding: 'view',
      valueEncoding: 'view',
      // Embedding rows do not compress; trying costs more than it saves.
      compression: false,
      cacheSize: CACHE_BYTES,
      writeBufferSize: WRITE_BUFFER_BYTES,
    });
    try {
      await database.open();
      const layers = new LayerDatabase(folder, database);
      await layers.#readCatalog();
      return layers;
    } catch (error) {
      await database.close();
      throw databaseError(error, folder);
    }
  }

  /** Every layer that has a record, complete or not. */
  layers(): StoredLayer[] {
    return [...this.#layers.values()];
  }

  /** The layer, when all of its rows are there. */
  complete(contentId: string): StoredLayer | undefined {
    const layer = this.#layers.get(contentId);
    return layer?.complete ? layer : undefined;
  }

  /** Which keys a delta may say something about; undefined for a base. Known once it was filled or verified. */
  filter(contentId: string): Uint32Array | undefined {
    return this.#verified.get(contentId);
  }

  /**
   * Writes a layer's rows and deleted keys, then the mark that they are all there.
   * @param afterRows called with the rows written since its last call; what it throws stops the fill
   */
  async fill(
    layer: LayerShape,
    content: LayerContent,
    afterRows: (rows: number) => void,
  ): Promise<void> {
    const { contentId, kind } = layer;
    const number = this.#layers.get(contentId)?.number ?? this.#nextNumber();
    const record = { contentId, number, rows: layer.rows, deleted: 0, complete: false };
    await this.#record(record);
    let rows = 0;
    let deleted = 0;
    for await (const count of this.#writeRows(layer, number, content.rows)) {
      rows += count;
      afterRows(count);
    }
    for (const keys of content.deleted) {
      await this.#write({ count: keys.length / 2, keys, rows: NO_ROWS }, 0, number);
      deleted += keys.length / 2;
    }
    if (rows !== layer.rows) {
      const text = `layer ${contentId}: ${rows} rows, expected ${layer.rows}`;
      throw new CubeError('CORRUPT', text);
    }
    // Moves every row to flushed, sorted files: only then may the mark say that they are there, and reads are fastest.
    await this.#guard(this.#database.compactRange(layerStart(number), layerEnd(number)));
    await this.#record({ ...record, deleted, complete: true });
    if (kind === 'base') this.#verified.set(contentId, undefined);
    else await this.verify(layer, () => undefined);
  }

  async *#writeRows(
    { contentId, rowBytes }: LayerShape,
    number: number,
    batches: Iterable<RowBatch>,
  ): AsyncGenerator<number> {
    for (const { count, keys, rows } of batches) {
      if (rows.length !== count * rowBytes) {
        throw new CubeError('CORRUPT', `layer ${contentId}: its rows are not of ${rowBytes} bytes`);
      }
      for (let start = 0; start < count; start += WRITE_ROWS) {
        const end = Math.min(start + WRITE_ROWS, count);
        const piece = { count: end - start, keys: keys.subarray(2 * start, 2 * end) };
        const pieceRows = rows.subarray(start * rowBytes, end * rowBytes);
        await this.#write({ ...piece, rows: pieceRows }, rowBytes / 4, number);
        yield piece.count;
      }
    }
  }

  async #write(batch: RowBatch, rowWords: number, number: number): Promise<void> {
    await this.#guard(this.#database.batch(rowWrites(batch, rowWords, number)));
  }

  /**
   * Reads a layer of an earlier start through, once: every key by scan and again by search, every row's checksum, and
   * that none is gone. The database does not check its own blocks: without this, a damaged key or index would look like
   * a key that was never there. About two microseconds a row.
   * @throws CubeError CORRUPT
   */
  async verify(layer: LayerShape, afterRows: (rows: number) => void): Promise<void> {
    const { contentId, kind, rowBytes } = layer;
    const stored = this.#layers.get(contentId);
    if (stored === undefined || this.#verified.has(contentId)) return;
    const { number } = stored;
    const entries = layer.rows + stored.deleted;
    const filter = kind === 'delta' ? newFilter(entries) : undefined;
    const iterator = this.#database.keys({ gte: layerStart(number), lt: layerEnd(number) });
    const words = new Uint32Array(rowBytes / 4);
    let found = 0;
    try {
      for (;;) {
        const keys = await this.#guard(iterator.nextv(WRITE_ROWS));
        if (keys.length === 0) break;
        const values = await this.getMany(keys);
        if (!keys.every((key, i) => isWhole(key, values[i], words, number))) {
          throw damaged(this.folder, `a row of layer ${contentId}`);
        }
        for (const key of filter === undefined ? [] : keys) {
          addToFilter(filter!, readBigEndian(key, 8), readBigEndian(key, 4));
        }
        found += keys.length;
        afterRows(keys.length);
      }
    } finally {
      await iterator.close();
    }
    if (found !== entries) {
      throw damaged(this.folder, `layer ${contentId} has ${found} keys of ${entries}`);
    }
    this.#verified.set(contentId, filter);
  }

  /** Removes a layer: first the mark, then its rows and their disk space, then its record. */
  async remove(contentId: string): Promise<void> {
    const layer = this.#layers.get(contentId);
    if (layer === undefined) return;
    const { number } = layer;
    await this.#record({ ...layer, complete: false });
    const [start, end] = [layerStart(number), layerEnd(number)];
    await this.#guard(this.#database.clear({ gte: start, lt: end }));
    // Gives the disk back now, and spares lookups the marks of what was deleted.
    await this.#guard(this.#database.compactRange(start, end));
    await this.#guard(
      this.#database.del(RECORD_PREFIX + contentId, { keyEncoding: 'utf8', sync: true }),
    );
    this.#layers.delete(contentId);
    this.#verified.delete(contentId);
  }

  /** Values of database keys (see local-row.ts), all from one moment. The keys may be overwritten after the call. */
  getMany(keys: Uint8Array[]): Promise<(Uint8Array | undefined)[]> {
    return this.#guard(this.#database.getMany(keys));
  }

  async close(): Promise<void> {
    await this.#database.close();
  }

  async #readCatalog(): Promise<void> {
    const text = { keyEncoding: 'utf8', valueEncoding: 'utf8' } as const;
    const format = await this.#database.get<string, string>(FORMAT_KEY, text);
    if (format === undefined) {
      await this.#database.put<string, string>(FORMAT_KEY, FORMAT, { ...text, sync: true });
    } else if (format !== FORMAT) {
      throw new CubeError(
        'UNSUPPORTED',
        `${this.folder}: a local store of format ${JSON.stringify(format)}, this build reads ${FORMAT}; ` +
          'use another folder, or remove this one: it is filled again from the repository',
      );
    }
    const range = { gte: RECORD_PREFIX, lt: RECORD_END, ...text };
    for await (const [key, value] of this.#database.iterator<string, string>(range)) {
      const layer = this.#parseRecord(key.slice(RECORD_PREFIX.length), value);
      this.#layers.set(layer.contentId, layer);
    }
  }

  #parseRecord(contentId: string, value: string): StoredLayer {
    try {
      if (!CONTENT_ID_PATTERN.test(contentId)) throw new Error('not a contentId');
      const json = JsonReader.parse(value, `record of layer ${contentId}`);
      return {
        contentId,
        number: json.field('number').integer(1, LAYER_NUMBER_MAX),
        rows: json.field('rows').integer(0),
        deleted: json.optional('deleted', (field) => field.integer(0)) ?? 0,
        complete: json.field('complete').boolean(),
      };
    } catch (error) {
      throw damaged(this.folder, (error as Error).message, error);
    }
  }

  async #record(layer: StoredLayer): Promise<void> {
    const { contentId, number, rows, deleted, complete } = layer;
    const value = JSON.stringify({ number, rows, deleted, complete });
    const options = { keyEncoding: 'utf8', valueEncoding: 'utf8', sync: true } as const;
    await this.#guard(
      this.#database.put<string, string>(RECORD_PREFIX + contentId, value, options),
    );
    this.#layers.set(contentId, layer);
  }

  #nextNumber(): number {
    let number = 0;
    for (const layer of this.#layers.values()) number = Math.max(number, layer.number);
    if (number < LAYER_NUMBER_MAX) return number + 1;
    throw new CubeError(
      'TOO_LARGE',
      `${this.folder}: no layer numbers are left; remove the folder`,
    );
  }

  async #guard<T>(action: Promise<T>): Promise<T> {
    try {
      return await action;
    } catch (error) {
      throw databaseError(error, this.folder);
    }
  }
}

/** @param words scratch of a row */
function isWhole(
  key: Uint8Array,
  value: Uint8Array | undefined,
  words: Uint32Array,
  layer: number,
): boolean {
  if (value === undefined || key.length !== LOCAL_KEY_BYTES) return false;
  const [low, high] = [readBigEndian(key, 8), readBigEndian(key, 4)];
  const rowWords = value.length === CHECKSUM_BYTES ? 0 : words.length;
  return readLocalRow(value, words, 0, rowWords, layer, low, high);
}

/** A layer's range of database keys: from its number to the next one. */
function layerStart(number: number): Uint8Array {
  const key = new Uint8Array(4);
  new DataView(key.buffer).setUint32(0, number);
  return key;
}

function layerEnd(number: number): Uint8Array {
  return number === LAYER_NUMBER_MAX
    ? new Uint8Array(LOCAL_KEY_BYTES + 1).fill(0xff)
    : layerStart(number + 1);
}

function rowWrites(
  { count, keys, rows }: RowBatch,
  rowWords: number,
  layer: number,
): { type: 'put'; key: Uint8Array; value: Uint8Array }[] {
  const valueBytes = 4 * rowWords + CHECKSUM_BYTES;
  const keyBytes = new Uint8Array(count * LOCAL_KEY_BYTES);
  const values = new Uint8Array(count * valueBytes);
  const writes = new Array<{ type: 'put'; key: Uint8Array; value: Uint8Array }>(count);
  for (let i = 0; i < count; i++) {
    const low = keys[2 * i]!;
    const high = keys[2 * i + 1]!;
    const keyAt = i * LOCAL_KEY_BYTES;
    const valueAt = i * valueBytes;
    writeLocalKey(keyBytes, keyAt, layer, low, high);
    writeLocalRow(values, valueAt, rows, i * 4 * rowWords, rowWords, layer, low, high);
    writes[i] = {
      type: 'put',
      key: keyBytes.subarray(keyAt, keyAt + LOCAL_KEY_BYTES),
      value: values.subarray(valueAt, valueAt + valueBytes),
    };
  }
  return writes;
}

/** The error of a database whose content cannot be trusted. */
export function damaged(folder: string, what: string, cause?: unknown): CubeError {
  return new CubeError(
    'CORRUPT',
    `${folder}: the local store is damaged (${what}); stop the process and remove the folder: ` +
      'it is filled again from the repository at the next start',
    { cause },
  );
}

function databaseError(error: unknown, folder: string): CubeError {
  if (error instanceof CubeError) return error;
  const cause = (error as Error).cause ?? error;
  const { code, message } = cause as Error & { code?: string };
  if (code === 'LEVEL_LOCKED') {
    return new CubeError(
      'CONFLICT',
      `${folder}: another process (or another store of this one) has the local store open; ` +
        'stop it, or give this one a folder of its own',
      { cause: error },
    );
  }
  if (code === 'LEVEL_CORRUPTION') return damaged(folder, message, error);
  if (code === 'LEVEL_DATABASE_NOT_OPEN') {
    return new CubeError('STOPPING', `${folder}: the local store is closed`, { cause: error });
  }
  return new CubeError('IO', `${folder}: the local store failed: ${message}`, { cause: error });
}
