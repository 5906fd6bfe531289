/**
 * The file of API keys: hashes, scopes and limits, never the keys. A key has 256 random bits, so
 * that a plain SHA-256 protects it; a slow password hash would only slow down requests.
 */
import { hash, randomBytes } from 'node:crypto';
import { CubeError } from '../core/errors.ts';
import { JsonReader } from '../core/json.ts';
import { NAME_PATTERN, NAME_RULE, SHA256_PATTERN } from '../core/names.ts';
import { checkScope } from './scopes.ts';

/** Precedes every key, so that scanners of secrets find keys in files and logs. */
const KEY_START = 'hck_';
const KEY_BYTES = 32;
/** Characters of a key that are stored, to tell keys apart: 36 of its 256 bits. */
const PREFIX_CHARS = KEY_START.length + 6;
const PREFIX_PATTERN = /^hck_[A-Za-z0-9_-]{6}$/;
const FORMAT = 'hypercube-keys-1';
const KEYS_MAX = 100_000;
const SCOPES_MAX = 1000;
/** Far above any machine; keeps sums exact. */
const COUNT_MAX = 1e12;
/** Weights are relative; these bounds keep one key from making the others' shares vanish. */
const WEIGHT_MAX = 1000;

/** What a key may use; an absent limit does not apply. */
export interface KeyLimits {
  readonly requestsPerSecond?: number;
  readonly rowsPerSecond?: number;
  /** Concurrent requests. */
  readonly concurrentMax?: number;
  /** Per day of UTC. */
  readonly dailyRequests?: number;
  readonly dailyRows?: number;
  /** Rows of one request. */
  readonly batchRowsMax?: number;
  /** Share of the capacity under overload, relative to other keys. Default 1. */
  readonly weight?: number;
  /** The most urgent priority of its requests; 0 is the highest. */
  readonly highestPriority?: number;
}

/** A secret by which a key is recognized. */
export interface KeySecret {
  /** Hex. */
  readonly sha256: string;
  /** The first characters, for people. */
  readonly prefix: string;
}

export interface ApiKey extends KeySecret {
  /** For logs, metrics and commands. */
  readonly id: string;
  readonly scopes: readonly string[];
  readonly limits: KeyLimits;
  /** ISO 8601, UTC, as the other times. */
  readonly createdAt: string;
  readonly expiresAt?: string;
  readonly revokedAt?: string;
  /** The secret before the last rotation, valid until its own expiry. */
  readonly previous?: KeySecret & { readonly expiresAt: string };
}

export interface KeyFile {
  readonly keys: readonly ApiKey[];
}

type NumberRule = readonly [min: number, max: number, isInteger: boolean];

const LIMIT_RULES: Readonly<Record<keyof KeyLimits, NumberRule>> = {
  requestsPerSecond: [0.001, COUNT_MAX, false],
  rowsPerSecond: [0.001, COUNT_MAX, false],
  concurrentMax: [1, COUNT_MAX, true],
  dailyRequests: [1, COUNT_MAX, true],
  dailyRows: [1, COUNT_MAX, true],
  batchRowsMax: [1, COUNT_MAX, true],
  weight: [0.001, WEIGHT_MAX, false],
  highestPriority: [0, 100, true],
};
export const LIMIT_NAMES = Object.keys(LIMIT_RULES) as readonly (keyof KeyLimits)[];

/** @returns a new key, which is shown once, and what is stored of it */
export function generateKey(): { key: string; secret: KeySecret } {
  const key = KEY_START + randomBytes(KEY_BYTES).toString('base64url');
  return {
    key,
    secret: { sha256: hashKey(key).toString('hex'), prefix: key.slice(0, PREFIX_CHARS) },
  };
}

export function hashKey(key: string): Buffer {
  // A buffer as the output of `hash` takes twice as long.
  return Buffer.from(hash('sha256', key, 'binary'), 'binary');
}

/** @throws CubeError INVALID_ARGUMENT naming the place in the file */
export function parseKeyFile(text: string, source: string): KeyFile {
  const json = JsonReader.parseFile(text, source, parseHidden);
  json.rejectUnknownFields(['format', 'keys']);
  json.field('format').choice([FORMAT]);
  const keys = json.field('keys').items({ max: KEYS_MAX }).map(readKey);
  for (const field of ['id', 'sha256'] as const) {
    const values = keys.map((key) => key[field]);
    const repeated = values.length === new Set(values).size ? undefined : findRepeated(values);
    if (repeated !== undefined) {
      throw new CubeError('INVALID_ARGUMENT', `${source}: two keys have the ${field} ${repeated}`);
    }
  }
  return { keys };
}

/** Errors of JSON.parse show a part of the text, which may be another secret's file. */
function parseHidden(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new SyntaxError('hypercube keys writes key files');
  }
}

export function formatKeyFile({ keys }: KeyFile): string {
  return `${JSON.stringify({ format: FORMAT, keys }, null, 2)}\n`;
}

/** @throws CubeError INVALID_ARGUMENT */
export function checkKeyLimit(name: keyof KeyLimits, value: number): number {
  const [min, max, isInteger] = LIMIT_RULES[name];
  if (value >= min && value <= max && (!isInteger || Number.isInteger(value))) return value;
  const kind = isInteger ? 'an integer' : 'a number';
  throw new CubeError('INVALID_ARGUMENT', `${name}: expected ${kind} in ${min}..${max}`);
}

function findRepeated(values: readonly string[]): string | undefined {
  return values.find((value, i) => values.indexOf(value) !== i);
}

const KEY_FIELDS = [
  'id',
  'sha256',
  'prefix',
  'scopes',
  'limits',
  'createdAt',
  'expiresAt',
  'revokedAt',
  'previous',
];

function readKey(json: JsonReader): ApiKey {
  json.rejectUnknownFields(KEY_FIELDS);
  const expiresAt = json.optional('expiresAt', readTime);
  const revokedAt = json.optional('revokedAt', readTime);
  const previous = json.optional('previous', (field) => {
    field.rejectUnknownFields(['sha256', 'prefix', 'expiresAt']);
    return { ...readSecret(field), expiresAt: readTime(field.field('expiresAt')) };
  });
  return {
    id: json.field('id').string(NAME_PATTERN, NAME_RULE),
    ...readSecret(json),
    scopes: json
      .field('scopes')
      .items({ max: SCOPES_MAX })
      .map((item) => checkScope(item.string())),
    limits: json.optional('limits', readLimits) ?? {},
    createdAt: readTime(json.field('createdAt')),
    ...(expiresAt !== undefined && { expiresAt }),
    ...(revokedAt !== undefined && { revokedAt }),
    ...(previous !== undefined && { previous }),
  };
}

function readSecret(json: JsonReader): KeySecret {
  return {
    sha256: json.field('sha256').hiddenString(SHA256_PATTERN, 'a SHA-256 as 64 hex digits'),
    prefix: json.field('prefix').hiddenString(PREFIX_PATTERN, 'the first characters of a key'),
  };
}

function readLimits(json: JsonReader): KeyLimits {
  json.rejectUnknownFields(LIMIT_NAMES);
  const limits: { -readonly [K in keyof KeyLimits]: number } = {};
  for (const name of LIMIT_NAMES) {
    const value = json.optional(name, (field) => checkKeyLimit(name, field.number()));
    if (value !== undefined) limits[name] = value;
  }
  return limits;
}

function readTime(json: JsonReader): string {
  const text = json.string();
  if (!/^\d{4}-\d\d-\d\dT/.test(text) || Number.isNaN(Date.parse(text))) {
    json.fail('a time such as 2026-01-31T00:00:00Z');
  }
  return text;
}
