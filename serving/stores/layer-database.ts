/**
 * Layers in an embedded database (classic-level): lists, fills, reads and removes them. It knows
 * nothing of versions.
 *
 * Invariants
 * - A layer is complete only when its record says so, which is written after all of its rows are
 *   durable.
 * - An interrupted fill leaves an incomplete record, and is repeated under the same number.
 * - Two contents never have the same number: a record is removed only after its rows.
 */
import { ClassicLevel } from 'classic-level';
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { CONTENT_ID_PATTERN } from '../../lib/core/names.ts';
import { addToFilter, createFilter } from '../../lib/store/key-filter.ts';
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
/** Layer number 0 is the catalog; no layer has it. */
const CATALOG = '\0\0\0\0';
const FORMAT_KEY = `${CATALOG}format`;
const RECORD_PREFIX = `${CATALOG}layer/`;
const RECORD_END = `${CATALOG}layer0`;
const LAYER_NUMBER_MAX = 0xffff_ffff;

/**
 * Rows written at once: about two milliseconds of this thread, so that a fill does not stall live
 * traffic.
 */
const WRITE_ROWS = 2_048;
/**
 * Rows that are sorted before they are written, also in about two milliseconds. Layers are in hash
 * order; sorted runs take the database a quarter less time.
 */
const SORT_ROWS = 16_384;
/** Uncompressed blocks in memory, in addition to the system's page cache. */
const CACHE_BYTES = 128 << 20;
const WRITE_BUFFER_BYTES = 32 << 20;
const NO_ROWS = new Uint8Array(0);

export interface StoredLayer {
  readonly contentId: string;
  readonly number: number;
  readonly rows: number;
  /** Number of keys that a delta deletes. */
  readonly deleted: number;
  readonly complete: boolean;
}

/** A layer according to its manifest. */
export interface LayerDescription {
  readonly contentId: string;
  readonly rows: number;
  /** Length of a stored row. */
  readonly rowBytes: number;
  readonly kind: 'base' | 'delta';
}

export interface LayerContent {
  readonly rows: Iterable<RowBatch>;
  /** Deleted keys as words. */
  readonly deleted: Iterable<Uint32Array>;
}

type Database = ClassicLevel<Uint8Array, Uint8Array>;

/** The content of a database cannot be trusted. The next start fills it again. */
export class DamagedDatabaseError extends CubeError {
  constructor(folder: string, what: string, cause?: unknown) {
    super(
      'CORRUPT',
      `${folder}: the local store is damaged (${what}); restart the process, which fills it ` +
        'again from the repository',
      { cause },
    );
  }
}

export class LayerDatabase {
  readonly folder: string;
  readonly #database: Database;
  readonly #layers = new Map<string, StoredLayer>();
  /** Layers that this process wrote or read through; for a delta, the filter of its keys. */
  readonly #verified = new Map<string, Uint32Array | undefined>();

  private constructor(folder: string, database: Database) {
    this.folder = folder;
    this.#database = database;
  }

