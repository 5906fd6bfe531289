/**
 * Small JSON objects that are written once: entries of logs, quarantines, signatures of manifests.
 * Each has the SHA-256 of its fields, and a signature if the writer has a key. A signature covers
 * the object's path and fields, so an entry copied to another path has no valid signature.
 */
import { CubeError } from '../core/errors.ts';
import { JsonReader } from '../core/json.ts';
import type { Backend } from './backend.ts';
import { KEY_ID_PATTERN, type SigningKey, type TrustedKeys } from './signatures.ts';
import { computeSha256 } from './verified-copy.ts';

/** Entries with a longer reason are refused. */
const ENTRY_BYTES_MAX = 65_536;
/** The checksum and signature fields, which are added to an entry's own. */
const SEAL_FIELDS = new Set(['sha256', 'keyId', 'signature']);

/** The fields of an entry: plain JSON. */
export type EntryFields = Readonly<Record<string, unknown>>;

/** With `signing` everything written is signed; with `trusted` only what they signed is read. */
export interface RepositoryKeys {
  readonly signing?: SigningKey | undefined;
  readonly trusted?: TrustedKeys | undefined;
}

type EntrySource = Pick<Backend, 'location' | 'read'>;

/**
 * @throws CubeError NOT_FOUND; CORRUPT naming a damaged entry; DENIED if no trusted key signed it
 */
export async function readEntry(
  source: EntrySource,
  path: string,
  trusted?: TrustedKeys,
): Promise<JsonReader> {
  const bytes = await source.read(path, ENTRY_BYTES_MAX);
  const name = `${source.location}/${path}`;
  return rethrowAsCorrupt(() => {
    const json = JsonReader.parse(new TextDecoder().decode(bytes), name);
    const fields = toCanonicalJson(
      Object.fromEntries(json.entries().map(([key, f]) => [key, f.value])),
    );
    const sha256 = json.optional('sha256', (field) => field.string());
    if (sha256 !== undefined && sha256 !== computeSha256(encodeText(fields))) {
      throw new CubeError(
        'CORRUPT',
        `${name} is damaged: its fields do not match its SHA-256; put the entry back, or remove it`,
      );
    }
    if (trusted !== undefined)
      requireTrustedSignature(json, trusted, toSignedMessage(path, fields), name);
    return json;
  });
}

/** @returns false, with nothing changed, if the entry exists. @throws CubeError TOO_LARGE */
export function putEntry(
  backend: Backend,
  path: string,
  fields: EntryFields,
  signing?: SigningKey,
): Promise<boolean> {
  const text = toCanonicalJson(fields);
  const sha256 = computeSha256(encodeText(text));
  const signed =
    signing === undefined
      ? {}
      : { keyId: signing.keyId, signature: signing.sign(toSignedMessage(path, text)) };
  const bytes = encodeText(`${JSON.stringify({ ...JSON.parse(text), sha256, ...signed })}\n`);
  if (bytes.length > ENTRY_BYTES_MAX) {
    throw new CubeError(
      'TOO_LARGE',
      `the entry is larger than ${ENTRY_BYTES_MAX} bytes; give a shorter reason`,
    );
  }
  return backend.putIfAbsent(path, bytes);
}

/** What checksum and signature cover: compact JSON of the other fields in their order. */
function toCanonicalJson(fields: EntryFields): string {
  return JSON.stringify(
    Object.fromEntries(Object.entries(fields).filter(([k]) => !SEAL_FIELDS.has(k))),
  );
}

/** The first line separates these signatures from those of other kinds of objects. */
function toSignedMessage(path: string, fields: string): Uint8Array {
  return encodeText(`hypercube entry\n${path}\n${fields}`);
}

function requireTrustedSignature(
  json: JsonReader,
  trusted: TrustedKeys,
  message: Uint8Array,
  name: string,
): void {
  const keyId = json.optional('keyId', (f) => f.string(KEY_ID_PATTERN, '16 hex digits'));
  const signature = json.optional('signature', (field) => field.string());
  if (keyId === undefined || signature === undefined) {
    throw new CubeError('DENIED', `${name} is not signed; ${describeTrustedKeys(trusted)}`);
  }
  if (trusted.verify(keyId, message, signature)) return;
  const reason = trusted.keyIds.includes(keyId)
    ? `its signature by key ${keyId} is invalid`
    : `it is signed by key ${keyId}, which is not trusted`;
  throw new CubeError('DENIED', `${name}: ${reason}; ${describeTrustedKeys(trusted)}`);
}

export function describeTrustedKeys(trusted: TrustedKeys): string {
  return `only signatures by ${trusted.keyIds.join(' or ')} are accepted`;
}

/** What a damaged object's error says to people who did not ask doctor or cube-check. */
export const ASK_DOCTOR = '; cube-agent doctor and cube-check say how to restore it';

/** Objects were checked when they were written, so an unreadable object is damaged. */
export function rethrowAsCorrupt<T>(read: () => T, remedy: string = ASK_DOCTOR): T {
  try {
    return read();
  } catch (error) {
    if (!(error instanceof CubeError) || error.code !== 'INVALID_ARGUMENT') throw error;
    throw new CubeError('CORRUPT', error.message + remedy, { cause: error });
  }
}

function encodeText(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}
