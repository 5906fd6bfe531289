/**
 * Reads the bytes of a Paddle program: one pass, views instead of copies, every length checked before it is used, the number
 * of things read bounded. What is not a program is CORRUPT.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { WIRE_BYTES, WIRE_FIXED32, WIRE_VARINT, WireReader } from '../../../proto/wire.ts';
import {
  type Attribute,
  BLOCK_OP,
  BLOCK_VAR,
  type Block,
  type Op,
  PROGRAM_BLOCK,
  type Program,
  type RawField,
  type Variable,
} from './program.ts';

/** Fields, names, dims and numbers read in one program. */
const ITEM_COUNT_MAX = 10_000_000;

/** Values of attributes that are names of variables, or scalars of any type. */
const OTHER_VALUES = new Set([17, 18, 20, 21]);
const RANK_MAX = 16;
const FIXED64 = 1;
const JSON_FIRST_BYTE = 0x7b;
/** Operators that run blocks: loops and branches. */
const BLOCK_RUNNERS_MAX = 1000;

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** @param source what to call the file in errors. @throws CubeError CORRUPT, or UNSUPPORTED for programs in JSON */
export function readProgram(bytes: Uint8Array, source: string): Program {
  if (bytes.length === 0) {
    throw new CubeError('CORRUPT', `${source} is empty, not a Paddle program`);
  }
  if (bytes[0] === JSON_FIRST_BYTE) {
    throw new CubeError(
      'UNSUPPORTED',
      `cannot prune ${source}: it is JSON, a PIR program of Paddle 3, and not a ProgramDesc; save the model with FLAGS_enable_pir_api=0`,
    );
  }
  try {
    return new ProgramReader().program(bytes);
  } catch (error) {
    if (!(error instanceof CubeError)) throw error;
    throw new CubeError('CORRUPT', `${source} is not a valid Paddle program: ${error.message}`, {
      cause: error,
    });
  }
}

/** What a stream of a parameter says of its tensor. @throws CubeError INVALID_ARGUMENT */
export function readTensorDesc(bytes: Uint8Array): { elementType: number; dims: number[] } {
  return new ProgramReader().tensorDesc(bytes);
}

function fail(what: string): never {
  throw new CubeError('INVALID_ARGUMENT', what);
}

type OnField = (reader: WireReader, raw: () => RawField) => void;

class ProgramReader {
  #items = 0;

