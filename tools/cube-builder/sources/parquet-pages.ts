/**
 * Checks the page headers of a Parquet column chunk before it is decoded: the pages must fill the
 * chunk exactly, contain as many values as the footer says, and match their CRC-32 if they have
 * one. The decoder therefore never allocates more than the file justifies.
 *
 * Headers are structs in Thrift's compact protocol; only the numbers of PageHeader are kept.
 */
import { crc32 } from 'node:zlib';
import type { ColumnMetaData } from 'hyparquet';
import { CubeError } from '../../../lib/core/errors.ts';
import type { RandomAccessReader } from '../../../lib/platform/files.ts';

const CHUNK_BYTES_MAX = 1 << 30;
const PAGE_BYTES_MAX = 1 << 30;
const DEPTH_MAX = 16;

const DATA_PAGE = 0;
const DICTIONARY_PAGE = 2;
const DATA_PAGE_V2 = 3;

interface PageHeader {
  readonly type: number;
  readonly unpackedBytes: number;
  readonly packedBytes: number;
  readonly crc: number | undefined;
  readonly values: number;
}

/**
 * @param rows number of values that a flat column must have; undefined for lists
 * @throws CubeError CORRUPT or TOO_LARGE
 */
export function checkPages(
  reader: RandomAccessReader,
  meta: ColumnMetaData,
  rows: number | undefined,
): void {
  const name = meta.path_in_schema.join('.');
  const damaged = (what: string): CubeError => new CubeError('CORRUPT', `column ${name}: ${what}`);
  const start = Number(meta.dictionary_page_offset || meta.data_page_offset);
  const bytes = Number(meta.total_compressed_size);
  const unpackedMax = Number(meta.total_uncompressed_size);
  if (!(start >= 0 && bytes >= 0 && start + bytes <= reader.bytes)) {
    throw damaged(`bytes ${start} … ${start + bytes} are outside the file of ${reader.bytes}`);
  }
  if (bytes > CHUNK_BYTES_MAX || unpackedMax > PAGE_BYTES_MAX) {
    throw new CubeError(
      'TOO_LARGE',
      `column ${name}: a chunk of ${unpackedMax} bytes is too large; write smaller row groups`,
    );
  }
  const chunk = new Uint8Array(bytes);
  reader.readInto(chunk, start);
  const thrift = new ThriftReader(chunk);
  let values = 0;
  while (thrift.at < bytes) {
    const position = start + thrift.at;
    const page = thrift.readPageHeader();
    const body = thrift.at;
    if (page === undefined || page.packedBytes > bytes - body || page.unpackedBytes > unpackedMax) {
      throw damaged(`a damaged page header at byte ${position}`);
    }
    thrift.at = body + page.packedBytes;
    if (page.crc !== undefined && crc32(chunk.subarray(body, thrift.at)) !== page.crc) {
      throw damaged(`the CRC-32 of the page at byte ${position} is wrong`);
    }
    if (page.type === DATA_PAGE || page.type === DATA_PAGE_V2) values += page.values;
    else if (page.type === DICTIONARY_PAGE && page.values > Number(meta.num_values)) {
      throw damaged(`a dictionary of ${page.values} values for only ${meta.num_values} values`);
    }
  }
  if (values !== Number(meta.num_values) || (rows !== undefined && values !== rows)) {
    throw damaged(`the pages have ${values} values; expected ${rows ?? meta.num_values}`);
  }
}

/** Parses page headers in Thrift's compact protocol. Wrong bytes throw RangeError internally. */
class ThriftReader {
  at = 0;
  readonly #bytes: Uint8Array;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  /** @returns undefined if the bytes are not a page header */
  readPageHeader(): PageHeader | undefined {
    const fields = new Map<number, number>();
    try {
      this.#struct(0, 0, fields);
    } catch (error) {
      if (error instanceof RangeError) return undefined;
      throw error;
    }
    const unpackedBytes = fields.get(2) ?? -1;
    const packedBytes = fields.get(3) ?? -1;
    const crc = fields.get(4);
    const values = [5, 7, 8].map((id) => fields.get(id * 16 + 1)).find((n) => n !== undefined) ?? 0;
    if (unpackedBytes < 0 || packedBytes < 0 || values < 0) return undefined;
    return {
      type: fields.get(1) ?? -1,
      unpackedBytes,
      packedBytes,
      crc: crc === undefined ? undefined : crc >>> 0,
      values,
    };
  }

  /** Keeps integers: header field i at i, and field j of the struct in field i at 16·i + j. */
  #struct(depth: number, base: number, fields: Map<number, number>): void {
    if (depth > DEPTH_MAX) throw new RangeError('too deep');
    let id = 0;
    for (;;) {
      const head = this.#byte();
      if (head === 0) return;
      const delta = head >> 4;
      id = delta === 0 ? this.#zigzag() : id + delta;
      const type = head & 15;
      if (type >= 4 && type <= 6) {
        const value = this.#zigzag();
        if (depth <= 1 && id > 0 && id < 16) fields.set(base + id, value);
      } else if (type === 12 && depth === 0 && id > 0 && id < 16) {
        this.#struct(1, 16 * id, fields);
      } else {
        this.#skip(type, depth + 1);
      }
    }
  }

  #skip(type: number, depth: number): void {
    if (depth > DEPTH_MAX) throw new RangeError('too deep');
    if (type === 1 || type === 2) return;
    if (type === 3) this.#byte();
    else if (type >= 4 && type <= 6) this.#zigzag();
    else if (type === 7) this.#jump(8);
    else if (type === 8) this.#jump(this.#varint());
    else if (type === 9 || type === 10) this.#skipList(depth);
    else if (type === 12) this.#struct(Math.max(2, depth), 0, new Map());
    else throw new RangeError(`type ${type}`);
  }

  #skipList(depth: number): void {
    const head = this.#byte();
    const count = head >> 4 === 15 ? this.#varint() : head >> 4;
    const type = head & 15;
    for (let i = 0; i < count; i++) {
      if (type === 1 || type === 2) this.#byte();
      else this.#skip(type, depth + 1);
    }
  }

  #jump(count: number): void {
    if (count > this.#bytes.length - this.at) throw new RangeError('the end');
    this.at += count;
  }

  #byte(): number {
    const byte = this.#bytes[this.at];
    if (byte === undefined) throw new RangeError('the end');
    this.at += 1;
    return byte;
  }

  #varint(): number {
    let value = 0;
    for (let power = 1; power < 2 ** 64; power *= 128) {
      const byte = this.#byte();
      value += (byte & 127) * power;
      if (byte < 128) return value;
    }
    throw new RangeError('a long number');
  }

  #zigzag(): number {
    const value = this.#varint();
    return value % 2 === 0 ? value / 2 : -(value + 1) / 2;
  }
}
