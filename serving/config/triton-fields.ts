/**
 * Describes the fields of a message in protobuf's text format, and checks a message against the
 * description: unknown and repeated fields and values of other types are errors. Fields that have
 * no effect here are collected with the reason; fields that would change predictions are refused.
 */
import { suggestNames } from '../../lib/core/nearest-name.ts';
import type { TextMessage } from '../../proto/text-format.ts';
import type { IgnoredSetting } from './config-report.ts';

export type MessageFields = { readonly [name: string]: Field };

type FieldType =
  | 'string'
  | 'integer'
  | 'number'
  | 'boolean'
  | 'anything'
  | readonly string[]
  | MessageFields;

export interface Field {
  /** A list of names is an enum; its first name is the default. */
  readonly type: FieldType;
  readonly isList?: boolean;
  /** Why the field has no effect. */
  readonly ignored?: string;
  /** Why a value other than the default is an error. */
  readonly refused?: string;
  /** A message has at most one of the fields of a group. */
  readonly group?: string;
}

export const text: Field = { type: 'string' };
export const integer: Field = { type: 'integer' };
export const number: Field = { type: 'number' };
export const flag: Field = { type: 'boolean' };
/** For messages that are refused as a whole. */
export const anything: Field = { type: 'anything' };

export function names(...type: readonly string[]): Field {
  return { type };
}

export function message(type: MessageFields): Field {
  return { type };
}

export function list(field: Field): Field {
  return { ...field, isList: true };
}

/** A map: repeated messages with a key and a value. */
export function map(value: Field, key: Field = text): Field {
  return list(message({ key, value }));
}

export function group(name: string, field: Field): Field {
  return { ...field, group: name };
}

export function ignore(reason: string, field: Field): Field {
  return { ...field, ignored: reason };
}

export function refuse(reason: string, field: Field): Field {
  return { ...field, refused: reason };
}

const INTEGER_MAX = Number.MAX_SAFE_INTEGER;

/**
 * @param path names of the enclosing fields, each with a dot
 * @param ignored takes the fields without effect
 * @throws CubeError INVALID_ARGUMENT with file, line and column
 */
export function checkFields(
  node: TextMessage,
  fields: MessageFields,
  ignored: IgnoredSetting[],
  path = '',
): void {
  for (const name of node.names) {
    const field = Object.hasOwn(fields, name) ? fields[name] : undefined;
    const full = `${path}${name}`;
    if (field === undefined) {
      const hint = suggestNames(name, Object.keys(fields));
      node.failField(name, `unknown field ${full}; ${hint}`);
    }
    if (field.isList !== true && node.count(name) > 1) {
      node.failField(name, `${full} is given ${node.count(name)} times; give it once`);
    }
    checkGroup(node, fields, name, field);
    const inside = field.ignored === undefined ? ignored : [];
    const isDefault = checkValues(node, name, field, inside, full);
    if (isDefault) continue;
    if (field.refused !== undefined) node.failField(name, `${full}: ${field.refused}`);
    if (field.ignored === undefined) continue;
    ignored.push({ setting: `${node.getFieldLocation(name)} ${full}`, reason: field.ignored });
  }
}

function checkGroup(node: TextMessage, fields: MessageFields, name: string, field: Field): void {
  if (field.group === undefined) return;
  const other = node.names.find(
    (one) => one !== name && Object.hasOwn(fields, one) && fields[one]?.group === field.group,
  );
  if (other !== undefined) node.failField(name, `${name} and ${other}: give one of them`);
}

/** @returns whether every value is the default of its type */
function checkValues(
  node: TextMessage,
  name: string,
  { type }: Field,
  ignored: IgnoredSetting[],
  path: string,
): boolean {
  switch (type) {
    case 'string':
      return node.strings(name).every((value) => value === '');
    case 'integer':
      return node.integers(name, -INTEGER_MAX, INTEGER_MAX).every((value) => value === 0);
    case 'boolean':
      return node.booleans(name).every((value) => !value);
    case 'anything':
      return false;
    case 'number':
      return node.words(name).every((word) => checkNumber(node, name, word) === 0);
  }
  if (isNames(type)) {
    return node.words(name).every((word) => toEnumName(node, name, type, word) === type[0]);
  }
  for (const child of node.messages(name)) checkFields(child, type, ignored, `${path}.`);
  return node.count(name) === 0;
}

function isNames(type: Exclude<FieldType, string>): type is readonly string[] {
  return Array.isArray(type);
}

function checkNumber(node: TextMessage, name: string, word: string): number {
  const value = Number(word.replace(/f$/, ''));
  if (Number.isNaN(value)) node.failField(name, `${name}: expected a number, got ${word}`);
  return value;
}

/** @param word a name, or its number @throws CubeError listing the names */
function toEnumName(
  node: TextMessage,
  name: string,
  choices: readonly string[],
  word: string,
): string {
  const found = /^\d{1,3}$/.test(word)
    ? choices[Number(word)]
    : choices.find((one) => one === word);
  if (found !== undefined) return found;
  return node.failField(name, `${name}: unknown value ${word}; ${suggestNames(word, choices)}`);
}

/** The name of an enum's value; its default when the field is absent. */
export function readEnum<const T extends string>(
  node: TextMessage,
  name: string,
  choices: readonly [T, ...T[]],
): T {
  const word = node.enumValue(name);
  if (word === undefined) return choices[0];
  return toEnumName(node, name, choices, word) as T;
}

/** The entries of a map by their keys. @throws CubeError when a key comes twice */
export function readMap(
  node: TextMessage,
  name: string,
  readKey: (entry: TextMessage) => string = (entry) => entry.string('key') ?? '',
): Map<string, TextMessage> {
  const entries = new Map<string, TextMessage>();
  for (const entry of node.messages(name)) {
    const key = readKey(entry);
    if (entries.has(key)) entry.fail(`${name}: the key ${key} comes twice`);
    entries.set(key, entry);
  }
  return entries;
}
