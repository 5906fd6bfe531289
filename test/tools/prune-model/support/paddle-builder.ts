/**
 * Builds small Paddle programs and their parameters byte by byte, independently of the reader and
 * writer under test.
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { WireWriter } from '../../../../proto/wire.ts';

export const INT32 = 2;
export const INT64 = 3;
export const FP16 = 4;
export const FP32 = 5;
export const FP64 = 6;
const LOD_TENSOR = 7;
const SELECTED_ROWS = 8;
const FEED_MINIBATCH = 9;
const FETCH_LIST = 10;

type Bytes = Uint8Array;

export interface VariableOptions {
  readonly name: string;
  readonly dims: readonly number[];
  readonly type?: number;
  readonly lodLevel?: number;
  readonly persistable?: boolean;
  readonly isSelectedRows?: boolean;
  readonly isCheckedFeed?: boolean;
  /** Bytes of further fields, as they should stay. */
  readonly extra?: Bytes;
}

function signed(writer: WireWriter, field: number, value: number): void {
  writer.uint(field, BigInt(value));
}

function tensorDesc(type: number, dims: readonly number[]): Bytes {
  const writer = new WireWriter().uint(1, type);
  for (const dim of dims) signed(writer, 2, dim);
  return writer.finish().slice();
}

export function variable(options: VariableOptions): Bytes {
  const { name, dims, type = FP32, lodLevel = 0, persistable = false } = options;
  const kind = new WireWriter();
  if (options.isSelectedRows) kind.uint(1, SELECTED_ROWS).bytes(2, tensorDesc(type, dims));
  else {
    kind.uint(1, LOD_TENSOR).message(3, (lod) => {
      lod.bytes(1, tensorDesc(type, dims));
      if (lodLevel > 0) lod.uint(2, lodLevel);
    });
  }
  const writer = new WireWriter().string(1, name).bytes(2, kind.finish());
  writer.uint(3, Number(persistable));
  if (options.isCheckedFeed !== undefined) writer.uint(4, Number(options.isCheckedFeed));
  if (options.extra !== undefined) writer.raw(options.extra);
  return writer.finish().slice();
}

function holder(name: string, kind: number): Bytes {
  const writer = new WireWriter().string(1, name).message(2, (type) => type.uint(1, kind));
  return writer.uint(3, 1).finish().slice();
}

/** A number is INT or FLOAT by its form; `long`, `block` and `bool` say so. */
export type AttributeValue =
  | number
  | string
  | boolean
  | readonly number[]
  | { readonly float: number }
  | { readonly long: number }
  | { readonly block: number }
  | { readonly variable: string };

function attribute(name: string, value: AttributeValue): Bytes {
  const writer = new WireWriter().string(1, name);
  const float = (number: number): Bytes => new Uint8Array(Float32Array.of(number).buffer);
  if (typeof value === 'number') {
    writer.uint(2, 0);
    signed(writer, 3, value);
  } else if (typeof value === 'string') writer.uint(2, 2).string(5, value);
  else if (typeof value === 'boolean') writer.uint(2, 6).uint(10, Number(value));
  else if ('float' in value) writer.uint(2, 1).tag(4, 5).raw(float(value.float));
  else if ('long' in value) {
    writer.uint(2, 9);
    signed(writer, 13, value.long);
  } else if ('variable' in value) writer.uint(2, 13).string(17, value.variable);
  else if ('block' in value) writer.uint(2, 8).uint(12, value.block);
  else {
    writer.uint(2, 3);
    for (const item of value) signed(writer, 6, item);
  }
  return writer.finish().slice();
}

export type Names = Readonly<Record<string, string | readonly string[]>>;

export function op(
  type: string,
  inputs: Names,
  outputs: Names,
  attrs: Readonly<Record<string, AttributeValue>> = {},
): Bytes {
  const writer = new WireWriter();
  const side = (field: number, names: Names): void => {
    for (const [parameter, value] of Object.entries(names)) {
      writer.message(field, (inner) => {
        inner.string(1, parameter);
        for (const name of [value].flat()) inner.string(2, name as string);
      });
    }
  };
  side(1, inputs);
  side(2, outputs);
  writer.string(3, type);
  for (const [name, value] of Object.entries(attrs)) writer.bytes(4, attribute(name, value));
  return writer.finish().slice();
}

export const feedOp = (name: string, col: number): Bytes =>
  op('feed', { X: 'feed' }, { Out: name }, { col });
export const fetchOp = (name: string, col: number): Bytes =>
  op('fetch', { X: name }, { Out: 'fetch' }, { col });

export interface BlockOptions {
  readonly vars: readonly Bytes[];
  readonly ops: readonly Bytes[];
  readonly parent?: number;
}

