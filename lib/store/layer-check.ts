/**
 * Checks a layer file, including properties that a load does not check: a search finds every key,
 * no key occurs twice, every key belongs to the shard, every row is valid for its dtype and has
 * exactly one key, no key is both present and deleted, and the content id matches.
 */
import { createHash } from 'node:crypto';
import { CubeError, type ErrorCode } from '../core/errors.ts';
import { computeShard, keyToBigint } from '../core/keys.ts';
import {
  BLOCK_BYTES,
  DELETED_STRIDE,
  getDeletedSegment,
  getKeySegments,
  HEADER_BYTES,
  type LayerHeader,
} from '../core/layer-format.ts';
import { encodeUnsignedHeader } from '../core/layer-header.ts';
import { EmptyKeyFinder } from '../core/layer-placement.ts';
import { findStoredRowDefect } from '../core/row-codec.ts';
import { type BlockChecksums, scanBlocks } from './block-scan.ts';
import { readDeletedKeys, readLayerRows } from './layer-file.ts';
import { openLayerFile } from './layer-open.ts';
import {
  createBlockMismatchError,
  LayerReader,
  readChecksums,
  readHeader,
} from './layer-reader.ts';
import { DeletedKeySet, SlotOrderCheck } from './slot-check.ts';

const PIECE_BYTES = 8 << 20;

export interface LayerReport {
  readonly header: LayerHeader;
  readonly rows: number;
  /** Deleted keys of a delta. */
  readonly deleted: number;
}

/** A problem of a file, with the damaged block if it is about one. */
export interface LayerFault {
  readonly error: CubeError;
  readonly block?: number;
  /** Offset of the block in the file, in bytes. */
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
 * Checks header, sizes and blocks of a layer file, that its rows can be read, and that its keys
 * belong to its shard. With `deep` it also checks the content id and everything listed at the top
 * of this file.
 * @throws CubeError for the first problem
 */
export function verifyLayerFile(path: string, options: { deep: boolean }): LayerReport {
  let report: LayerReport | undefined;
  const { header, steps } = createContentChecks(path, options.deep ? 'all' : 'rows', (found) => {
    report = found;
  });
  for (const step of steps) step();
  return report ?? { header, rows: 0, deleted: 0 };
}

/**
 * Checks a layer file and continues after a problem: it finds all damaged blocks and, if all blocks
 * are valid, the first problem of each kind. Even without `deep`, a search must find every key.
 * @param onBytes called with the bytes read since the last call, once over the whole file
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
    faults.push({ error: createBlockMismatchError(path, block), block, offset });
  }
  if (faults.length === 0) {
    for (const step of createContentChecks(path, options.deep ? 'all' : 'keys').steps)
      attempt(step);
  }
  return { header: checksums?.header, bytes: scan.bytes, sha256: scan.sha256, faults };
}

/** Codes that are about the file. Other codes are about the machine and end the check. */
const FAULTS: ReadonlySet<ErrorCode> = new Set(['CORRUPT', 'UNSUPPORTED', 'INVALID_ARGUMENT']);

function readBlockChecksums(
  path: string,
  attempt: <T>(check: () => T) => T | undefined,
): BlockChecksums | undefined {
  const reader = openLayerFile(path);
  try {
    const header = attempt(() => readHeader(reader));
    if (header === undefined) return undefined;
    const words = attempt(() => readChecksums(reader, header));
    return words === undefined ? undefined : { header, words };
  } finally {
    reader.close();
  }
}

/**
 * rows: what a load relies on · keys: a search also finds every key · all: every check of a single
 * file
 */
type CheckDepth = 'rows' | 'keys' | 'all';

/** Checks of the content of blocks, as steps that each throw the first problem of one kind. */
function createContentChecks(
  path: string,
  depth: CheckDepth,
  onScanned: (report: LayerReport) => void = () => undefined,
): { header: LayerHeader; steps: (() => void)[] } {
  const reader = new LayerReader(path);
  const { header } = reader;
  reader.close();
  let deleted: DeletedKeySet | undefined;
  const searched = [
    () => (header.layout === 'dense' ? undefined : withReader(path, checkKeySlots)),
    () => {
      deleted = withReader(path, checkDeleted);
    },
  ];
  const scanned = (): void => {
    const scan = new KeyCheck(path, header, depth === 'all', deleted);
    for (const { keys, rows, count } of readLayerRows(path)) scan.addRows(keys, rows, count);
    for (const keys of readDeletedKeys(path)) scan.addDeleted(keys);
    onScanned({ header, ...scan.finish() });
  };
  const steps = [...(depth === 'rows' ? [] : searched), scanned];
  // Last, because a wrong content id is the least specific problem.
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

/** Checks all keys of a layer, row by row. */
class KeyCheck {
  readonly #path: string;
  readonly #header: LayerHeader;
  readonly #deep: boolean;
  readonly #deletedKeys: DeletedKeySet | undefined;
  readonly #empty: EmptyKeyFinder;
  #rows = 0;
  #deleted = 0;

  constructor(
    path: string,
    header: LayerHeader,
    deep: boolean,
    deletedKeys: DeletedKeySet | undefined,
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
      const wrong = findStoredRowDefect(dtype, rows, dim, count);
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
      if (computeShard(keys[i]!, keys[i + 1]!, shardNum) === shardIndex) continue;
      const key = keyToBigint(keys, i / 2);
      this.#fail(`key ${key} does not belong to shard ${shardIndex} of ${shardNum}`);
    }
  }

  #fail(text: string): never {
    throw new CubeError('CORRUPT', `${this.#path}: ${text}; build it again`);
  }
}

function checkContentId(path: string, header: LayerHeader): void {
  const reader = openLayerFile(path);
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

function checkKeySlots(reader: LayerReader): void {
  const { stride, homeSlots, emptyKey } = reader.header;
  const segments = getKeySegments(reader.header);
  const perPiece = Math.max(1, Math.floor(PIECE_BYTES / stride));
  for (const [number, segment] of segments.entries()) {
    const table = { stride, homeSlots, emptyKey, segment: number, segmentCount: segments.length };
    const scan = new SlotOrderCheck(table, `${reader.path}: segment ${number}`);
    for (const piece of reader.slots(segment, perPiece)) scan.check(new Uint32Array(piece.buffer));
    scan.finish(segment.rows);
  }
}

/** @returns the deleted keys, each of which a search finds */
function checkDeleted(reader: LayerReader): DeletedKeySet | undefined {
  const { deletedHomeSlots: homeSlots, emptyKey } = reader.header;
  const segment = getDeletedSegment(reader.header);
  if (segment === undefined) return undefined;
  const table = { stride: DELETED_STRIDE, homeSlots, emptyKey, segment: 0, segmentCount: 1 };
  const slots = new Uint8Array(segment.bytes);
  reader.read(slots, segment.offset);
  const words = new Uint32Array(slots.buffer);
  const scan = new SlotOrderCheck(table, `${reader.path}: deleted keys`);
  scan.check(words);
  scan.finish(segment.rows);
  return new DeletedKeySet(words, homeSlots, emptyKey);
}
