/**
 * Who may publish and point: Ed25519 keys in PEM files. A publisher has a signing key, a reader the public keys it trusts;
 * what none of them has signed does not exist for that reader. A key is named by its digest, so that several may be trusted
 * while one replaces another; a key that is no longer in the list is revoked.
 */
import {
  createHash,
  createPrivateKey,
  createPublicKey,
  generateKeyPairSync,
  type KeyObject,
  sign,
  verify,
} from 'node:crypto';
import { join } from 'node:path';
import { CubeError } from '../core/errors.ts';
import { isFolder, listFolder, readText } from '../platform/files.ts';

const KEY_BYTES_MAX = 1 << 20;
const PUBLIC_KEY = /-----BEGIN PUBLIC KEY-----[^-]+-----END PUBLIC KEY-----/g;
/** 64 bytes of Ed25519 in base64. */
const SIGNATURE = /^[A-Za-z0-9+/]{86}==$/;
/** Where every program finds the public keys to trust, unless it is told by a flag. */
export const TRUSTED_KEYS_VARIABLE = 'CUBE_TRUSTED_KEYS';
export const KEY_ID_PATTERN: RegExp = /^[0-9a-f]{16}$/;

export interface KeyPair {
  readonly keyId: string;
  readonly privatePem: string;
  readonly publicPem: string;
}

export function makeKeyPair(): KeyPair {
  const { privateKey, publicKey } = generateKeyPairSync('ed25519');
  return {
    keyId: keyIdOf(publicKey),
    privatePem: privateKey.export({ type: 'pkcs8', format: 'pem' }) as string,
    publicPem: publicKey.export({ type: 'spki', format: 'pem' }) as string,
  };
}

/** 16 hex digits of the SHA-256 of the public key's DER. */
function keyIdOf(publicKey: KeyObject): string {
  const der = publicKey.export({ type: 'spki', format: 'der' });
  return createHash('sha256').update(der).digest('hex').slice(0, 16);
}

export class SigningKey {
  readonly keyId: string;
  readonly #key: KeyObject;

  /** @throws CubeError INVALID_ARGUMENT; the text itself is never shown */
  constructor(privatePem: string, source: string) {
    this.#key = ed25519Key(source, 'a private key', () => createPrivateKey(privatePem));
    this.keyId = keyIdOf(createPublicKey(this.#key));
  }

  /** @param path of a PEM file, as `cube-agent keygen` writes it */
  static read(path: string): SigningKey {
    return new SigningKey(readText(path, KEY_BYTES_MAX), path);
  }

  /** Base64. */
  sign(message: Uint8Array): string {
    return sign(null, message, this.#key).toString('base64');
  }
}

export class TrustedKeys {
  readonly #keys: ReadonlyMap<string, KeyObject>;

  /** @param publicPems each with one key or several one after another */
  constructor(publicPems: readonly string[], source: string) {
    const pems = publicPems.flatMap((text) => text.match(PUBLIC_KEY) ?? []);
    const keys = pems.map((pem) => ed25519Key(source, 'a public key', () => createPublicKey(pem)));
    if (keys.length === 0) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${source}: no public key in it: nothing at all would be trusted (cube-agent keygen writes <file>.pub)`,
      );
    }
    this.#keys = new Map(keys.map((key) => [keyIdOf(key), key]));
  }

  /** @param path of a file, or of a folder whose *.pem and *.pub files are taken */
  static read(path: string): TrustedKeys {
    const files = isFolder(path)
      ? listFolder(path)
          .filter((name) => /\.(pem|pub)$/.test(name))
          .map((name) => join(path, name))
      : [path];
    return new TrustedKeys(
      files.map((file) => readText(file, KEY_BYTES_MAX)),
      path,
    );
  }

  get keyIds(): string[] {
    return [...this.#keys.keys()];
  }

  /** @returns false also for a key that is not trusted */
  verifies(keyId: string, message: Uint8Array, signature: string): boolean {
    const key = this.#keys.get(keyId);
    if (key === undefined || !SIGNATURE.test(signature)) return false;
    return verify(null, message, key, Buffer.from(signature, 'base64'));
  }
}

function ed25519Key(source: string, what: string, read: () => KeyObject): KeyObject {
  try {
    const key = read();
    if (key.asymmetricKeyType === 'ed25519') return key;
  } catch {
    // The error of node:crypto says less than ours.
  }
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${source}: expected ${what} of Ed25519 in PEM (cube-agent keygen makes one)`,
  );
}
