/**
 * Ed25519 keys in PEM files, which restrict who may publish and move channels. A publisher has a
 * signing key, a reader the public keys that it trusts; what none of them signed does not exist for
 * that reader. Keys are named by their digest, so several may be trusted while one replaces
 * another. A key that is removed from the list is revoked.
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
const PUBLIC_KEY_PATTERN = /-----BEGIN PUBLIC KEY-----[^-]+-----END PUBLIC KEY-----/g;
/** The 64 bytes of a signature in base64. */
const SIGNATURE_PATTERN = /^[A-Za-z0-9+/]{86}==$/;
/** Environment variable with the public keys to trust. */
export const TRUSTED_KEYS_VARIABLE = 'CUBE_TRUSTED_KEYS';
export const KEY_ID_PATTERN: RegExp = /^[0-9a-f]{16}$/;

export interface KeyPair {
  readonly keyId: string;
  readonly privatePem: string;
  readonly publicPem: string;
}

export function generateKeyPair(): KeyPair {
  const { privateKey, publicKey } = generateKeyPairSync('ed25519');
  return {
    keyId: computeKeyId(publicKey),
    privatePem: privateKey.export({ type: 'pkcs8', format: 'pem' }) as string,
    publicPem: publicKey.export({ type: 'spki', format: 'pem' }) as string,
  };
}

/** 16 hex digits of the SHA-256 of the public key's DER. */
function computeKeyId(publicKey: KeyObject): string {
  const der = publicKey.export({ type: 'spki', format: 'der' });
  return createHash('sha256').update(der).digest('hex').slice(0, 16);
}

export class SigningKey {
  readonly keyId: string;
  readonly #key: KeyObject;

  /** @throws CubeError INVALID_ARGUMENT without the text of the key */
  constructor(privatePem: string, source: string) {
    this.#key = requireEd25519Key(source, 'a private key', () => createPrivateKey(privatePem));
    this.keyId = computeKeyId(createPublicKey(this.#key));
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

  /** @param publicPems each has one or several keys */
  constructor(publicPems: readonly string[], source: string) {
    const pems = publicPems.flatMap((text) => text.match(PUBLIC_KEY_PATTERN) ?? []);
    const keys = pems.map((pem) =>
      requireEd25519Key(source, 'a public key', () => createPublicKey(pem)),
    );
    if (keys.length === 0) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${source} contains no public key; cube-agent keygen writes one to <file>.pub`,
      );
    }
    this.#keys = new Map(keys.map((key) => [computeKeyId(key), key]));
  }

  /** @param path of a file, or of a folder with *.pem and *.pub files */
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

  /** False also if the key is not trusted. */
  verify(keyId: string, message: Uint8Array, signature: string): boolean {
    const key = this.#keys.get(keyId);
    if (key === undefined || !SIGNATURE_PATTERN.test(signature)) return false;
    return verify(null, message, key, Buffer.from(signature, 'base64'));
  }
}

function requireEd25519Key(source: string, what: string, read: () => KeyObject): KeyObject {
  try {
    const key = read();
    if (key.asymmetricKeyType === 'ed25519') return key;
  } catch {
    // The error below says more than that of node:crypto.
  }
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${source}: expected ${what} of Ed25519 in PEM; cube-agent keygen generates one`,
  );
}
