/** Writes a program whose main block was cut: what is kept byte for byte, feeds renumbered, new ones in front. */
import { WIRE_VARINT, WireReader, WireWriter } from '../../../proto/wire.ts';
import {
  BLOCK_OP,
  BLOCK_VAR,
  type Block,
  OP_ATTR,
  type Op,
  PROGRAM_BLOCK,
  type Program,
  type RawField,
  TYPE_FEED,
  TYPE_FETCH,
} from './program.ts';

const ATTR_INT = 0;
const ATTR_BOOLEAN = 6;

function encodeFields(fields: readonly RawField[]): Uint8Array {
  const writer = new WireWriter();
  for (const { bytes } of fields) writer.raw(bytes);
  return writer.finish();
}

/** The program with another main block. */
export function withMainBlock(program: Program, fields: readonly RawField[]): Uint8Array {
  let isMain = true;
  const replaced = program.fields.map((raw): RawField => {
    if (raw.field !== PROGRAM_BLOCK || !isMain) return raw;
    isMain = false;
    return messageField(PROGRAM_BLOCK, encodeFields(fields));
  });
  return encodeFields(replaced);
}

function messageField(field: number, body: Uint8Array): RawField {
  return { field, bytes: new WireWriter(body.length + 10).bytes(field, body).finish() };
}

/** A feed or fetch operator. */
export function columnOp(
  type: 'feed' | 'fetch',
  { holder, name, column }: { holder: string; name: string; column: number },
): RawField {
  const [x, out] = type === 'feed' ? [holder, name] : [name, holder];
  const body = new WireWriter()
    .message(1, (input) => input.string(1, 'X').string(2, x))
    .message(2, (output) => output.string(1, 'Out').string(2, out))
    .string(3, type)
    .bytes(OP_ATTR, integerAttribute('col', column))
    .finish();
  return messageField(BLOCK_OP, body);
}

/** The variable that feeds or fetches go through. */
export function holderVariable(type: 'feed' | 'fetch'): RawField {
  const body = new WireWriter()
    .string(1, type)
    .message(2, (kind) => kind.uint(1, type === 'feed' ? TYPE_FEED : TYPE_FETCH))
    .uint(3, 1)
    .finish();
  return messageField(BLOCK_VAR, body);
}

function integerAttribute(name: string, value: number): Uint8Array {
  return new WireWriter().string(1, name).uint(2, ATTR_INT).uint(3, value).finish();
}

/** The same operator in another column. */
export function withColumn(op: Op, column: number): RawField {
  if (op.attrs.get('col')?.numbers[0] === column) return op.raw;
  return withAttribute(op, 'col', integerAttribute('col', column));
}

function withAttribute(op: Op, name: string, attribute: Uint8Array): RawField {
  const old = op.attrs.get(name)?.raw.bytes;
  const fields = fieldsOf(op.raw).map((raw) =>
    old !== undefined && raw.field === OP_ATTR && isSame(raw.bytes, old)
      ? messageField(OP_ATTR, attribute)
      : raw,
  );
  return messageField(op.raw.field, encodeFields(fields));
}

function isSame(a: Uint8Array, b: Uint8Array): boolean {
  return a.byteOffset === b.byteOffset && a.length === b.length;
}

/** The fields of a message that is itself a field. */
function fieldsOf(raw: RawField): RawField[] {
  const outer = new WireReader(raw.bytes);
  outer.next();
  const reader = new WireReader(outer.view());
  const fields: RawField[] = [];
  while (reader.next()) {
    reader.skip();
    const bytes = reader.bytes.subarray(reader.fieldStart, reader.position);
    fields.push({ field: reader.field, bytes });
  }
  return fields;
}

const NEED_CHECK_FEED = 4;

/** Whether a variable is marked as one whose fed value is checked. */
export function isCheckedFeed(raw: RawField): boolean {
  return fieldsOf(raw).some(({ field, bytes }) => field === NEED_CHECK_FEED && bytes.at(-1) === 1);
}

export function asCheckedFeed(raw: RawField): RawField {
  const mark = new WireWriter().tag(NEED_CHECK_FEED, WIRE_VARINT).varint(1).finish();
  const rest = fieldsOf(raw).filter(({ field }) => field !== NEED_CHECK_FEED);
  return messageField(raw.field, encodeFields([...rest, { field: NEED_CHECK_FEED, bytes: mark }]));
}

/** Operators that behave differently in training, as they behave when a model answers: what a clone for tests does. */
export function inInferenceForm(program: Program): Program {
  const blocks = program.blocks.map(blockInInferenceForm);
  if (blocks.every((block, i) => block === program.blocks[i])) return program;
  let position = 0;
  const fields = program.fields.map((raw) => {
    if (raw.field !== PROGRAM_BLOCK) return raw;
    const block = blocks[position]!;
    const isSameBlock = block === program.blocks[position++];
    return isSameBlock ? raw : messageField(PROGRAM_BLOCK, encodeFields(block.fields));
  });
  return { fields, blocks };
}

function blockInInferenceForm(block: Block): Block {
  const replaced = new Map<RawField, Op>();
  for (const op of block.ops) {
    if (op.attrs.get('is_test')?.numbers[0] !== 0) continue;
    const attribute = new WireWriter().string(1, 'is_test').uint(2, ATTR_BOOLEAN).uint(10, 1);
    const raw = withAttribute(op, 'is_test', attribute.finish());
    const isTest = { ...op.attrs.get('is_test')!, numbers: [1] };
    replaced.set(op.raw, { ...op, raw, attrs: new Map([...op.attrs, ['is_test', isTest]]) });
  }
  if (replaced.size === 0) return block;
  return {
    vars: block.vars,
    ops: block.ops.map((op) => replaced.get(op.raw) ?? op),
    fields: block.fields.map((raw) => replaced.get(raw)?.raw ?? raw),
  };
}