  /**
   * Opens the folder's database, or creates one.
   * @throws CubeError CONFLICT when it is open elsewhere, CORRUPT when it is damaged, UNSUPPORTED
   *   for another format
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
      throw toDatabaseError(error, folder);
    }
  }

  /** Every layer that has a record, complete or not. */
  listLayers(): StoredLayer[] {
    return [...this.#layers.values()];
  }

  /** The layer, if it is complete. */
  findComplete(contentId: string): StoredLayer | undefined {
    const layer = this.#layers.get(contentId);
    return layer?.complete ? layer : undefined;
  }

  /** The number of a complete layer. @throws CubeError INTERNAL for another one */
  getNumber(contentId: string): number {
    const layer = this.findComplete(contentId);
    if (layer === undefined) throw makeInternalError(this.folder, contentId, 'is not complete');
    return layer.number;
  }

  /**
   * The filter of a delta's keys. @throws CubeError INTERNAL before the delta was filled or
   * verified
   */
  getFilter(contentId: string): Uint32Array {
    const filter = this.#verified.get(contentId);
    if (filter === undefined) throw makeInternalError(this.folder, contentId, 'has no filter');
    return filter;
  }

  /**
   * Writes a layer's rows and deleted keys, then the mark that the layer is complete.
   * @param afterRows called with the rows written since its last call; an error that it throws
   *   stops the fill
   */
  async fill(
    layer: LayerDescription,
    content: LayerContent,
    afterRows: (rows: number) => void,
  ): Promise<void> {
    const { contentId, kind } = layer;
    const number = this.#layers.get(contentId)?.number ?? this.#nextNumber();
    const record = { contentId, number, rows: layer.rows, deleted: 0, complete: false };
    // Reserves the number, since several layers may be filled at a time.
    this.#layers.set(contentId, record);
    await this.#record(record);
    let rows = 0;
    let deleted = 0;
    for await (const count of this.#writeRows(layer, number, content.rows)) {
      rows += count;
      afterRows(count);
    }
    for (const keys of content.deleted) {
      const order = Uint32Array.from({ length: keys.length / 2 }, (_, i) => i);
      await this.#write({ batch: { keys, rows: NO_ROWS }, order }, 0, number);
      deleted += order.length;
    }
    if (rows !== layer.rows) {
      throw new CubeError(
        'CORRUPT',
        `layer ${contentId}: its file has ${rows} rows, expected ${layer.rows}; fetch it again`,
      );
    }
    // Moves every row to flushed, sorted files: only then may the layer be marked, and reads are
    // fastest.
    await this.#guard(this.#database.compactRange(layerStart(number), layerEnd(number)));
    await this.#record({ ...record, deleted, complete: true });
    if (kind === 'base') this.#verified.set(contentId, undefined);
    else await this.verify(layer, () => undefined);
  }

  /** Copies the rows before it returns; the promise ends when they are written. */
  #write({ batch, order }: RowPiece, rowWords: number, number: number): Promise<void> {
    const { keys, rows } = batch;
    const key = new Uint8Array(LOCAL_KEY_BYTES);
    const value = new Uint8Array(4 * rowWords + CHECKSUM_BYTES);
    // A chained batch takes half the time of an array of operations, and copies what it is given.
    const writes = this.#database.batch();
    for (let i = 0; i < order.length; i++) {
      const row = order[i]!;
      const low = keys[2 * row]!;
      const high = keys[2 * row + 1]!;
      writeLocalKey(key, 0, number, low, high);
      writeLocalRow(value, 0, rows, row * 4 * rowWords, rowWords, number, low, high);
      writes.put(key, value);
    }
    return this.#guard(writes.write());
  }

  /** Prepares a piece while the database writes the one before. @yields rows that are written */
  async *#writeRows(
    layer: LayerDescription,
    number: number,
    batches: Iterable<RowBatch>,
  ): AsyncGenerator<number> {
    let writing = Promise.resolve();
    let count = 0;
    try {
      for (const piece of splitRows(layer, batches)) {
        const next = this.#write(piece, layer.rowBytes / 4, number);
        // Awaited in the next round; until then a failure is not unhandled.
        next.catch(() => undefined);
        const before = writing;
        writing = next;
        await before;
        if (count > 0) yield count;
        count = piece.order.length;
      }
      await writing;
      if (count > 0) yield count;
    } finally {
      await writing.catch(() => undefined);
    }
  }

  /**
   * Reads a layer of an earlier start through, once: finds every key by scan and again by search,
   * checks every row's checksum and the number of keys. The database does not check its own blocks,
   * so without this a damaged key or index would look like a key that is not in the layer. Takes
   * about two microseconds per row.
   * @throws CubeError CORRUPT
   */
  async verify(layer: LayerDescription, afterRows: (rows: number) => void): Promise<void> {
    const { contentId, kind, rowBytes } = layer;
    const stored = this.#layers.get(contentId);
    if (stored === undefined || this.#verified.has(contentId)) return;
    const { number } = stored;
    const entries = layer.rows + stored.deleted;
    const filter = kind === 'delta' ? createFilter(entries) : undefined;
    const iterator = this.#database.keys({ gte: layerStart(number), lt: layerEnd(number) });
    const words = new Uint32Array(rowBytes / 4);
    let found = 0;
    try {
      for (;;) {
        const keys = await this.#guard(iterator.nextv(WRITE_ROWS));
        if (keys.length === 0) break;
        const values = await this.getMany(keys);
        if (!keys.every((key, i) => isIntact(key, values[i], words, number))) {
          throw new DamagedDatabaseError(this.folder, `a row of layer ${contentId}`);
        }
        if (filter !== undefined) {
          for (const key of keys) addToFilter(filter, readBigEndian(key, 8), readBigEndian(key, 4));
        }
        found += keys.length;
        afterRows(keys.length);
      }
    } finally {
      await iterator.close();
    }
    if (found !== entries) {
      throw new DamagedDatabaseError(
        this.folder,
        `layer ${contentId} has ${found} of ${entries} keys`,
      );
    }
    this.#verified.set(contentId, filter);
  }

  /** Removes a layer: first its mark, then its rows and their disk space, then its record. */
  async remove(contentId: string): Promise<void> {
    const layer = this.#layers.get(contentId);
    if (layer === undefined) return;
    const { number } = layer;
    await this.#record({ ...layer, complete: false });
    const [start, end] = [layerStart(number), layerEnd(number)];
    await this.#guard(this.#database.clear({ gte: start, lt: end }));
    // Frees the disk space now, and spares lookups the tombstones of the deleted rows.
    await this.#guard(this.#database.compactRange(start, end));
    await this.#guard(
      this.#database.del(RECORD_PREFIX + contentId, { keyEncoding: 'utf8', sync: true }),
    );
    this.#layers.delete(contentId);
    this.#verified.delete(contentId);
  }

  /**
   * The values of database keys (local-row.ts), all of one moment. The keys may be overwritten
   * after the call.
   */
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
        `${this.folder}: a local store of format ${JSON.stringify(format)}, ` +
          `this build reads ${FORMAT}; ` +
          'use another folder, or remove this one, and it is filled again from the repository',
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
      throw new DamagedDatabaseError(this.folder, (error as Error).message, error);
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
      `${this.folder}: every layer number was used; remove the folder, and it is filled again`,
    );
  }

  async #guard<T>(action: Promise<T>): Promise<T> {
    try {
      return await action;
    } catch (error) {
      throw toDatabaseError(error, this.folder);
    }
  }
}

