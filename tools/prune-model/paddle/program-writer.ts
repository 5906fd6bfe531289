/** Writes a pruned program: kept messages byte for byte, feeds renumbered, new feeds first. */
import { requireDefined } from '../../../lib/core/errors.ts';
import { WIRE_VARINT, WireWriter } from '../../../proto/wire.ts';
import {
  encodeMessageField,
  isSameView,
  type RawField,
  readMessageField,
  splitFields,
} from '../cut/protobuf-fields.ts';
import {
  BLOCK_OP,
  BLOCK_VAR,
  type Block,
  OP_ATTR,
  type Op,
  PROGRAM_BLOCK,
  type Program,
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

/** Replaces the fields of the main block. */
export function replaceMainBlock(program: Program, fields: readonly RawField[]): Uint8Array {
  let isMain = true;
  const replaced = program.fields.map((raw): RawField => {
    if (raw.field !== PROGRAM_BLOCK || !isMain) return raw;
    isMain = false;
    return encodeMessageField(PROGRAM_BLOCK, encodeFields(fields));
  });
  return encodeFields(replaced);
}

/** Encodes a feed or fetch operator. */
export function encodeColumnOp(
  type: 'feed' | 'fetch',
  { holder, name, column }: { holder: string; name: string; column: number },
): RawField {
  const [x, out] = type === 'feed' ? [holder, name] : [name, holder];
  const body = new WireWriter()
    .message(1, (input) => input.string(1, 'X').string(2, x))
    .message(2, (output) => output.string(1, 'Out').string(2, out))
    .string(3, type)
    .bytes(OP_ATTR, encodeIntegerAttribute('col', column))
    .finish();
  return encodeMessageField(BLOCK_OP, body);
}

/** Encodes the variable that holds all feeds or all fetches. */
export function encodeHolderVariable(type: 'feed' | 'fetch'): RawField {
  const body = new WireWriter()
    .string(1, type)
    .message(2, (kind) => kind.uint(1, type === 'feed' ? TYPE_FEED : TYPE_FETCH))
    .uint(3, 1)
    .finish();
  return encodeMessageField(BLOCK_VAR, body);
}

function encodeIntegerAttribute(name: string, value: number): Uint8Array {
  return new WireWriter().string(1, name).uint(2, ATTR_INT).uint(3, value).finish();
}

/** The operator with another column. */
export function setColumn(op: Op, column: number): RawField {
  if (op.attrs.get('col')?.numbers[0] === column) return op.raw;
  return setAttribute(op, 'col', encodeIntegerAttribute('col', column));
}

function setAttribute(op: Op, name: string, attribute: Uint8Array): RawField {
  const old = op.attrs.get(name)?.raw.bytes;
  const fields = splitFields(readMessageField(op.raw.bytes)).map((raw) =>
    old !== undefined && raw.field === OP_ATTR && isSameView(raw.bytes, old)
      ? encodeMessageField(OP_ATTR, attribute)
      : raw,
  );
  return encodeMessageField(op.raw.field, encodeFields(fields));
}

const NEED_CHECK_FEED = 4;

/** Whether Paddle checks the fed value of a variable (need_check_feed). */
export function needsFeedCheck(raw: RawField): boolean {
  return splitFields(readMessageField(raw.bytes)).some(
    ({ field, bytes }) => field === NEED_CHECK_FEED && bytes.at(-1) === 1,
  );
}

export function markFeedCheck(raw: RawField): RawField {
  const mark = new WireWriter().tag(NEED_CHECK_FEED, WIRE_VARINT).varint(1).finish();
  const rest = splitFields(readMessageField(raw.bytes)).filter(
    ({ field }) => field !== NEED_CHECK_FEED,
  );
  return encodeMessageField(
    raw.field,
    encodeFields([...rest, { field: NEED_CHECK_FEED, bytes: mark }]),
  );
}

/** Sets is_test on every operator, as Program.clone(for_test=True) does. */
export function toInferenceProgram(program: Program): Program {
  const blocks = program.blocks.map(toInferenceBlock);
  if (blocks.every((block, i) => block === program.blocks[i])) return program;
  let position = 0;
  const fields = program.fields.map((raw) => {
    if (raw.field !== PROGRAM_BLOCK) return raw;
    const block = requireDefined(blocks[position], 'a block');
    const isSameBlock = block === program.blocks[position++];
    return isSameBlock ? raw : encodeMessageField(PROGRAM_BLOCK, encodeFields(block.fields));
  });
  return { fields, blocks, main: blocks[0] ?? program.main };
}

function toInferenceBlock(block: Block): Block {
  const replaced = new Map<RawField, Op>();
  for (const op of block.ops) {
    const given = op.attrs.get('is_test');
    if (given?.numbers[0] !== 0) continue;
    const attribute = new WireWriter().string(1, 'is_test').uint(2, ATTR_BOOLEAN).uint(10, 1);
    const raw = setAttribute(op, 'is_test', attribute.finish());
    const isTest = { ...given, numbers: [1] };
    replaced.set(op.raw, { ...op, raw, attrs: new Map([...op.attrs, ['is_test', isTest]]) });
  }
  if (replaced.size === 0) return block;
  return {
    vars: block.vars,
    ops: block.ops.map((op) => replaced.get(op.raw) ?? op),
    fields: block.fields.map((raw) => replaced.get(raw)?.raw ?? raw),
  };
}
