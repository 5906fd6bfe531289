/**
 * The kinds of setting values, parsed from text (a flag, a variable, a Paddle configuration) or
 * from a YAML value. Errors name the expected form.
 */
import type { BackupRequest } from '../../lib/client/call-policy.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { NAME_PATTERN, NAME_RULE } from '../../lib/core/names.ts';
import { parseByteCount } from '../../lib/platform/cli.ts';
import type { YamlNode } from '../../lib/platform/yaml.ts';
import { SYNTHETIC_DATA, type WarmUpEntry } from '../engine/warm-up-rows.ts';

export interface SettingKind<T> {
  /** The value's placeholder in help texts. */
  readonly placeholder: string;
  /** @throws CubeError INVALID_ARGUMENT with the expected form */
  fromText(text: string): T;
  /** @throws CubeError INVALID_ARGUMENT with file, line and column */
  fromYaml(node: YamlNode): T;
}

/** A setting of serving. */
export interface Setting<T> {
  readonly kind: SettingKind<T>;
  /** A phrase that makes sense alone: what it is, unit, default. */
  readonly help: string;
  /** The heading in the help. */
  readonly group: string;
  /** Shown in `--help`; other settings are shown only in `--help-all`. */
  readonly isCommon?: boolean;
  /** A path; in a file it is relative to the folder of the file. */
  readonly isPath?: boolean;
  /**
   * The environment variable, when every program has it. Default: HYPERCUBE_ and the setting's
   * name.
   */
  readonly variable?: string;
}

/** A setting for each field of T. */
export type Table<T> = { readonly [K in keyof T]-?: Setting<NonNullable<T[K]>> };

/** The number of model workers, absolute or per core. */
export type Instances = number | { readonly perCore: number };

const BACKUP_MS_MAX = 600_000;
const BACKUP_RULE = `an integer in 1..${BACKUP_MS_MAX}, p95 or never`;
const ENTRY_ROWS_MAX = 4096;
const ENTRY_RULE =
  `${SYNTHETIC_DATA.join(' or ')}, a colon, an integer in 1..${ENTRY_ROWS_MAX} for the rows, and ` +
  'optionally * and an integer in 1..999 for the number of requests (random:64*10)';
const LIST_MAX = 64;
const INSTANCES_MAX = 256;
const INSTANCES_RULE = `an integer in 1..${INSTANCES_MAX}, cpu, or cpu*<number>`;

export function integer(min: number, max: number, unit: string): SettingKind<number> {
  const rule = `an integer in ${min}..${max}`;
  return {
    placeholder: unit,
    fromText: (text) => {
      const value = Number(text);
      return /^-?\d{1,16}$/.test(text) && value >= min && value <= max
        ? value
        : failExpected(rule, text);
    },
    fromYaml: (node) => node.integer(min, max),
  };
}

/** A number in 0..1. */
export const fraction: SettingKind<number> = {
  placeholder: 'share',
  fromText: (text) => {
    const value = Number(text);
    return /^\d*\.?\d+$/.test(text) && value <= 1 ? value : failExpected('a number in 0..1', text);
  },
  fromYaml: (node) => {
    const value = node.number();
    return value >= 0 && value <= 1 ? value : node.fail('expected a number in 0..1');
  },
};

export const flag: SettingKind<boolean> = {
  placeholder: 'true|false',
  fromText: (text) => {
    if (text === 'true' || text === 'false') return text === 'true';
    return failExpected('true or false', text);
  },
  fromYaml: (node) => node.boolean(),
};

/** Bytes: 1048576, 512MiB, 2GB. */
export const bytes: SettingKind<number> = {
  placeholder: 'bytes',
  fromText: parseBytes,
  fromYaml: (node) => node.parse(parseBytes),
};

export const text: SettingKind<string> = {
  placeholder: 'text',
  fromText: (value) => (value === '' ? failExpected('a value', value) : value),
  fromYaml: (node) => node.string(),
};

export const name: SettingKind<string> = {
  placeholder: 'name',
  fromText: parseName,
  fromYaml: (node) => node.parse(parseName),
};

export const instances: SettingKind<Instances> = {
  placeholder: 'number|cpu|cpu*n',
  fromText: parseInstances,
  fromYaml: (node) => node.parse(parseInstances),
};