/** Checks the value of a key. @param words scratch memory for a row */
function isIntact(
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

/** The first database key of a layer. */
function layerStart(number: number): Uint8Array {
  const key = new Uint8Array(4);
  new DataView(key.buffer).setUint32(0, number);
  return key;
}

/** The first database key behind a layer. */
function layerEnd(number: number): Uint8Array {
  return number === LAYER_NUMBER_MAX
    ? new Uint8Array(LOCAL_KEY_BYTES + 1).fill(0xff)
    : layerStart(number + 1);
}

interface RowPiece {
  readonly batch: Pick<RowBatch, 'keys' | 'rows'>;
  /** Positions in the batch of the rows to write, in the order of the writes. */
  readonly order: Uint32Array;
}

/** The rows of a layer in pieces of WRITE_ROWS. */
function* splitRows(
  { contentId, rowBytes }: LayerDescription,
  batches: Iterable<RowBatch>,
): Generator<RowPiece> {
  for (const batch of batches) {
    const { count, keys, rows } = batch;
    if (rows.length !== count * rowBytes) {
      throw new CubeError(
        'CORRUPT',
        `layer ${contentId}: the rows of its file do not have ${rowBytes} bytes each; ` +
          `fetch it again`,
      );
    }
    for (let start = 0; start < count; start += SORT_ROWS) {
      const order = sortByKey(keys, start, Math.min(start + SORT_ROWS, count));
      for (let from = 0; from < order.length; from += WRITE_ROWS) {
        yield { batch, order: order.subarray(from, from + WRITE_ROWS) };
      }
    }
  }
}

/** The positions [start, end), ordered by the high words of their keys. */
function sortByKey(keys: Uint32Array, start: number, end: number): Uint32Array {
  const packed = new Float64Array(end - start);
  for (let i = start; i < end; i++) packed[i - start] = keys[2 * i + 1]! * SORT_ROWS + (i - start);
  packed.sort();
  return Uint32Array.from(packed, (value) => start + (value % SORT_ROWS));
}

function makeInternalError(folder: string, contentId: string, problem: string): CubeError {
  return new CubeError('INTERNAL', `${folder}: layer ${contentId} ${problem}`);
}

function toDatabaseError(error: unknown, folder: string): CubeError {
  if (error instanceof CubeError) return error;
  const cause = (error as Error).cause ?? error;
  const { code, message } = cause as Error & { code?: string };
  if (code === 'LEVEL_LOCKED') {
    return new CubeError(
      'CONFLICT',
      `${folder}: another process (or another store of this one) has the local store open; ` +
        'stop it, or give this process another folder',
      { cause: error },
    );
  }
  if (code === 'LEVEL_CORRUPTION') return new DamagedDatabaseError(folder, message, error);
  if (code === 'LEVEL_DATABASE_NOT_OPEN') {
    return new CubeError('STOPPING', `${folder}: the local store is closed`, { cause: error });
  }
  return new CubeError('IO', `${folder}: the local store failed: ${message}`, { cause: error });
}
