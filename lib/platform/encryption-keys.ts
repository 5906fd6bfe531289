/**
 * Key-encryption keys of this process, from a file or a command, never from a flag or a variable.
 * Keys lie in KeyObjects, which Node neither prints nor copies and OpenSSL overwrites when they are
 * freed. Data keys are overwritten by their users.
 */
import {
  createCipheriv,
  createDecipheriv,
  createHash,
  createHmac,
  createSecretKey,
  type KeyObject,
  randomBytes,
} from 'node:crypto';
import { getEnvironmentData, isMainThread, setEnvironmentData } from 'node:worker_threads';
import { CubeError } from '../core/errors.ts';
import type { SealedHeader } from '../core/sealed-format.ts';
import { fileExists, getFileStamp, putFileIfAbsent, readRegularFile } from './files.ts';

const WRAP_CIPHER = 'id-aes256-wrap';
/** The initial value of RFC 3394. */
const WRAP_INITIAL_VALUE: Uint8Array = new Uint8Array(8).fill(0xa6);
const KEY_BYTES = 32;
const KEYS_MAX = 64;
export const DECRYPT_FLAGS = '--decrypt-key-file and --decrypt-key-command';
/** # */
const COMMENT = 0x23;
export const KEY_FILE_BYTES_MAX = 65_536;

/** One key-encryption key. */
export class EncryptionKey {
  /** First 16 hex digits of the SHA-256 of a fixed text and the key. */
  readonly keyId: string;
  readonly #key: KeyObject;

  /** @param key 32 bytes, which the caller overwrites */
  constructor(key: Uint8Array) {
    this.#key = createSecretKey(key);
    const hash = createHash('sha256').update('hypercube key id 1\n').update(key);
    this.keyId = hash.digest('hex').slice(0, 16);
  }

