/** Formats a program as protobuf text, for people and for tools that compare. */
import { CubeError } from '../../../lib/core/errors.ts';
import { WIRE_BYTES, WIRE_FIXED32, WIRE_VARINT, WireReader } from '../../../proto/wire.ts';
import { TYPE_NAMES } from './program.ts';

type Kind = 'int' | 'bool' | 'float' | 'string' | 'double' | Readonly<Record<number, string>>;
interface Field {
  readonly name: string;
  readonly kind: Kind | Message;
}
interface Message {
  readonly fields: Readonly<Record<number, Field>>;
}

function message(fields: Readonly<Record<number, readonly [string, Kind | Message]>>): Message {
  const entries = Object.entries(fields).map(([field, [name, kind]]) => [field, { name, kind }]);
  return { fields: Object.fromEntries(entries) };
}

const ATTR_TYPES = {
  0: 'INT',
  1: 'FLOAT',
  2: 'STRING',
  3: 'INTS',
  4: 'FLOATS',
  5: 'STRINGS',
  6: 'BOOLEAN',
  7: 'BOOLEANS',
  8: 'BLOCK',
  9: 'LONG',
  10: 'BLOCKS',
  11: 'LONGS',
  12: 'FLOAT64S',
  13: 'VAR',
  14: 'VARS',
  15: 'FLOAT64',
};
const TENSOR = message({ 1: ['data_type', TYPE_NAMES], 2: ['dims', 'int'] });
const LOD_TENSOR = message({ 1: ['tensor', TENSOR], 2: ['lod_level', 'int'] });
const VAR_TYPE = message({
  1: ['type', TYPE_NAMES],
  2: ['selected_rows', TENSOR],
  3: ['lod_tensor', LOD_TENSOR],
  4: ['tensor_array', LOD_TENSOR],
  5: ['reader', message({ 1: ['lod_tensor', LOD_TENSOR] })],
  7: ['tuple', message({ 1: ['element_type', TYPE_NAMES] })],
});
const ARGUMENTS = message({ 1: ['parameter', 'string'], 2: ['arguments', 'string'] });
const ATTRIBUTE = message({
  1: ['name', 'string'],
  2: ['type', ATTR_TYPES],
  3: ['i', 'int'],
  4: ['f', 'float'],
  5: ['s', 'string'],
  6: ['ints', 'int'],
  7: ['floats', 'float'],
  8: ['strings', 'string'],
  10: ['b', 'bool'],
  11: ['bools', 'bool'],
  12: ['block_idx', 'int'],
  13: ['l', 'int'],
  14: ['blocks_idx', 'int'],
  15: ['longs', 'int'],
  16: ['float64s', 'double'],
  17: ['var_name', 'string'],
  18: ['vars_name', 'string'],
  19: ['float64', 'double'],
});
const OPERATOR = message({
  1: ['inputs', ARGUMENTS],
  2: ['outputs', ARGUMENTS],
  3: ['type', 'string'],
  4: ['attrs', ATTRIBUTE],
  5: ['is_target', 'bool'],
});
const VARIABLE = message({
  1: ['name', 'string'],
  2: ['type', VAR_TYPE],
  3: ['persistable', 'bool'],
  4: ['need_check_feed', 'bool'],
  5: ['is_parameter', 'bool'],
  6: ['stop_gradient', 'bool'],
});
const BLOCK = message({
  1: ['idx', 'int'],
  2: ['parent_idx', 'int'],
  3: ['vars', VARIABLE],
  4: ['ops', OPERATOR],
  5: ['forward_block_idx', 'int'],
});
const VERSION = message({ 1: ['version', 'int'] });
const OP_VERSION = message({ 1: ['op_name', 'string'], 2: ['op_version', VERSION] });
const PROGRAM = message({
  1: ['blocks', BLOCK],
  4: ['version', VERSION],
  5: ['op_version_map', message({ 1: ['pair', OP_VERSION] })],
});

/**
 * @param bytes a program that was read before; unknown fields are printed by number
 * @throws CubeError CORRUPT when a message that no other step reads is damaged
 */
