/**
 * The configuration files that Paddle Serving keeps next to a model
 * (`serving_server_conf.prototxt`, `serving_client_conf.prototxt`): the variables to feed and to
 * fetch. A pruned model gets new ones with its feeds and the existing fetches.
 */
import { join } from 'node:path';
import { CubeError } from '../../../lib/core/errors.ts';
import { fileExists, readText } from '../../../lib/platform/files.ts';
import { WireWriter } from '../../../proto/wire.ts';
import { TYPE_FP32, TYPE_INT32, TYPE_INT64, type Variable } from './program.ts';
import { quoteBytes } from './program-text.ts';

const CONF_NAMES = ['serving_server_conf', 'serving_client_conf'] as const;
const CONF_BYTES_MAX = 16 << 20;

/** A feed_var or fetch_var: `name: value` fields in order. */
interface ConfVar {
  readonly kind: 'feed_var' | 'fetch_var';
  readonly fields: readonly (readonly [string, string])[];
}

/** @returns the existing files with new content. @throws CubeError CORRUPT */
export function buildServingConfs(
  folder: string,
  inputs: readonly Variable[],
  outputs: readonly Variable[],
): Map<string, Uint8Array> {
  const files = new Map<string, Uint8Array>();
  for (const name of CONF_NAMES) {
    const path = join(folder, `${name}.prototxt`);
    if (!fileExists(path)) continue;
    const old = parseConf(readText(path, CONF_BYTES_MAX), path);
    const vars = [
      ...inputs.map(
        (input) => findConfVar(old, 'feed_var', input) ?? createConfVar('feed_var', input),
      ),
      ...outputs.map(
        (output) => findConfVar(old, 'fetch_var', output) ?? createConfVar('fetch_var', output),
      ),
    ];
    files.set(`${name}.prototxt`, new TextEncoder().encode(vars.map(formatConfVar).join('')));
    if (!fileExists(join(folder, `${name}.stream.prototxt`))) continue;
    const writer = new WireWriter();
    for (const item of vars) writer.bytes(item.kind === 'feed_var' ? 1 : 2, encodeConfVar(item));
    files.set(`${name}.stream.prototxt`, writer.finish());
  }
  return files;
}

function findConfVar(
  old: readonly ConfVar[],
  kind: ConfVar['kind'],
  { name }: Variable,
): ConfVar | undefined {
  return old.find((item) => item.kind === kind && getFieldText(item, 'name') === name);
}

function getFieldText({ fields }: ConfVar, name: string): string | undefined {
  const text = fields.find(([field]) => field === name)?.[1];
  return text === undefined ? undefined : unquote(text);
}

const FEED_TYPES: Readonly<Record<number, number>> = {
  [TYPE_INT64]: 0,
  [TYPE_FP32]: 1,
  [TYPE_INT32]: 2,
};

function createConfVar(kind: ConfVar['kind'], variable: Variable): ConfVar {
  const { name, lodLevel, elementType, dims } = variable;
  const quoted = quoteBytes(new TextEncoder().encode(name));
  const isSequence = lodLevel > 0;
  const shape = isSequence ? [-1] : dims.filter((dim) => dim >= 0);
  const type = kind === 'feed_var' ? 'feed_type' : 'fetch_type';
  return {
    kind,
    fields: [
      ['name', quoted],
      ['alias_name', quoted],
      ['is_lod_tensor', String(isSequence)],
      [type, String(FEED_TYPES[elementType] ?? 1)],
      ...shape.map((dim) => ['shape', String(dim)] as const),
    ],
  };
}

function formatConfVar({ kind, fields }: ConfVar): string {
  const lines = fields.map(([name, value]) => `  ${name}: ${value}\n`);
  return `${kind} {\n${lines.join('')}}\n`;
}

const FIELD_NUMBERS: Readonly<Record<string, number>> = {
  name: 1,
  alias_name: 2,
  is_lod_tensor: 3,
  feed_type: 4,
  fetch_type: 4,
  shape: 5,
};

function encodeConfVar({ fields }: ConfVar): Uint8Array {
  const writer = new WireWriter();
  for (const [name, text] of fields) {
    const field = FIELD_NUMBERS[name];
    if (field === undefined) continue;
    if (field <= 2) writer.string(field, unquote(text));
    else if (field === 3) writer.uint(field, Number(text === 'true'));
    else writer.uint(field, BigInt(text));
  }
  return writer.finish();
}

const TOKEN =
  /\s*(?:#[^\n]*\n\s*)*(?:([\w.+-]+)|("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|([{}:;,]))/y;

/** Parses the part of protobuf's text format that these files use. */
function parseConf(text: string, path: string): ConfVar[] {
  const tokens: string[] = [];
  const end = text.replace(/\s*(#[^\n]*\s*)*$/, '').length;
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < end) {
    const at = TOKEN.lastIndex;
    const match = TOKEN.exec(text);
    if (match === null) throw invalidConf(path, `unexpected text at character ${at}`);
    tokens.push(match[0].trim().replace(/^(#[^\n]*\n\s*)*/, ''));
  }
  const vars: ConfVar[] = [];
  let at = 0;
  const take = (expected?: string): string => {
    const token = tokens[at++];
    if (token === undefined || (expected !== undefined && token !== expected)) {
      throw invalidConf(
        path,
        `expected ${expected ?? 'a field'}, found ${token ?? 'the end of the file'}`,
      );
    }
    return token;
  };
  while (at < tokens.length) {
    const kind = take();
    if (kind !== 'feed_var' && kind !== 'fetch_var')
      throw invalidConf(path, `unknown field ${kind}`);
    if (tokens[at] === ':') at++;
    take('{');
    const fields: [string, string][] = [];
    while (tokens[at] !== '}') {
      const name = take();
      take(':');
      fields.push([name, take()]);
      if (tokens[at] === ',' || tokens[at] === ';') at++;
    }
    take('}');
    for (const [name, value] of fields) {
      if (/^(feed_type|fetch_type|shape)$/.test(name) && !/^-?\d{1,18}$/.test(value)) {
        throw invalidConf(path, `${name} is ${value}, expected an integer`);
      }
    }
    vars.push({ kind, fields });
  }
  return vars;
}

function unquote(text: string): string {
  const bytes: number[] = [];
  const body = /^["']/.test(text) ? text.slice(1, -1) : text;
  const piece = /\\([0-7]{1,3})|\\(.)|([^\\]+)/gsu;
  const escapes: Readonly<Record<string, number>> = { n: 10, t: 9, r: 13 };
  for (const [, octal, escaped, plain] of body.matchAll(piece)) {
    if (octal !== undefined) bytes.push(Number.parseInt(octal, 8) & 0xff);
    else if (escaped !== undefined) {
      bytes.push(escapes[escaped] ?? (escaped.codePointAt(0) ?? 0) & 0xff);
    } else bytes.push(...new TextEncoder().encode(plain));
  }
  return new TextDecoder().decode(Uint8Array.from(bytes));
}

function invalidConf(path: string, what: string): CubeError {
  return new CubeError('CORRUPT', `${path} is not a Paddle Serving configuration: ${what}`);
}
