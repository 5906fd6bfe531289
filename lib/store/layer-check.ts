/**
 * The check of a layer file, up to what a load takes on trust because its bytes are what their author wrote: a search
 * finds every key and no key twice, every key is in the right shard, every row is one that its dtype can hold and is named
 * by one key, no key is both there and deleted, and the content is what the file's name says.
 */
import { createHash } from 'node:crypto';
import { CubeError, type ErrorCode } from '../core/errors.ts';
import { keyToBigint, shardOf } from '../core/keys.ts';
import {
  BLOCK_BYTES,
  DELETED_STRIDE,
  deletedSegment,
  HEADER_BYTES,
  keySegments,
  type LayerHeader,
} from '../core/layer-format.ts';
import { encodeUnsignedHeader } from '../core/layer-header.ts';
import { EmptyKeyFinder } from '../core/layer-placement.ts';
import { checkStoredRows } from '../core/row-codec.ts';
import { RandomReader } from '../platform/files.ts';
import { type BlockChecksums, scanBlocks } from './block-scan.ts';
import { readDeletedKeys, readLayerRows } from './layer-file.ts';
import { blockMismatch, LayerReader, readChecksums, readHeader } from './layer-reader.ts';
import { DeletedKeys, PlaceScan } from './place-scan.ts';

const PIECE_BYTES = 8 << 20;

export interface LayerReport {
  readonly header: LayerHeader;
  readonly rows: number;
  /** Deleted keys of a delta. */
  readonly deleted: number;
}

/** What is wrong with a file, and with which of its blocks when it is one of them. */
export interface LayerFault {
  readonly error: CubeError;
  readonly block?: number;
  /** Of the block in the file, in bytes. */
  readonly offset?: number;
}

export interface LayerFileReport {
  /** Undefined when it cannot be read. */
  readonly header: LayerHeader | undefined;
  readonly bytes: number;
  readonly sha256: string;
  readonly faults: readonly LayerFault[];
}

/**
 * Checks a layer file: header, sizes and every block, that its rows can be read, and that its keys are of its shard; with
 * `deep` also the content id, and all that the top of this file names.
 * @throws CubeError saying what is wrong first
 */
export function verifyLayerFile(path: string, options: { deep: boolean }): LayerReport {
  let report: LayerReport | undefined;
  const { header, steps } = contentChecks(path, options.deep ? 'all' : 'rows', (found) => {
    report = found;
  });
  for (const step of steps) step();
  return report ?? { header, rows: 0, deleted: 0 };
}

/**
 * Checks a layer file and goes on after the first fault: all damaged blocks are found; and in a file whose blocks are whole,
 * all kinds of faults, each with its first place. Also without `deep` every key must be found by a search.
 * @param onBytes told the bytes read since the last call, once for all of the file
 * @throws CubeError when the file cannot be read at all
 */
export function checkLayerFile(
  path: string,
  options: { readonly deep: boolean; readonly onBytes?: (bytes: number) => void },
): LayerFileReport {
  const faults: LayerFault[] = [];
  const attempt = <T>(check: () => T): T | undefined => {
    try {
      return check();
    } catch (thrown) {
      const error = CubeError.from(thrown);
      if (!FAULTS.has(error.code)) throw error;
      faults.push({ error });
      return undefined;
    }
  };
  const checksums = readBlockChecksums(path, attempt);
  const scan = scanBlocks(path, checksums, options.onBytes ?? (() => undefined));
  for (const block of scan.damaged) {
    const offset = HEADER_BYTES + block * BLOCK_BYTES;
    faults.push({ error: blockMismatch(path, block), block, offset });
  }
  if (faults.length === 0) {
    for (const step of contentChecks(path, options.deep ? 'all' : 'keys').steps) attempt(step);
  }
  return { header: checksums?.header, bytes: scan.bytes, sha256: scan.sha256, faults };
}

/** Of the file; others are of the machine, and end the check. */
const FAULTS: ReadonlySet<ErrorCode> = new Set(['CORRUPT', 'UNSUPPORTED', 'INVALID_ARGUMENT']);

function readBlockChecksums(
  path: string,
  attempt: <T>(check: () => T) => T | undefined,
): BlockChecksums | undefined {
  const reader = new RandomReader(path);
  try {
    const header = attempt(() => readHeader(reader));
    if (header === undefined) return undefined;
    const words = attempt(() => readChecksums(reader, header));
    return words === undefined ? undefined : { header, words };
  } finally {
    reader.close();
  }
}

/** rows: what a load relies on, read · keys: a search finds them · all: all that can be said of a file by itself */
type Depth = 'rows' | 'keys' | 'all';

/** The checks of what lies in the blocks, as steps that each throw the first fault of their kind. */
function contentChecks(
  path: string,
  depth: Depth,
  onScanned: (report: LayerReport) => void = () => undefined,
): { header: LayerHeader; steps: (() => void)[] } {
  const reader = new LayerReader(path);
  const { header } = reader;
  reader.close();
  let deleted: DeletedKeys | undefined;
  const searched = [
    () => (header.layout === 'dense' ? undefined : withReader(path, checkPlaces)),
    () => {
      deleted = withReader(path, checkDeleted);
    },
  ];
  const scanned = (): void => {
    const scan = new KeyScan(path, header, depth === 'all', deleted);
    for (const { keys, rows, count } of readLayerRows(path)) scan.addRows(keys, rows, count);
    for (const keys of readDeletedKeys(path)) scan.addDeleted(keys);
    onScanned({ header, ...scan.finish() });
  };
  const steps = [...(depth === 'rows' ? [] : searched), scanned];
  // Last: of what is wrong, the content id says least.
  if (depth === 'all') steps.push(() => checkContentId(path, header));
  return { header, steps };
}