  program(bytes: Uint8Array): Program {
    const fields: RawField[] = [];
    const blocks: Block[] = [];
    this.#each(bytes, (reader, raw) => {
      if (reader.field === PROGRAM_BLOCK) blocks.push(this.#block(view(reader), blocks.length));
      fields.push(raw());
    });
    if (blocks.length === 0) fail('it has no block');
    const runners = blocks.flatMap(({ ops }) => ops.filter((op) => op.blocks.length > 0));
    if (runners.length > BLOCK_RUNNERS_MAX) fail(`${runners.length} operators run blocks`);
    blocks.forEach(({ ops }, position) => {
      for (const { type, blocks: inner } of ops) {
        const wrong = inner.find((index) => index <= position || index >= blocks.length);
        if (wrong !== undefined) fail(`operator ${type} of block ${position} runs block ${wrong}`);
      }
    });
    return { fields, blocks };
  }

  tensorDesc(bytes: Uint8Array): { elementType: number; dims: number[] } {
    let elementType = -1;
    const dims: number[] = [];
    this.#each(bytes, (reader) => {
      if (reader.field === 1) elementType = integer(reader);
      else if (reader.field === 2) this.#integers(reader, dims);
      else reader.skip();
    });
    if (elementType < 0) fail('a tensor has no element type');
    if (dims.length > RANK_MAX) fail(`a tensor has ${dims.length} axes`);
    const wrong = dims.find((dim) => dim < -1 || !Number.isSafeInteger(dim));
    if (wrong !== undefined) fail(`a tensor has an axis of ${wrong}`);
    return { elementType, dims };
  }

  #block(bytes: Uint8Array, position: number): Block {
    const fields: RawField[] = [];
    const vars: Variable[] = [];
    const ops: Op[] = [];
    let index: number | undefined;
    let parent: number | undefined;
    this.#each(bytes, (reader, raw) => {
      const at = reader.field;
      if (at === 1) index = integer(reader);
      else if (at === 2) parent = integer(reader);
      const body = at === BLOCK_VAR || at === BLOCK_OP ? view(reader) : undefined;
      const field = raw();
      fields.push(field);
      if (body !== undefined && at === BLOCK_VAR) vars.push(this.#variable(body, field));
      else if (body !== undefined) ops.push(this.#op(body, field));
    });
    if (index !== position) fail(`block ${position} says that it is block ${index}`);
    if (parent === undefined || parent >= position) {
      fail(`block ${position} has the parent ${parent}`);
    }
    const names = new Set<string>();
    for (const { name } of vars) {
      if (names.has(name)) fail(`two variables are called ${JSON.stringify(name)}`);
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
      this.#each(inner, (reader) => {
        if (reader.field === 1) tensor = this.tensorDesc(view(reader));
        else if (reader.field === 2) lodLevel = integer(reader);
        else reader.skip();
      });
    this.#each(bytes, (reader) => {
      if (reader.field === 1) name = text(reader);
      else if (reader.field === 3) persistable = bool(reader);
      else if (reader.field === 2) {
        this.#each(view(reader), (type) => {
          if (type.field === 1) kind = integer(type);
          else if (type.field === 2) tensor = this.tensorDesc(view(type));
          else if (type.field === 3) lodTensor(view(type));
          else type.skip();
        });
      } else reader.skip();
    });
    if (name === undefined || name === '') fail('a variable has no name');
    if (kind < 0) fail(`variable ${JSON.stringify(name)} has no type`);
    return { raw, name, kind, persistable, lodLevel, ...tensor };
  }

  #op(bytes: Uint8Array, raw: RawField): Op {
    let type = '';
    const inputs = new Map<string, string[]>();
    const outputs = new Map<string, string[]>();
    const attrs = new Map<string, Attribute>();
    const blocks: number[] = [];
    this.#each(bytes, (reader, field) => {
      if (reader.field === 1) this.#arguments(view(reader), inputs);
      else if (reader.field === 2) this.#arguments(view(reader), outputs);
      else if (reader.field === 3) type = text(reader);
      else if (reader.field === 4) {
        const body = view(reader);
        const { name, attribute } = this.#attribute(body, field(), blocks);
        if (attrs.has(name)) fail(`an operator has the attribute ${JSON.stringify(name)} twice`);
        attrs.set(name, attribute);
      } else reader.skip();
    });
    if (type === '') fail('an operator has no type');
    return { raw, type, inputs, outputs, attrs, blocks };
  }

  #arguments(bytes: Uint8Array, into: Map<string, string[]>): void {
    let parameter: string | undefined;
    const names: string[] = [];
    this.#each(bytes, (reader) => {
      if (reader.field === 1) parameter = text(reader);
      else if (reader.field === 2) names.push(text(reader));
      else reader.skip();
    });
    if (parameter === undefined) fail('a parameter of an operator has no name');
    if (into.has(parameter))
      fail(`an operator has the parameter ${JSON.stringify(parameter)} twice`);
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
    this.#each(bytes, (reader) => {
      const { field } = reader;
      if (field === 1) name = text(reader);
      else if (field === 4 || field === 7) this.#floats(reader, numbers);
      else if (field === 5 || field === 8) texts.push(loose(reader));
      else if (field === 12 || field === 14) this.#integers(reader, blocks);
      else if ([3, 6, 10, 11, 13, 15].includes(field)) this.#integers(reader, numbers);
      else if (field === 16 || field === 19) this.#doubles(reader, numbers);
      else {
        isOther ||= OTHER_VALUES.has(field);
        reader.skip();
      }
    });
    if (name === undefined) fail('an attribute has no name');
    return { name, attribute: { raw, numbers, texts, ...(isOther ? { isOther } : {}) } };
  }

  /** A number, or a packed list of them. */
  #integers(reader: WireReader, into: number[]): void {
    if (reader.wireType !== WIRE_BYTES) {
      into.push(integer(reader));
      return;
    }
    const inner = reader.message();
    while (inner.position < inner.end) {
      this.#count();
      into.push(Number(inner.int64()));
    }
  }

  #floats(reader: WireReader, into: number[]): void {
    if (reader.wireType !== WIRE_BYTES) {
      reader.expect(WIRE_FIXED32);
      into.push(reader.float32());
      return;
    }
    const bytes = reader.view();
    if (bytes.length % 4 !== 0) fail('a list of floats has a part of one');
    const data = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    for (let at = 0; at < bytes.length; at += 4) {
      this.#count();
      into.push(data.getFloat32(at, true));
    }
  }

  #doubles(reader: WireReader, into: number[]): void {
    if (reader.wireType === WIRE_BYTES) {
      reader.skip();
      return;
    }
    reader.expect(FIXED64);
    const at = reader.position;
    reader.skip();
    const { bytes } = reader;
    into.push(new DataView(bytes.buffer, bytes.byteOffset + at, 8).getFloat64(0, true));
  }

  /** Calls for every field; `raw` gives its bytes, once its value was read or skipped. */
  #each(bytes: Uint8Array, onField: OnField): void {
    const reader = new WireReader(bytes);
    while (reader.next()) {
      this.#count();
      const { field, fieldStart } = reader;
      const valueStart = reader.position;
      const raw = (): RawField => {
        if (reader.position === valueStart) reader.skip();
        return { field, bytes: bytes.subarray(fieldStart, reader.position) };
      };
      onField(reader, raw);
    }
  }

  #count(): void {
    if (++this.#items > ITEM_COUNT_MAX) fail(`it has more than ${ITEM_COUNT_MAX} parts`);
  }
}

function view(reader: WireReader): Uint8Array {
  reader.expect(WIRE_BYTES);
  return reader.view();
}

function integer(reader: WireReader): number {
  reader.expect(WIRE_VARINT);
  return Number(reader.int64());
}

function bool(reader: WireReader): boolean {
  reader.expect(WIRE_VARINT);
  return reader.bool();
}

/** A name, which must be written back as it was. */
function text(reader: WireReader): string {
  try {
    return decoder.decode(view(reader));
  } catch (error) {
    if (error instanceof CubeError) throw error;
    fail('a name is not UTF-8');
  }
}

/** A string that is not a name: call stacks and the like may be anything. */
function loose(reader: WireReader): string {
  reader.expect(WIRE_BYTES);
  return reader.string();
}
