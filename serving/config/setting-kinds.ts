/**
 * What a setting's value may be, wherever it is written: as text (a flag, the environment, a configuration of Paddle's) or as a
 * value of a YAML document. Both say in their own way what was expected.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { NAME_PATTERN, NAME_RULE } from '../../lib/core/names.ts';
import { byteCount } from '../../lib/platform/cli.ts';
import type { YamlNode } from '../../lib/platform/yaml-node.ts';

export interface Kind<T> {
  /** As help texts show it. */
  readonly shown: string;
  /** @throws CubeError INVALID_ARGUMENT saying what was expected */
  fromText(text: string): T;
  /** @throws CubeError INVALID_ARGUMENT with file, line and column */
  fromYaml(node: YamlNode): T;
}

/** How many model workers: a number, or so many for each core. */
export type Instances = number | { readonly perCore: number };

const BACKUP_MS_MAX = 600_000;
const BACKUP_RULE = `an integer in 1..${BACKUP_MS_MAX}, or p95`;
const LIST_MAX = 64;
const INSTANCES_MAX = 256;
const INSTANCES_RULE = `an integer in 1..${INSTANCES_MAX}, cpu, or cpu*<number>`;

export function integer(min: number, max: number, unit: string): Kind<number> {
  const rule = `an integer in ${min}..${max}`;
  return {
    shown: unit,
    fromText: (text) => {
      const value = Number(text);
      return /^-?\d{1,16}$/.test(text) && value >= min && value <= max
        ? value
        : expected(rule, text);
    },
    fromYaml: (node) => node.integer(min, max),
  };
}

/** A part of a whole: 0..1. */
export const share: Kind<number> = {
  shown: 'share',
  fromText: (text) => {
    const value = Number(text);
    return /^\d*\.?\d+$/.test(text) && value <= 1 ? value : expected('a number in 0..1', text);
  },
  fromYaml: (node) => {
    const value = node.number();
    return value >= 0 && value <= 1 ? value : node.fail('expected a number in 0..1');
  },
};

export const flag: Kind<boolean> = {
  shown: 'true|false',
  fromText: (text) => {
    if (text === 'true' || text === 'false') return text === 'true';
    return expected('true or false', text);
  },
  fromYaml: (node) => node.boolean(),
};

/** Bytes: 1048576, 512MiB, 2GB. */
export const bytes: Kind<number> = {
  shown: 'bytes',
  fromText: readBytes,
  fromYaml: (node) => node.parsed(readBytes),
};

export const text: Kind<string> = {
  shown: 'text',
  fromText: (value) => (value === '' ? expected('something', value) : value),
  fromYaml: (node) => node.string(),
};

export const name: Kind<string> = {
  shown: 'name',
  fromText: readName,
  fromYaml: (node) => node.parsed(readName),
};

export const instances: Kind<Instances> = {
  shown: 'number|cpu*n',
  fromText: readInstances,
  fromYaml: (node) => node.parsed(readInstances),
};

/** Milliseconds, or the 95th percentile of what was measured lately. */
export const backupRequest: Kind<number | 'p95'> = {
  shown: 'ms|p95',
  fromText: readBackupRequest,
  fromYaml: (node) => node.parsed(readBackupRequest),
};

export function choice<const T extends string>(choices: readonly T[]): Kind<T> {
  return {
    shown: choices.join('|'),
    fromText: (value) =>
      choices.find((one) => one === value) ?? expected(`one of ${choices.join(', ')}`, value),
    fromYaml: (node) => node.oneOf(choices),
  };
}

/** Several, with commas between them; in YAML a list, or one alone. */
export function list<T>(kind: Kind<T>): Kind<readonly T[]> {
  return {
    shown: `${kind.shown},…`,
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

function readName(value: string): string {
  return NAME_PATTERN.test(value) ? value : expected(NAME_RULE, value);
}

function readBytes(value: string): number {
  try {
    return byteCount(value);
  } catch {
    return expected('bytes such as 1048576, 512MiB or 2GB', value);
  }
}

function readBackupRequest(value: string): number | 'p95' {
  if (value === 'p95') return value;
  const valueMs = /^\d{1,6}$/.test(value) ? Number(value) : 0;
  return valueMs >= 1 && valueMs <= BACKUP_MS_MAX ? valueMs : expected(BACKUP_RULE, value);
}

function readInstances(value: string): Instances {
  if (/^\d{1,3}$/.test(value)) {
    const count = Number(value);
    return count >= 1 && count <= INSTANCES_MAX ? count : expected(INSTANCES_RULE, value);
  }
  const factor = /^cpu(?:\s*\*\s*(\d{1,2}(?:\.\d{1,3})?))?$/.exec(value);
  const perCore = factor === null ? 0 : Number(factor[1] ?? 1);
  return perCore > 0 ? { perCore } : expected(INSTANCES_RULE, value);
}

function expected(what: string, got: string): never {
  const shown = JSON.stringify(got.slice(0, 60));
  throw new CubeError('INVALID_ARGUMENT', `expected ${what}, got ${shown}`);
}