  /**
   * The data key of a file: a function of its clear content, so that equal content gives equal
   * sealed files and interrupted builds and publications can continue (docs/adr/0046).
   * @param sha256 of the clear file
   */
  deriveDataKey(sha256: string): Uint8Array {
    const hmac = createHmac('sha256', this.#key).update('hypercube data key 1\n');
    return hmac.update(sha256, 'hex').digest();
  }

  wrap(dataKey: Uint8Array): Uint8Array {
    const cipher = createCipheriv(WRAP_CIPHER, this.#key, WRAP_INITIAL_VALUE);
    return Buffer.concat([cipher.update(dataKey), cipher.final()]);
  }

  /** Returns undefined if another key wrapped it, or it is damaged. */
  unwrap(wrapped: Uint8Array): Uint8Array | undefined {
    try {
      const decipher = createDecipheriv(WRAP_CIPHER, this.#key, WRAP_INITIAL_VALUE);
      const clear = decipher.update(wrapped);
      decipher.final();
      return clear.length === KEY_BYTES ? clear : undefined;
    } catch {
      return undefined;
    }
  }

  /** For a worker thread of this process, which seals with the same key. */
  export(): Uint8Array {
    return this.#key.export();
  }
}

/** A data key of a file that was wrapped again by another key. */
export interface RewrappedKey {
  readonly contentId: string;
  /** The key in the header of the sealed file. */
  readonly sealedBy: string;
  readonly wrappedKey: Uint8Array;
}

/** Where keys come from, to read them again. */
export interface KeySource {
  /** For messages. */
  readonly name: string;
  read(): EncryptionKey[];
  /** Differs when the keys may have changed. */
  stamp(): string | undefined;
}

/** The keys that open files; the first one seals. */
export class KeyRing {
  /** The options that give this process its keys, for errors. */
  flags: string = DECRYPT_FLAGS;
  #keys: readonly EncryptionKey[] = [];
  #source: KeySource | undefined;
  #stamp: string | undefined;
  /** Wrapped again, by key id, key id of the header and content id. */
  readonly #rewrapped = new Map<string, Uint8Array>();

  constructor(keys: readonly EncryptionKey[] = []) {
    this.#keys = keys;
  }

  /** Replaces all keys. @throws CubeError if they cannot be read */
  use(source: KeySource): void {
    this.#stamp = source.stamp();
    this.#keys = source.read();
    this.#source = source;
  }

  /** Removes all keys. */
  clear(): void {
    this.#keys = [];
    this.#source = undefined;
    this.#rewrapped.clear();
  }

  get keyIds(): readonly string[] {
    return this.#keys.map(({ keyId }) => keyId);
  }

  /** The key that seals; undefined without keys. */
  get first(): EncryptionKey | undefined {
    return this.#keys[0];
  }

  /** The key with this id; undefined if the ring does not have it. */
  find(keyId: string): EncryptionKey | undefined {
    return this.#keys.find((key) => key.keyId === keyId);
  }

  addRewrapped(keyId: string, keys: readonly RewrappedKey[]): void {
    for (const { contentId, sealedBy, wrappedKey } of keys) {
      this.#rewrapped.set(`${keyId} ${sealedBy} ${contentId}`, wrappedKey);
    }
  }

  /**
   * The data key of a sealed file; the caller overwrites it.
   * @throws CubeError DENIED naming the missing key
   */
  openDataKey(header: SealedHeader, path: string): Uint8Array {
    const found = this.#find(header) ?? (this.#readAgain() ? this.#find(header) : undefined);
    if (found !== undefined) return found;
    const { keyId } = header;
    if (this.keyIds.includes(keyId)) {
      throw new CubeError(
        'CORRUPT',
        `${path}: encryption key ${keyId} does not open its data key, so the header was changed; ` +
          'fetch it again',
      );
    }
    const known =
      this.#keys.length === 0
        ? 'this process has no key'
        : `this process has ${this.keyIds.join(', ')}`;
    throw new CubeError(
      'DENIED',
      `${path} is encrypted with key ${keyId}, and ${known}: give that key with one of ` +
        this.flags,
    );
  }

  #find({ keyId, contentId, wrappedKey }: SealedHeader): Uint8Array | undefined {
    for (const key of this.#keys) {
      const wrapped =
        key.keyId === keyId
          ? wrappedKey
          : this.#rewrapped.get(`${key.keyId} ${keyId} ${contentId}`);
      const opened = wrapped && key.unwrap(wrapped);
      if (opened !== undefined) return opened;
    }
    return undefined;
  }

  /** While the new keys cannot be read, the old ones stay valid. */
  #readAgain(): boolean {
    if (this.#source === undefined) return false;
    const stamp = this.#source.stamp();
    if (stamp === this.#stamp) return false;
    this.#stamp = stamp;
    try {
      this.#keys = this.#source.read();
      return true;
    } catch {
      return false;
    }
  }
}

/** The keys of this process, set once by its command line. */
export const processKeys: KeyRing = new KeyRing();

/** Set in processes that write encrypted versions. */
let sealing: EncryptionKey | undefined;
const SEALING_KEY = 'hypercube sealing key';

/** What this process and its threads publish is encrypted with the key; undefined: not. */
export function setSealingKey(key: EncryptionKey | undefined): void {
  sealing = key;
  setEnvironmentData(SEALING_KEY, key?.export());
}

/** The key that encrypts what this process writes; undefined: nothing is encrypted. */
export function getSealingKey(): EncryptionKey | undefined {
  if (sealing === undefined && !isMainThread) {
    const key = getEnvironmentData(SEALING_KEY);
    if (key instanceof Uint8Array) sealing = new EncryptionKey(key);
  }
  return sealing;
}

/** @throws CubeError CONFLICT if the file exists */
export function requireNoFile(path: string): void {
  if (!fileExists(path)) return;
  throw new CubeError('CONFLICT', `${path} exists; give the new key another file`);
}

/** Creates a file with a new random key. @throws CubeError CONFLICT if the file exists */
export function createKeyFile(path: string): EncryptionKey {
  requireNoFile(path);
  const secret = randomBytes(KEY_BYTES);
  const text = `# Encryption key of Hypercube. The first key of a file encrypts, all decrypt.\n`;
  const written = putFileIfAbsent(path, `${text}${secret.toString('hex')}\n`, 0o600);
  const key = new EncryptionKey(secret);
  secret.fill(0);
  if (written) return key;
  throw new CubeError('CONFLICT', `${path} exists; give the new key another file`);
}

/** Lower-case and upper-case digits, as in a key file. */
const KEY_TEXT = /^[0-9a-f]{64}$/i;

/** @throws CubeError INVALID_ARGUMENT for an empty name, and for a key where its file belongs */
function checkFileName(path: string): void {
  if (path === '') fail('the name of the file of encryption keys is empty');
  if (!KEY_TEXT.test(path)) return;
  fail('an encryption key is given where the name of its file belongs: keys are never arguments');
}

/** @param path a file of keys, one of 64 hex digits on a line; # begins a comment */
export function createFileSource(path: string): KeySource {
  checkFileName(path);
  return {
    name: path,
    stamp: () => getFileStamp(path),
    read: () => parseKeys(readRegularFile(path, KEY_FILE_BYTES_MAX), path),
  };
}

/**
 * Parses keys and overwrites the text with zeros.
 * @throws CubeError INVALID_ARGUMENT naming the line, never its content
 */
export function parseKeys(text: Uint8Array, source: string): EncryptionKey[] {
  try {
    const keys: EncryptionKey[] = [];
    let line = 1;
    for (let start = 0; start < text.length; line++) {
      const newline = text.indexOf(0x0a, start);
      const end = newline === -1 ? text.length : newline;
      const key = parseLine(text.subarray(start, end), `${source}: line ${line}`);
      if (key !== undefined) keys.push(key);
      start = end + 1;
      if (keys.length > KEYS_MAX) fail(`${source}: more than ${KEYS_MAX} keys`);
    }
    if (keys.length === 0) fail(`${source}: has no key; expected 64 hex digits on a line`);
    if (new Set(keys.map(({ keyId }) => keyId)).size !== keys.length) {
      fail(`${source}: has the same key twice; remove one of the lines`);
    }
    return keys;
  } finally {
    text.fill(0);
  }
}

function parseLine(line: Uint8Array, where: string): EncryptionKey | undefined {
  let start = 0;
  let end = line.length;
  while (start < end && isSpace(line[start] ?? 0)) start++;
  while (end > start && isSpace(line[end - 1] ?? 0)) end--;
  if (start === end || line[start] === COMMENT) return undefined;
  const key = new Uint8Array(KEY_BYTES);
  try {
    if (end - start !== 2 * KEY_BYTES) failKey(where);
    for (let i = 0; i < KEY_BYTES; i++) {
      const high = parseDigit(line[start + 2 * i] ?? 0);
      const low = parseDigit(line[start + 2 * i + 1] ?? 0);
      if (high < 0 || low < 0) failKey(where);
      key[i] = 16 * high + low;
    }
    return new EncryptionKey(key);
  } finally {
    key.fill(0);
  }
}

function isSpace(byte: number): boolean {
  return byte === 0x20 || byte === 0x09 || byte === 0x0d;
}

function parseDigit(byte: number): number {
  if (byte >= 0x30 && byte <= 0x39) return byte - 0x30;
  const lower = byte | 0x20;
  return lower >= 0x61 && lower <= 0x66 ? lower - 0x57 : -1;
}

function failKey(where: string): never {
  fail(`${where}: is not a key; expected 64 hex digits (cube-builder keygen makes a file)`);
}

function fail(text: string): never {
  throw new CubeError('INVALID_ARGUMENT', text);
}
