/**
 * The keys of a key file, for authentication. The file is read again when it changes. While it
 * cannot be read or is invalid, the previous keys stay valid.
 */
import { timingSafeEqual } from 'node:crypto';
import { readText } from '../platform/files.ts';
import type { Logger } from '../platform/logs.ts';
import { RereadValue } from '../platform/reread-value.ts';
import { type ApiKey, hashKey, parseKeyFile } from './api-keys.ts';

const FILE_BYTES_MAX = 64 << 20;
/** A longer credential is refused without hashing it; keys have 47 characters. */
const KEY_CHARS_MAX = 200;
/** Minimum interval between checks of the file. */
const CHECK_INTERVAL_MS = 250;
/** Compared where no key has the same beginning, so that each attempt compares one. */
const NO_DIGEST = Buffer.alloc(32);

interface Entry {
  readonly digest: Buffer;
  readonly key: ApiKey;
  /** Milliseconds since 1970; infinite without an expiry. */
  readonly validUntilMs: number;
}

export interface AccessClock {
  /** Monotonic milliseconds. */
  nowMs(): number;
  /** Milliseconds since 1970. */
  wallMs(): number;
}

/** The result of a lookup; only `key` may be shown to the caller. */
export interface FoundKey {
  readonly key?: ApiKey;
  /** The id of a key that is revoked or expired, for the audit log. */
  readonly refusedId?: string;
}

export class KeyStore {
  readonly #clock: AccessClock;
  /** By the first four bytes of their digests. */
  readonly #entries: RereadValue<ReadonlyMap<number, readonly Entry[]>>;
  /** Counts the versions of the file that were read. */
  generation = 0;

  /** @throws CubeError when the file is unreadable or invalid */
  constructor(path: string, logger: Logger, clock: AccessClock) {
    this.#clock = clock;
    this.#entries = new RereadValue<ReadonlyMap<number, readonly Entry[]>>({
      paths: [path],
      read: () => indexKeys(readKeyFile(path).keys),
      intervalMs: CHECK_INTERVAL_MS,
      clock,
      onChange: () => {
        this.generation++;
        logger.info({ keyFile: path }, 'API keys changed');
      },
      onInvalid: ({ message: error }) =>
        logger.warn({ error }, 'key file invalid; the previous keys stay valid'),
    });
  }

  /** Finds a valid key. Unknown, revoked and expired ones cost the same. */
  find(text: string): FoundKey {
    const entries = this.#entries.current;
    const digest = hashKey(text.length > KEY_CHARS_MAX ? '' : text);
    let found: Entry | undefined;
    const candidates = entries.get(digest.readUInt32LE(0));
    if (candidates === undefined) timingSafeEqual(digest, NO_DIGEST);
    for (const entry of candidates ?? []) {
      if (timingSafeEqual(digest, entry.digest)) found = entry;
    }
    if (found === undefined) return {};
    const { key, validUntilMs } = found;
    return this.#clock.wallMs() < validUntilMs ? { key } : { refusedId: key.id };
  }
}

/** @throws CubeError when the file is unreadable or invalid */
export function readKeyFile(path: string): ReturnType<typeof parseKeyFile> {
  return parseKeyFile(readText(path, FILE_BYTES_MAX), path);
}

function indexKeys(keys: readonly ApiKey[]): Map<number, Entry[]> {
  const entries = new Map<number, Entry[]>();
  const add = (sha256: string, key: ApiKey, expiresAt: string | undefined): void => {
    const digest = Buffer.from(sha256, 'hex');
    const tag = digest.readUInt32LE(0);
    const ends = [key.expiresAt, key.revokedAt, expiresAt].map((at) =>
      at === undefined ? Number.POSITIVE_INFINITY : Date.parse(at),
    );
    const entry = { digest, key, validUntilMs: Math.min(...ends) };
    entries.set(tag, [...(entries.get(tag) ?? []), entry]);
  };
  for (const key of keys) {
    add(key.sha256, key, undefined);
    if (key.previous !== undefined) add(key.previous.sha256, key, key.previous.expiresAt);
  }
  return entries;
}
