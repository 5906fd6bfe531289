/**
 * Small JSON objects that are put once: entries of logs, quarantines, signatures of manifests. Each carries the SHA-256 of
 * its fields, and a signature where the writer has a key. A signature is over the object's path and its fields, so an entry
 * that is copied to another place is not signed there.
 */
import { CubeError } from '../core/errors.ts';
import { JsonReader } from '../core/json.ts';
import type { Backend } from './backend.ts';
import { KEY_ID_PATTERN, type SigningKey, type TrustedKeys } from './signatures.ts';
import { bytesSha256 } from './verified-copy.ts';

/** A longer reason is refused when it is written. */
const ENTRY_BYTES_MAX = 65_536;
/** What sealing adds to the fields. */
const SEAL = new Set(['sha256', 'keyId', 'signature']);

/** Everything an entry may hold: plain JSON. */
export type EntryFields = Readonly<Record<string, unknown>>;

/** Keys of a process: with `signing` it signs what it writes, with `trusted` it takes only what is signed. */
export interface Keys {
  readonly signing?: SigningKey | undefined;
  readonly trusted?: TrustedKeys | undefined;
}

type EntrySource = Pick<Backend, 'location' | 'read'>;

/**
 * @throws CubeError NOT_FOUND; CORRUPT naming a damaged entry; DENIED for one that nobody trusted has signed
 */
export async function readEntry(
  source: EntrySource,
  path: string,
  trusted?: TrustedKeys,
): Promise<JsonReader> {
  const bytes = await source.read(path, ENTRY_BYTES_MAX);
  const name = `${source.location}/${path}`;
  return corruptWhenUnreadable(() => {
    const json = JsonReader.parse(new TextDecoder().decode(bytes), name);
    const fields = canonical(Object.fromEntries(json.entries().map(([key, f]) => [key, f.value])));
    const sha256 = json.optional('sha256', (field) => field.string());
    if (sha256 !== undefined && sha256 !== bytesSha256(encode(fields))) {
      throw new CubeError(
        'CORRUPT',
        `${name}: its fields are not those of its SHA-256; put the entry back, or remove it`,
      );
    }
    if (trusted !== undefined) requireSignature(json, trusted, messageOf(path, fields), name);
    return json;
  });
}

/** @returns false, with nothing changed, when the entry exists already. @throws CubeError TOO_LARGE */
export function putEntry(
  backend: Backend,
  path: string,
  fields: EntryFields,
  signing?: SigningKey,
): Promise<boolean> {
  const text = canonical(fields);
  const sha256 = bytesSha256(encode(text));
  const signed =
    signing === undefined
      ? {}
      : { keyId: signing.keyId, signature: signing.sign(messageOf(path, text)) };
  const bytes = encode(`${JSON.stringify({ ...JSON.parse(text), sha256, ...signed })}\n`);
  if (bytes.length > ENTRY_BYTES_MAX) {
    throw new CubeError('TOO_LARGE', `the reason is too long: at most ${ENTRY_BYTES_MAX} bytes`);
  }
  return backend.putIfAbsent(path, bytes);
}

/** What checksum and signature are over: compact JSON without the seal, the fields in their order. */
function canonical(fields: EntryFields): string {
  return JSON.stringify(Object.fromEntries(Object.entries(fields).filter(([k]) => !SEAL.has(k))));
}

/** The first line keeps signatures of different kinds of things apart. */
function messageOf(path: string, fields: string): Uint8Array {
  return encode(`hypercube entry\n${path}\n${fields}`);
}

function requireSignature(
  json: JsonReader,
  trusted: TrustedKeys,
  message: Uint8Array,
  name: string,
): void {
  const keyId = json.optional('keyId', (f) => f.string(KEY_ID_PATTERN, '16 hex digits'));
  const signature = json.optional('signature', (field) => field.string());
  if (keyId === undefined || signature === undefined) {
    throw new CubeError('DENIED', `${name} is not signed; ${whoIsTrusted(trusted)}`);
  }
  if (trusted.verifies(keyId, message, signature)) return;
  const why = trusted.keyIds.includes(keyId)
    ? `its signature by key ${keyId} is wrong`
    : `it is signed by key ${keyId}, which is not trusted`;
  throw new CubeError('DENIED', `${name}: ${why}; ${whoIsTrusted(trusted)}`);
}

export function whoIsTrusted(trusted: TrustedKeys): string {
  return `this reader takes only what is signed by ${trusted.keyIds.join(' or ')}`;
}

/** What a repository stores was checked when it was written: unreadable now means damaged. */
export function corruptWhenUnreadable<T>(read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (!(error instanceof CubeError) || error.code !== 'INVALID_ARGUMENT') throw error;
    throw new CubeError('CORRUPT', error.message, { cause: error });
  }
}

function encode(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}
