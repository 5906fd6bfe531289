/**
 * Reads the bytes of a Paddle program: one pass, views instead of copies, every length checked
 * before it is used, the number of items bounded. Bytes that are not a program are CORRUPT.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import {
  WIRE_BYTES,
  WIRE_FIXED32,
  WIRE_FIXED64,
  WIRE_VARINT,
  type WireReader,
} from '../../../proto/wire.ts';
import {
  FieldReader,
  failCorrupt,
  type RawField,
  readBytes,
  readName,
  readVarint,
} from '../cut/protobuf-fields.ts';
import {
  type Attribute,
  BLOCK_OP,
  BLOCK_VAR,
  type Block,
  type Op,
  PROGRAM_BLOCK,
  type Program,
  type Variable,
} from './program.ts';

/** Attribute fields that hold names of variables or scalars of any type. */
const OTHER_VALUES = new Set([17, 18, 20, 21]);
const RANK_MAX = 16;
const JSON_FIRST_BYTE = 0x7b;
/** A program of Paddle 3 begins with `{"base_code":{"magic":"pir",…`. */
const PIR_MARK = /"(base_code|magic|program)"/;
const PIR_MARK_BYTES = 256;
/** Maximum operators that run blocks: loops and branches. */
const BLOCK_RUNNERS_MAX = 1000;

/** @param source names the file. @throws CubeError CORRUPT, or UNSUPPORTED for JSON */
export function readProgram(bytes: Uint8Array, source: string): Program {
  if (bytes.length === 0) {
    throw new CubeError('CORRUPT', `${source} is empty, not a Paddle program`);
  }
  if (bytes[0] === JSON_FIRST_BYTE) throw createJsonError(bytes, source);
  try {
    return new ProgramReader().program(bytes);
  } catch (error) {
    if (!(error instanceof CubeError)) throw error;
    throw new CubeError('CORRUPT', `${source} is not a valid Paddle program: ${error.message}`, {
      cause: error,
    });
  }
}

function createJsonError(bytes: Uint8Array, source: string): CubeError {
  if (PIR_MARK.test(Buffer.from(bytes.subarray(0, PIR_MARK_BYTES)).toString('latin1'))) {
    return new CubeError(
      'UNSUPPORTED',
      `cannot prune ${source}: it is a PIR program of Paddle 3 in JSON, which is not supported; ` +
        'save the model with FLAGS_enable_pir_api=0',
    );
  }
  const remedy = 'give the file of the network, such as model.onnx or __model__';
  return new CubeError('CORRUPT', `${source} is JSON, not a Paddle program: ${remedy}`);
}

/** Reads the type and shape in a parameter stream. @throws CubeError CORRUPT */
export function readTensorDesc(bytes: Uint8Array): { elementType: number; dims: number[] } {
  return new ProgramReader().tensorDesc(bytes);
}

class ProgramReader {
  readonly #fields = new FieldReader();