export function formatProgram(bytes: Uint8Array): string {
  const lines: string[] = [];
  try {
    printMessage(new WireReader(bytes), PROGRAM, '', lines);
  } catch (error) {
    const { message: reason } = CubeError.from(error);
    throw new CubeError('CORRUPT', `not a valid Paddle program: ${reason}`, { cause: error });
  }
  return `${lines.join('\n')}\n`;
}

/** Prints fields in the order of their numbers, as protobuf's own printers do. */
function printMessage(reader: WireReader, known: Message, indent: string, lines: string[]): void {
  const parts: { field: number; lines: string[] }[] = [];
  while (reader.next()) {
    const printed: string[] = [];
    const { field } = reader;
    printField(reader, known.fields[field], indent, printed);
    parts.push({ field, lines: printed });
  }
  parts.sort((a, b) => a.field - b.field);
  for (const part of parts) for (const line of part.lines) lines.push(line);
}

function printField(
  reader: WireReader,
  known: Field | undefined,
  indent: string,
  lines: string[],
): void {
  const name = known?.name ?? String(reader.field);
  const kind = known?.kind;
  if (reader.wireType === WIRE_BYTES && typeof kind === 'object' && 'fields' in kind) {
    lines.push(`${indent}${name} {`);
    printMessage(reader.message(), kind as Message, `${indent}  `, lines);
    lines.push(`${indent}}`);
    return;
  }
  if (reader.wireType === WIRE_BYTES && kind !== 'string' && kind !== undefined) {
    for (const value of formatPacked(reader.message(), kind))
      lines.push(`${indent}${name}: ${value}`);
    return;
  }
  lines.push(`${indent}${name}: ${formatScalar(reader, kind)}`);
}

function formatScalar(reader: WireReader, kind: Kind | Message | undefined): string {
  if (reader.wireType === WIRE_BYTES) return quoteBytes(reader.view());
  if (reader.wireType === WIRE_FIXED32) return formatFloat(reader.float32());
  if (reader.wireType === WIRE_VARINT) return formatVarint(reader.int64(), kind);
  const at = reader.position;
  reader.skip();
  const { buffer, byteOffset } = reader.bytes;
  return String(new DataView(buffer, byteOffset + at, 8).getFloat64(0, true));
}

function formatVarint(value: bigint, kind: Kind | Message | undefined): string {
  if (kind === 'bool') return String(value !== 0n);
  if (typeof kind === 'object') {
    return (kind as Readonly<Record<number, string>>)[Number(value)] ?? String(value);
  }
  return String(value);
}

function formatPacked(reader: WireReader, kind: Kind | Message): string[] {
  const values: string[] = [];
  while (reader.position < reader.end) {
    values.push(
      kind === 'float' ? formatFloat(reader.float32()) : formatVarint(reader.int64(), kind),
    );
  }
  return values;
}

/** The fewest digits that give the same float32. */
function formatFloat(value: number): string {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? 'nan' : value > 0 ? 'inf' : '-inf';
  for (let digits = 6; digits < 9; digits++) {
    const short = Number(value.toPrecision(digits));
    if (Math.fround(short) === value) return formatDecimal(short);
  }
  return formatDecimal(Number(value.toPrecision(9)));
}

function formatDecimal(value: number): string {
  const text = String(value);
  return /[.e]/.test(text) ? text : `${text}.0`;
}

const ESCAPES: Readonly<Record<number, string>> = {
  9: '\\t',
  10: '\\n',
  13: '\\r',
  34: '\\"',
  39: "\\'",
  92: '\\\\',
};

export function quoteBytes(bytes: Uint8Array): string {
  const pieces: string[] = [];
  for (const byte of bytes) {
    const isPlain = byte >= 0x20 && byte < 0x7f;
    const escaped = ESCAPES[byte];
    if (escaped !== undefined) pieces.push(escaped);
    else if (isPlain) pieces.push(String.fromCharCode(byte));
    else pieces.push(`\\${byte.toString(8).padStart(3, '0')}`);
  }
  return `"${pieces.join('')}"`;
}
