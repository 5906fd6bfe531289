/**
 * What the readers and writers of both model formats share: protobuf fields that keep the exact
 * bytes they have in the file, so that an unchanged field is written back byte for byte.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { WIRE_BYTES, WIRE_VARINT, WireReader, WireWriter } from '../../../proto/wire.ts';

/** One field of a message: `bytes` are its tag and value as they are in the file. */
export interface RawField {
  readonly field: number;
  readonly bytes: Uint8Array;
}

/** Items read in one model; a graph of 100,000 nodes has about two million. */
const ITEM_COUNT_MAX = 10_000_000;

const nameDecoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Reads the fields of one model and bounds their number against hostile bytes. */
export class FieldReader {
  #items = 0;

  /** @param visit called for each field; `keep()` returns its bytes */
  forEachField(bytes: Uint8Array, visit: (reader: WireReader, keep: () => RawField) => void): void {
    const reader = new WireReader(bytes);
    while (reader.next()) {
      this.count();
      const { field, fieldStart, position } = reader;
      visit(reader, () => {
        if (reader.position === position) reader.skip();
        return { field, bytes: bytes.subarray(fieldStart, reader.position) };
      });
    }
  }

  /** Reads one varint or a packed list of them. */
  readIntegers(reader: WireReader, onValue: (value: bigint) => void): void {
    if (reader.wireType !== WIRE_BYTES) {
      onValue(readVarint(reader));
      return;
    }
    const packed = reader.message();
    while (packed.position < packed.end) {
      this.count();
      onValue(packed.int64());
    }
  }

  /** Counts an item that is read without this class. */
  count(): void {
    if (++this.#items > ITEM_COUNT_MAX) {
      failCorrupt(`it has more than ${ITEM_COUNT_MAX} fields and numbers`);
    }
  }
}

export function failCorrupt(reason: string): never {
  throw new CubeError('CORRUPT', reason);
}

export function readBytes(reader: WireReader): Uint8Array {
  reader.expect(WIRE_BYTES);
  return reader.view();
}

export function readVarint(reader: WireReader): bigint {
  reader.expect(WIRE_VARINT);
  return reader.int64();
}

/** Names must be UTF-8: a name that decodes to something else could not be written back. */
export function readName(reader: WireReader): string {
  const bytes = readBytes(reader);
  try {
    return nameDecoder.decode(bytes);
  } catch {
    failCorrupt(`a name is not UTF-8 (at byte ${reader.position})`);
  }
}

/** The message inside a length-delimited field. */
export function readMessageField(field: Uint8Array): Uint8Array {
  const reader = new WireReader(field);
  reader.next();
  return reader.view();
}

export function splitFields(message: Uint8Array): RawField[] {
  const reader = new WireReader(message);
  const fields: RawField[] = [];
  while (reader.next()) {
    reader.skip();
    const bytes = message.subarray(reader.fieldStart, reader.position);
    fields.push({ field: reader.field, bytes });
  }
  return fields;
}

export function encodeMessageField(field: number, message: Uint8Array): RawField {
  return { field, bytes: new WireWriter(message.length + 16).bytes(field, message).finish() };
}

/** Whether two views are the same bytes of the same file. */
export function isSameView(a: Uint8Array, b: Uint8Array): boolean {
  return a.buffer === b.buffer && a.byteOffset === b.byteOffset && a.length === b.length;
}
