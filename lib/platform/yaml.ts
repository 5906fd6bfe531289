/**
 * Reads YAML documents. Errors name file, line, column and path of the wrong value. The library is
 * loaded with the first document, because most commands read none.
 */

import { createRequire } from 'node:module';
import type * as Yaml from 'yaml';
import type { Document, LineCounter } from 'yaml';
import { CubeError } from '../core/errors.ts';
import { suggestNames } from '../core/nearest-name.ts';

let library: typeof Yaml | undefined;

export function loadYaml(): typeof Yaml {
  library ??= createRequire(import.meta.url)('yaml') as typeof Yaml;
  return library;
}

const ITEMS_MAX = 10_000;

interface Source {
  readonly name: string;
  readonly lines: LineCounter;
  readonly document: Document;
}

/** @throws CubeError INVALID_ARGUMENT when it is not YAML */
export function parseYaml(text: string, name: string): YamlNode {
  const lines = new (loadYaml().LineCounter)();
  const document = loadYaml().parseDocument(text, { lineCounter: lines, prettyErrors: false });
  const [error] = [...document.errors, ...document.warnings];
  const source = { name, lines, document };
  if (error !== undefined) fail(source, error.pos[0], '', error.message);
  return new YamlNode(document.contents, '', source, 0);
}

function fail(source: Source, offset: number, path: string, text: string): never {
  const { line, col } = source.lines.linePos(offset);
  const place = path === '' ? '' : `${path}: `;
  throw new CubeError('INVALID_ARGUMENT', `${source.name}:${line}:${col}: ${place}${text}`);
}

export class YamlNode {
  readonly #node: unknown;
  readonly #path: string;
  readonly #source: Source;
  readonly #offset: number;

  /** @param offset position of the enclosing node, for nodes without a position of their own */
  constructor(node: unknown, path: string, source: Source, offset: number) {
    const { document } = source;
    const resolved = loadYaml().isAlias(node) ? node.resolve(document) : node;
    const range = (node as { range?: readonly number[] } | null)?.range;
    this.#node = resolved;
    this.#path = path;
    this.#source = source;
    this.#offset = range?.[0] ?? offset;
  }

  fail(text: string): never {
    return fail(this.#source, this.#offset, this.#path, text);
  }

  /** File, line and column of the value. */
  get location(): string {
    const { line, col } = this.#source.lines.linePos(this.#offset);
    return `${this.#source.name}:${line}:${col}`;
  }

  /** Whether there is no value, as in `name:` without more. */
  get isNull(): boolean {
    return this.#node === null || (loadYaml().isScalar(this.#node) && this.#node.value === null);
  }

  /** @throws CubeError naming an unknown or duplicate key */
  fields(known: readonly string[]): ReadonlyMap<string, YamlNode> {
    return this.#readFields((name, at) => {
      if (known.includes(name)) return;
      const hint = suggestNames(name, known);
      fail(this.#source, at, this.#path, `unknown field ${JSON.stringify(name)} (${hint})`);
    });
  }

  /** The fields of a map whose keys are names of the user's own. */
  entries(): ReadonlyMap<string, YamlNode> {
    return this.#readFields(() => undefined);
  }

  #readFields(check: (name: string, at: number) => void): ReadonlyMap<string, YamlNode> {
    const node = this.#node;
    if (!loadYaml().isMap(node)) this.#expected('a map of names and values');
    const fields = new Map<string, YamlNode>();
    for (const { key, value } of node.items) {
      const name = loadYaml().isScalar(key) ? String(key.value) : '?';
      const at = (key as { range?: readonly number[] } | null)?.range?.[0] ?? this.#offset;
      check(name, at);
      const path = this.#path === '' ? name : `${this.#path}.${name}`;
      fields.set(name, new YamlNode(value, path, this.#source, at));
    }
    return fields;
  }

  items(): YamlNode[] {
    const node = this.#node;
    if (!loadYaml().isSeq(node)) this.#expected('a list');
    if (node.items.length > ITEMS_MAX) this.#expected(`at most ${ITEMS_MAX} items`);
    return node.items.map(
      (item, i) => new YamlNode(item, `${this.#path}[${i}]`, this.#source, this.#offset),
    );
  }

  /** A list; a single item counts as a list of one. */
  itemsOrOne(): YamlNode[] {
    return loadYaml().isSeq(this.#node) ? this.items() : [this];
  }

  /** As `string`, but the text may be empty. */
  text(): string {
    return this.#scalar() === '' ? '' : this.string();
  }

  /** A number counts as a string: versions and columns often look like numbers. */
  string(): string {
    const value = this.#scalar();
    if (typeof value === 'number' && Number.isSafeInteger(value)) return String(value);
    if (typeof value !== 'string' || value === '') this.#expected('a string');
    return value;
  }

  /** The string as parsed by `read`, whose error is reported with the position of the value. */
  parse<T>(read: (text: string) => T): T {
    const text = this.string();
    try {
      return read(text);
    } catch (error) {
      return this.fail((error as Error).message);
    }
  }

  choice<const T extends string>(choices: readonly T[]): T {
    const value = this.#scalar();
    if (!choices.includes(value as T)) this.#expected(`one of ${choices.join(', ')}`);
    return value as T;
  }

  integer(min: number, max: number): number {
    const value = this.#scalar();
    if (!Number.isSafeInteger(value) || (value as number) < min || (value as number) > max) {
      this.#expected(`an integer in ${min}..${max}`);
    }
    return value as number;
  }

  number(): number {
    const value = this.#scalar();
    if (typeof value !== 'number' || !Number.isFinite(value)) this.#expected('a number');
    return value;
  }

  boolean(): boolean {
    const value = this.#scalar();
    if (typeof value !== 'boolean') this.#expected('true or false');
    return value;
  }

  #scalar(): unknown {
    return loadYaml().isScalar(this.#node) ? this.#node.value : undefined;
  }

  #expected(what: string): never {
    const node = this.#node;
    const got = loadYaml().isMap(node)
      ? 'a map'
      : loadYaml().isSeq(node)
        ? 'a list'
        : JSON.stringify(this.#scalar());
    return this.fail(`expected ${what}, got ${(got ?? 'nothing').slice(0, 60)}`);
  }
}