/** Milliseconds, or the 95th percentile of recent latencies. */
export const backupRequest: SettingKind<BackupRequest> = {
  placeholder: 'ms|p95|never',
  fromText: parseBackupRequest,
  fromYaml: (node) => node.parse(parseBackupRequest),
};

/** Synthetic warm-up requests: data:rows*count. */
export const warmUpEntry: SettingKind<WarmUpEntry> = {
  placeholder: 'data:rows*count',
  fromText: parseWarmUpEntry,
  fromYaml: (node) => node.parse(parseWarmUpEntry),
};

export function choice<const T extends string>(choices: readonly T[]): SettingKind<T> {
  return {
    placeholder: choices.join('|'),
    fromText: (value) =>
      choices.find((one) => one === value) ?? failExpected(`one of ${choices.join(', ')}`, value),
    fromYaml: (node) => node.choice(choices),
  };
}

/** Text that `check` accepts. @param check throws CubeError INVALID_ARGUMENT */
export function checked(placeholder: string, check: (text: string) => string): SettingKind<string> {
  return { placeholder, fromText: check, fromYaml: (node) => node.parse(check) };
}

/** As `list`, and `none` for an empty list. */
export function optionalList<T>(kind: SettingKind<T>): SettingKind<readonly T[]> {
  const { placeholder, fromText, fromYaml } = list(kind);
  return {
    placeholder: `none|${placeholder}`,
    fromText: (value) => (value === 'none' ? [] : fromText(value)),
    fromYaml: (node) => {
      const [only, ...others] = node.itemsOrOne();
      const isNone = others.length === 0 && only?.string() === 'none';
      return isNone ? [] : fromYaml(node);
    },
  };
}

/** Values separated by commas; in YAML a list or a single value. */
export function list<T>(kind: SettingKind<T>): SettingKind<readonly T[]> {
  return {
    placeholder: `${kind.placeholder},…`,
    fromText: (value) => value.split(',', LIST_MAX).map((item) => kind.fromText(item.trim())),
    fromYaml: (node) => {
      const items = node.itemsOrOne();
      if (items.length === 0 || items.length > LIST_MAX) {
        node.fail(`expected 1 to ${LIST_MAX} items, got ${items.length}`);
      }
      return items.map((item) => kind.fromYaml(item));
    },
  };
}

function parseName(value: string): string {
  return NAME_PATTERN.test(value) ? value : failExpected(NAME_RULE, value);
}

function parseBytes(value: string): number {
  try {
    return parseByteCount(value);
  } catch {
    return failExpected('bytes such as 1048576, 512MiB or 2GB', value);
  }
}

function parseBackupRequest(value: string): BackupRequest {
  if (value === 'p95' || value === 'never') return value;
  const valueMs = /^\d{1,6}$/.test(value) ? Number(value) : 0;
  return valueMs >= 1 && valueMs <= BACKUP_MS_MAX ? valueMs : failExpected(BACKUP_RULE, value);
}

function parseWarmUpEntry(value: string): WarmUpEntry {
  const [, name = '', rowText = '', countText = '1'] =
    /^([a-z]+):([1-9]\d{0,3})(?:\*([1-9]\d{0,2}))?$/.exec(value) ?? [];
  const data = SYNTHETIC_DATA.find((one) => one === name);
  const rows = Number(rowText);
  const count = Number(countText);
  if (data === undefined || rows < 1 || rows > ENTRY_ROWS_MAX || count < 1) {
    return failExpected(ENTRY_RULE, value);
  }
  return { data, rows, count };
}

function parseInstances(value: string): Instances {
  if (/^\d{1,3}$/.test(value)) {
    const count = Number(value);
    return count >= 1 && count <= INSTANCES_MAX ? count : failExpected(INSTANCES_RULE, value);
  }
  const factor = /^cpu(?:\s*\*\s*(\d{1,2}(?:\.\d{1,3})?))?$/.exec(value);
  const perCore = factor === null ? 0 : Number(factor[1] ?? 1);
  return perCore > 0 ? { perCore } : failExpected(INSTANCES_RULE, value);
}

export function failExpected(what: string, got: string): never {
  const shown = JSON.stringify(got.slice(0, 60));
  throw new CubeError('INVALID_ARGUMENT', `expected ${what}, got ${shown}`);
}