/** @param version 0 for Paddle 1.x; 2.x has a map of operator versions too */
export function program(blocks: readonly BlockOptions[], version = 0, extra?: Bytes): Bytes {
  const writer = new WireWriter();
  blocks.forEach(({ vars, ops, parent = -1 }, index) => {
    writer.message(1, (block) => {
      block.uint(1, index);
      signed(block, 2, parent);
      for (const bytes of vars) block.bytes(3, bytes);
      for (const bytes of ops) block.bytes(4, bytes);
      if (version > 0) signed(block, 5, -1);
    });
  });
  writer.message(4, (inner) => inner.uint(1, version));
  if (version > 0) {
    writer.message(5, (map) =>
      map.message(1, (pair) => {
        pair.string(1, 'leaky_relu').message(2, (v) => v.uint(1, 1));
      }),
    );
  }
  if (extra !== undefined) writer.raw(extra);
  return writer.finish().slice();
}

export const holders: readonly Bytes[] = [
  holder('feed', FEED_MINIBATCH),
  holder('fetch', FETCH_LIST),
];

export interface ParameterContent {
  readonly dims: readonly number[];
  readonly values: ArrayLike<number>;
  readonly type?: number;
  /** SelectedRows; the newer form has a LoDTensor behind the height. */
  readonly keys?: readonly number[];
  readonly isNewer?: boolean;
}

function words(...values: readonly (readonly ['u32' | 'i64', number])[]): Bytes {
  const writer = new WireWriter();
  for (const [kind, value] of values) {
    const bytes = new Uint8Array(kind === 'u32' ? 4 : 8);
    const view = new DataView(bytes.buffer);
    if (kind === 'u32') view.setUint32(0, value, true);
    else view.setBigInt64(0, BigInt(value), true);
    writer.raw(bytes);
  }
  return writer.finish().slice();
}

function elements(type: number, values: readonly number[]): Bytes {
  if (type === INT64) return new Uint8Array(BigInt64Array.from(values, BigInt).buffer);
  if (type === INT32) return new Uint8Array(Int32Array.from(values).buffer);
  if (type === FP64) return new Uint8Array(Float64Array.from(values).buffer);
  return new Uint8Array(Float32Array.from(values).buffer);
}

export function stream({ dims, values, type = FP32, keys, isNewer }: ParameterContent): Bytes {
  const desc = tensorDesc(type, dims);
  const data = elements(type, Array.from(values));
  const writer = new WireWriter();
  if (keys === undefined) writer.raw(words(['u32', 0], ['i64', 0]));
  else {
    writer.raw(words(['u32', 0], ['i64', keys.length]));
    for (const key of keys) writer.raw(words(['i64', key]));
    writer.raw(words(['i64', keys.length]));
    if (isNewer) writer.raw(words(['u32', 0], ['i64', 0]));
  }
  writer
    .raw(words(['u32', 0], ['u32', desc.length]))
    .raw(desc)
    .raw(data);
  return writer.finish().slice();
}

export interface ModelFiles {
  readonly program: Bytes;
  readonly params: Readonly<Record<string, ParameterContent>>;
}

/** One file for each variable, or all in `__params__` in the order of their names' bytes. */
export function writeModel(
  folder: string,
  { program: bytes, params }: ModelFiles,
  layout: 'separate' | 'combined' | 'pdmodel' = 'separate',
): string {
  mkdirSync(folder, { recursive: true });
  const isNamed = layout === 'pdmodel';
  const model = join(folder, isNamed ? 'ctr.pdmodel' : '__model__');
  writeFileSync(model, bytes);
  if (layout === 'separate') {
    for (const [name, options] of Object.entries(params)) {
      mkdirSync(dirname(join(folder, name)), { recursive: true });
      writeFileSync(join(folder, name), stream(options));
    }
    return model;
  }
  const names = Object.keys(params).sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
  const file = join(folder, isNamed ? 'ctr.pdiparams' : '__params__');
  writeFileSync(file, Buffer.concat(names.map((name) => stream(params[name]!))));
  return model;
}

/** Numbers that look random and are the same every time. */
export function wave(count: number, seed: number, scale = 1): Float32Array {
  return Float32Array.from(
    { length: count },
    (_, i) => Math.sin(i * 12.9898 + seed * 78.233) * scale,
  );
}

export interface ModelOptions {
  /** Inputs, parameters and what is made, in one list. */
  readonly vars: readonly VariableOptions[];
  readonly feeds: readonly string[];
  readonly fetches: readonly string[];
  readonly ops: readonly Bytes[];
  readonly blocks?: readonly BlockOptions[];
  /** Other than a wave of the declared dims. */
  readonly params?: Readonly<Record<string, ParameterContent>>;
  readonly version?: number;
}

/** A model with feed and fetch operators around; parameters that nobody gives are waves. */
export function buildModel(options: ModelOptions): ModelFiles {
  const { vars, feeds, fetches, ops, blocks = [], version = 0 } = options;
  const made = vars
    .filter(({ persistable }) => persistable === true)
    .map(({ name, dims }, i): [string, ParameterContent] => {
      const count = dims.reduce((product, dim) => product * dim, 1);
      return [name, { dims, values: wave(count, i + 1) }];
    });
  const main = {
    vars: [...holders, ...vars.map(variable)],
    ops: [...feeds.map(feedOp).reverse(), ...ops, ...fetches.map(fetchOp)],
  };
  const params = { ...Object.fromEntries(made), ...options.params };
  return { program: program([main, ...blocks], version), params };
}