  program(bytes: Uint8Array): Program {
    const fields: RawField[] = [];
    const blocks: Block[] = [];
    this.#fields.forEachField(bytes, (reader, raw) => {
      if (reader.field === PROGRAM_BLOCK)
        blocks.push(this.#block(readBytes(reader), blocks.length));
      fields.push(raw());
    });
    const [main] = blocks;
    if (main === undefined) failCorrupt('it has no block');
    const runners = blocks.flatMap(({ ops }) => ops.filter((op) => op.blocks.length > 0));
    if (runners.length > BLOCK_RUNNERS_MAX)
      failCorrupt(`${runners.length} operators run blocks; the maximum is ${BLOCK_RUNNERS_MAX}`);
    blocks.forEach(({ ops }, position) => {
      for (const { type, blocks: inner } of ops) {
        const wrong = inner.find((index) => index <= position || index >= blocks.length);
        if (wrong !== undefined)
          failCorrupt(`operator ${type} of block ${position} runs block ${wrong}`);
      }
    });
    return { fields, blocks, main };
  }

  tensorDesc(bytes: Uint8Array): { elementType: number; dims: number[] } {
    let elementType = -1;
    const dims: number[] = [];
    this.#fields.forEachField(bytes, (reader) => {
      if (reader.field === 1) elementType = readInteger(reader);
      else if (reader.field === 2)
        this.#fields.readIntegers(reader, (value) => dims.push(Number(value)));
      else reader.skip();
    });
    if (elementType < 0) failCorrupt('a tensor has no element type');
    if (dims.length > RANK_MAX) failCorrupt(`a tensor has ${dims.length} axes`);
    const wrong = dims.find((dim) => dim < -1 || !Number.isSafeInteger(dim));
    if (wrong !== undefined) failCorrupt(`a tensor has an axis of ${wrong}`);
    return { elementType, dims };
  }

  #block(bytes: Uint8Array, position: number): Block {
    const fields: RawField[] = [];
    const vars: Variable[] = [];
    const ops: Op[] = [];
    let index: number | undefined;
    let parent: number | undefined;
    this.#fields.forEachField(bytes, (reader, raw) => {
      const at = reader.field;
      if (at === 1) index = readInteger(reader);
      else if (at === 2) parent = readInteger(reader);
      const body = at === BLOCK_VAR || at === BLOCK_OP ? readBytes(reader) : undefined;
      const field = raw();
      fields.push(field);
      if (body !== undefined && at === BLOCK_VAR) vars.push(this.#variable(body, field));
      else if (body !== undefined) ops.push(this.#op(body, field));
    });
    if (index !== position) failCorrupt(`block ${position} has the index ${index}`);
    if (parent === undefined || parent >= position) {
      failCorrupt(`block ${position} has the parent ${parent}`);
    }
    const names = new Set<string>();
    for (const { name } of vars) {
      if (names.has(name)) failCorrupt(`two variables are called ${JSON.stringify(name)}`);
      names.add(name);
    }
    return { fields, vars, ops };
  }

  #variable(bytes: Uint8Array, raw: RawField): Variable {
    let name: string | undefined;
    let persistable = false;
    let kind = -1;
    let lodLevel = 0;
    let tensor = { elementType: -1, dims: [] as number[] };
    const lodTensor = (inner: Uint8Array): void =>
      this.#fields.forEachField(inner, (reader) => {
        if (reader.field === 1) tensor = this.tensorDesc(readBytes(reader));
        else if (reader.field === 2) lodLevel = readInteger(reader);
        else reader.skip();
      });
    this.#fields.forEachField(bytes, (reader) => {
      if (reader.field === 1) name = readName(reader);
      else if (reader.field === 3) persistable = readBool(reader);
      else if (reader.field === 2) {
        this.#fields.forEachField(readBytes(reader), (type) => {
          if (type.field === 1) kind = readInteger(type);
          else if (type.field === 2) tensor = this.tensorDesc(readBytes(type));
          else if (type.field === 3) lodTensor(readBytes(type));
          else type.skip();
        });
      } else reader.skip();
    });
    if (name === undefined || name === '') failCorrupt('a variable has no name');
    if (kind < 0) failCorrupt(`variable ${JSON.stringify(name)} has no type`);
    return { raw, name, kind, persistable, lodLevel, ...tensor };
  }

  #op(bytes: Uint8Array, raw: RawField): Op {
    let type = '';
    const inputs = new Map<string, string[]>();
    const outputs = new Map<string, string[]>();
    const attrs = new Map<string, Attribute>();
    const blocks: number[] = [];
    this.#fields.forEachField(bytes, (reader, field) => {
      if (reader.field === 1) this.#arguments(readBytes(reader), inputs);
      else if (reader.field === 2) this.#arguments(readBytes(reader), outputs);
      else if (reader.field === 3) type = readName(reader);
      else if (reader.field === 4) {
        const body = readBytes(reader);
        const { name, attribute } = this.#attribute(body, field(), blocks);
        if (attrs.has(name))
          failCorrupt(`an operator has the attribute ${JSON.stringify(name)} twice`);
        attrs.set(name, attribute);
      } else reader.skip();
    });
    if (type === '') failCorrupt('an operator has no type');
    return { raw, type, inputs, outputs, attrs, blocks };
  }

  #arguments(bytes: Uint8Array, into: Map<string, string[]>): void {
    let parameter: string | undefined;
    const names: string[] = [];
    this.#fields.forEachField(bytes, (reader) => {
      if (reader.field === 1) parameter = readName(reader);
      else if (reader.field === 2) names.push(readName(reader));
      else reader.skip();
    });
    if (parameter === undefined) failCorrupt('a parameter of an operator has no name');
    if (into.has(parameter))
      failCorrupt(`an operator has the parameter ${JSON.stringify(parameter)} twice`);
    into.set(parameter, names);
  }

  #attribute(
    bytes: Uint8Array,
    raw: RawField,
    blocks: number[],
  ): { name: string; attribute: Attribute } {
    let name: string | undefined;
    const numbers: number[] = [];
    const texts: string[] = [];
    let isOther = false;
    this.#fields.forEachField(bytes, (reader) => {
      const { field } = reader;
      if (field === 1) name = readName(reader);
      else if (field === 4 || field === 7) this.#floats(reader, numbers);
      else if (field === 5 || field === 8) texts.push(readLooseText(reader));
      else if (field === 12 || field === 14)
        this.#fields.readIntegers(reader, (value) => blocks.push(Number(value)));
      else if ([3, 6, 10, 11, 13, 15].includes(field))
        this.#fields.readIntegers(reader, (value) => numbers.push(Number(value)));
      else if (field === 16 || field === 19) this.#doubles(reader, numbers);
      else {
        isOther ||= OTHER_VALUES.has(field);
        reader.skip();
      }
    });
    if (name === undefined) failCorrupt('an attribute has no name');
    return { name, attribute: { raw, numbers, texts, ...(isOther ? { isOther } : {}) } };
  }

  #floats(reader: WireReader, into: number[]): void {
    if (reader.wireType !== WIRE_BYTES) {
      reader.expect(WIRE_FIXED32);
      into.push(reader.float32());
      return;
    }
    const bytes = reader.view();
    if (bytes.length % 4 !== 0) failCorrupt('a packed list of floats ends in the middle of one');
    const data = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    for (let at = 0; at < bytes.length; at += 4) {
      this.#fields.count();
      into.push(data.getFloat32(at, true));
    }
  }

  #doubles(reader: WireReader, into: number[]): void {
    if (reader.wireType === WIRE_BYTES) {
      reader.skip();
      return;
    }
    reader.expect(WIRE_FIXED64);
    const at = reader.position;
    reader.skip();
    const { bytes } = reader;
    into.push(new DataView(bytes.buffer, bytes.byteOffset + at, 8).getFloat64(0, true));
  }
}

function readInteger(reader: WireReader): number {
  return Number(readVarint(reader));
}

function readBool(reader: WireReader): boolean {
  reader.expect(WIRE_VARINT);
  return reader.bool();
}

/** Reads a string that is not a name; it need not be UTF-8. */
function readLooseText(reader: WireReader): string {
  reader.expect(WIRE_BYTES);
  return reader.string();
}
