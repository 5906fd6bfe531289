/**
 * The deep check of a layer file: what a load takes on trust because its bytes are what their author wrote. A search
 * finds every key, every key is in the right shard, and the content is what the file's name says.
 */
import { createHash } from 'node:crypto';
import { CubeError } from '../core/errors.ts';
import { mixKey, multiplyHigh, shardOf } from '../core/keys.ts';
import { BLOCK_BYTES, HEADER_BYTES, type LayerHeader } from '../core/layer-format.ts';
import { encodeUnsignedHeader } from '../core/layer-header.ts';
import { RandomReader } from '../platform/files.ts';
import { type RowBatch, readLayerRows } from './layer-file.ts';
import { LayerReader } from './layer-reader.ts';

const PIECE_BYTES = 8 << 20;

export interface LayerReport {
  readonly header: LayerHeader;
  readonly rows: number;
}

/**
 * Checks a layer file: header, sizes and every block; with `deep` also the content id, and that every key is in the
 * right shard and is found by a search.
 * @throws CubeError saying what is wrong
 */
export function verifyLayerFile(path: string, options: { deep: boolean }): LayerReport {
  let header: LayerHeader;
  const reader = new LayerReader(path);
  try {
    header = reader.header;
    if (options.deep) {
      if (header.layout === 'inline') checkPlaces(reader, path);
      checkContentId(path, header);
    }
  } finally {
    reader.close();
  }
  let rows = 0;
  for (const batch of readLayerRows(path)) {
    rows += batch.count;
    if (options.deep) checkShard(batch, header, path);
  }
  return { header, rows };
}

function checkShard({ keys, count }: RowBatch, header: LayerHeader, path: string): void {
  const { shardIndex, shardNum } = header;
  for (let i = 0; i < count; i++) {
    if (shardOf(keys[2 * i]!, keys[2 * i + 1]!, shardNum) === shardIndex) continue;
    throw new CubeError(
      'CORRUPT',
      `${path}: a key does not belong to shard ${shardIndex} of ${shardNum}; build it again`,
    );
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

/** Every key lies at or after its home slot with no empty slot between, and in strict (home, key) order. */
function checkPlaces(reader: LayerReader, path: string): void {
  const { header } = reader;
  header.segments.forEach((segment, number) => {
    const scan = new PlaceScan(header, number, path);
    for (const piece of reader.slots(
      segment,
      Math.max(1, Math.floor(PIECE_BYTES / header.stride)),
    )) {
      scan.check(new Uint32Array(piece.buffer));
    }
    scan.finish(segment.rows);
  });
}

class PlaceScan {
  readonly #header: LayerHeader;
  readonly #segment: number;
  readonly #path: string;
  readonly #mixed = new Uint32Array(2);
  #slot = 0;
  #runStart = 0;
  #rows = 0;
  #home = -1;
  #low = 0;
  #high = 0;

  constructor(header: LayerHeader, segment: number, path: string) {
    this.#header = header;
    this.#segment = segment;
    this.#path = path;
  }

  check(words: Uint32Array): void {
    const { stride, emptyKey } = this.#header;
    const emptyLow = Number(emptyKey & 0xffff_ffffn);
    const emptyHigh = Number(emptyKey >> 32n);
    for (let at = 0; at < words.length; at += stride / 4) {
      const low = words[at]!;
      const high = words[at + 1]!;
      if (low === emptyLow && high === emptyHigh) this.#runStart = this.#slot + 1;
      else this.#checkKey(low, high);
      this.#slot += 1;
    }
  }

  finish(rows: number): void {
    if (this.#runStart !== this.#slot) this.#fail('its last slot is not empty');
    if (this.#rows !== rows) this.#fail(`it holds ${this.#rows} rows, not ${rows}`);
  }

  #checkKey(low: number, high: number): void {
    const { homeSlots, segments } = this.#header;
    mixKey(low, high, this.#mixed, 0);
    if (multiplyHigh(this.#mixed[0]!, segments.length) !== this.#segment) {
      this.#fail(`slot ${this.#slot} holds a key of another segment`);
    }
    const home = multiplyHigh(this.#mixed[1]!, homeSlots);
    if (home < this.#runStart || home > this.#slot) {
      this.#fail(`the key in slot ${this.#slot} is not found by a search`);
    }
    const order = home - this.#home || high - this.#high || low - this.#low;
    if (order <= 0) this.#fail(`slot ${this.#slot} is out of (home, key) order`);
    this.#home = home;
    this.#low = low;
    this.#high = high;
    this.#rows += 1;
  }

  #fail(text: string): never {
    throw new CubeError(
      'CORRUPT',
      `${this.#path}: segment ${this.#segment}: ${text}; build it again`,
    );
  }
}