function withReader<T>(path: string, action: (reader: LayerReader) => T): T {
  const reader = new LayerReader(path);
  try {
    return action(reader);
  } finally {
    reader.close();
  }
}

/** All keys of a layer, row by row. */
class KeyScan {
  readonly #path: string;
  readonly #header: LayerHeader;
  readonly #deep: boolean;
  readonly #deletedKeys: DeletedKeys | undefined;
  readonly #empty: EmptyKeyFinder;
  #rows = 0;
  #deleted = 0;

  constructor(
    path: string,
    header: LayerHeader,
    deep: boolean,
    deletedKeys: DeletedKeys | undefined,
  ) {
    this.#path = path;
    this.#header = header;
    this.#deep = deep;
    this.#deletedKeys = deletedKeys;
    this.#empty = new EmptyKeyFinder(deep ? header.rowCount + header.deletedCount : 0);
  }

  addRows(keys: Uint32Array, rows: Uint8Array, count: number): void {
    this.#rows += count;
    this.#checkShard(keys);
    if (!this.#deep) return;
    this.#empty.add(keys);
    const { dtype, dim } = this.#header;
    if (dtype !== 'bytes') {
      const wrong = checkStoredRows(dtype, rows, dim, count);
      if (wrong !== undefined) this.#fail(wrong);
    }
    for (let i = 0; this.#deletedKeys !== undefined && i < count; i++) {
      if (!this.#deletedKeys.has(keys[2 * i]!, keys[2 * i + 1]!)) continue;
      this.#fail('a key has a row and is deleted');
    }
  }

  addDeleted(keys: Uint32Array): void {
    this.#deleted += keys.length / 2;
    this.#checkShard(keys);
    if (this.#deep) this.#empty.add(keys);
  }

  finish(): { rows: number; deleted: number } {
    const { deletedCount, emptyKey, layout } = this.#header;
    if (this.#deleted !== deletedCount) {
      this.#fail(`holds ${this.#deleted} deleted keys, its header says ${deletedCount}`);
    }
    const expected = layout === 'dense' ? 0n : this.#empty.emptyKey();
    if (this.#deep && emptyKey !== expected) {
      this.#fail(`its empty key is ${emptyKey}, not the greatest that no row has`);
    }
    return { rows: this.#rows, deleted: this.#deleted };
  }

  #checkShard(keys: Uint32Array): void {
    const { shardIndex, shardNum } = this.#header;
    for (let i = 0; i < keys.length; i += 2) {
      if (shardOf(keys[i]!, keys[i + 1]!, shardNum) === shardIndex) continue;
      const key = keyToBigint(keys, i / 2);
      this.#fail(`key ${key} does not belong to shard ${shardIndex} of ${shardNum}`);
    }
  }

  #fail(text: string): never {
    throw new CubeError('CORRUPT', `${this.#path}: ${text}; build it again`);
  }
}

function checkContentId(path: string, header: LayerHeader): void {
  const reader = new RandomReader(path);
  try {
    const sha = createHash('sha256');
    const piece = new Uint8Array(BLOCK_BYTES);
    for (let position = HEADER_BYTES; position < header.fileBytes; position += BLOCK_BYTES) {
      const part = piece.subarray(0, Math.min(BLOCK_BYTES, header.fileBytes - position));
      reader.readInto(part, position);
      sha.update(part);
    }
    const found = sha.update(encodeUnsignedHeader(header)).digest('hex').slice(0, 32);
    if (found !== header.contentId) {
      throw new CubeError(
        'CORRUPT',
        `${path}: its content is ${found}, its header says ${header.contentId}; fetch it again`,
      );
    }
  } finally {
    reader.close();
  }
}

function checkPlaces(reader: LayerReader): void {
  const { stride, homeSlots, emptyKey } = reader.header;
  const segments = keySegments(reader.header);
  const perPiece = Math.max(1, Math.floor(PIECE_BYTES / stride));
  for (const [number, segment] of segments.entries()) {
    const table = { stride, homeSlots, emptyKey, segment: number, segmentCount: segments.length };
    const scan = new PlaceScan(table, `${reader.path}: segment ${number}`);
    for (const piece of reader.slots(segment, perPiece)) scan.check(new Uint32Array(piece.buffer));
    scan.finish(segment.rows);
  }
}

/** @returns the deleted keys, all of them found by a search */
function checkDeleted(reader: LayerReader): DeletedKeys | undefined {
  const { deletedHomeSlots: homeSlots, emptyKey } = reader.header;
  const segment = deletedSegment(reader.header);
  if (segment === undefined) return undefined;
  const table = { stride: DELETED_STRIDE, homeSlots, emptyKey, segment: 0, segmentCount: 1 };
  const slots = new Uint8Array(segment.bytes);
  reader.read(slots, segment.offset);
  const words = new Uint32Array(slots.buffer);
  const scan = new PlaceScan(table, `${reader.path}: deleted keys`);
  scan.check(words);
  scan.finish(segment.rows);
  return new DeletedKeys(words, homeSlots, emptyKey);
}
