/**
 * Brings one object of a repository to this machine: resumed where an earlier attempt stopped, not faster than
 * asked, its SHA-256 computed while it streams. It arrives whole and right, or not at all.
 */
import { createHash, type Hash } from 'node:crypto';
import { CubeError } from '../core/errors.ts';
import type { Clock } from '../platform/clock.ts';
import { fileBytes, fileExists, RandomReader } from '../platform/files.ts';
import { PartialFile } from '../platform/partial-file.ts';
import type { RateLimit } from '../platform/rate-limit.ts';
import type { Backend } from './backend.ts';

const PIECE_BYTES = 4 << 20;
/** From a slow source pieces are small: what has come is seen, and kept when the copy stops. */
const FIRST_PIECE_BYTES = 256 << 10;
const SMALLEST_PIECE_BYTES = 16 << 10;
const SLOW_PIECE_MS = 1000;

export interface CopyOptions {
  /** Shared by all copies that it limits together. */
  readonly rate?: RateLimit;
  /** Bytes that arrived since the last call; those of an earlier attempt are told at once. */
  readonly onBytes?: (bytes: number) => void;
  /** Stops between two pieces; what has arrived is kept for the next attempt. */
  readonly signal?: AbortSignal;
  /** Where the pieces gather; default: `<target>.part`, which the next attempt resumes. */
  readonly partPath?: string;
}

export interface ExpectedContent {
  readonly bytes: number;
  readonly sha256: string;
}

interface Source {
  readonly backend: Backend;
  readonly path: string;
}

/** Where the file is already in place nothing is read: only whole files get there. */
export async function copyVerified(
  source: Source,
  expected: ExpectedContent,
  target: string,
  options: CopyOptions & { clock: Clock },
): Promise<void> {
  await requireSize(source, expected.bytes);
  if (fileExists(target) && fileBytes(target) === expected.bytes) return;
  const part = new PartialFile(target, options.partPath);
  let sha256: string;
  try {
    const hash = resume(part, expected.bytes, options);
    await stream(source, expected.bytes, part, hash, options);
    sha256 = hash.digest('hex');
  } catch (error) {
    part.close();
    throw error;
  }
  if (sha256 !== expected.sha256) {
    part.discard();
    throw otherContent(source, sha256, expected);
  }
  part.commit();
}

/** Reads an object through and keeps nothing of it. @throws CubeError CORRUPT when it is not what is expected; NOT_FOUND */
export async function verifyContent(
  source: Source,
  expected: ExpectedContent,
  options: Pick<CopyOptions, 'signal' | 'onBytes'> & { clock: Clock },
): Promise<void> {
  await requireSize(source, expected.bytes);
  const hash = createHash('sha256');
  const nowhere = { bytes: 0, append: ({ length }: Uint8Array) => (nowhere.bytes += length) };
  await stream(source, expected.bytes, nowhere, hash, options);
  const sha256 = hash.digest('hex');
  if (sha256 !== expected.sha256) throw otherContent(source, sha256, expected);
}

async function requireSize({ backend, path }: Source, bytes: number): Promise<void> {
  const size = await backend.size(path);
  if (size === bytes) return;
  const name = `${backend.location}/${path}`;
  throw size === undefined
    ? new CubeError('NOT_FOUND', `${name} is missing`)
    : new CubeError(
        'CORRUPT',
        `${name}: ${size} bytes, the manifest says ${bytes}; publish the version again`,
      );
}

function otherContent(
  { backend, path }: Source,
  sha256: string,
  expected: ExpectedContent,
): CubeError {
  return new CubeError(
    'CORRUPT',
    `${backend.location}/${path}: SHA-256 ${sha256}, the manifest says ${expected.sha256}; ` +
      'the source is damaged or was cut on its way: nothing of it was kept',
  );
}

/** Hashes what an earlier attempt left; more than the whole is nothing of use. */
function resume(part: PartialFile, bytes: number, options: CopyOptions): Hash {
  const hash = createHash('sha256');
  if (part.bytes > bytes) part.clear();
  const buffer = new Uint8Array(Math.min(PIECE_BYTES, Math.max(part.bytes, 1)));
  for (let at = 0; at < part.bytes; ) {
    const got = part.read(buffer, at);
    hash.update(buffer.subarray(0, got));
    at += got;
  }
  if (part.bytes > 0) options.onBytes?.(part.bytes);
  return hash;
}

async function stream(
  source: Source,
  bytes: number,
  part: Pick<PartialFile, 'bytes' | 'append'>,
  hash: Hash,
  options: CopyOptions & { clock: Clock },
): Promise<void> {
  const { rate, clock, signal } = options;
  // A quarter of a second at a time, so that a slow copy is smooth and stops soon.
  const mostBytes =
    rate === undefined
      ? PIECE_BYTES
      : Math.max(1, Math.min(PIECE_BYTES, Math.floor(rate.bytesPerSecond / 4)));
  let pieceBytes = Math.min(FIRST_PIECE_BYTES, mostBytes);
  while (part.bytes < bytes) {
    if (signal?.aborted) throw new CubeError('STOPPING', `stopped while copying ${source.path}`);
    const want = Math.min(pieceBytes, bytes - part.bytes);
    const startMs = clock.nowMs();
    const piece = await source.backend.readRange(source.path, part.bytes, want, signal);
    const isSlow = clock.nowMs() - startMs > SLOW_PIECE_MS;
    const next = isSlow ? Math.max(SMALLEST_PIECE_BYTES, pieceBytes >> 1) : 2 * pieceBytes;
    pieceBytes = Math.min(mostBytes, next);
    part.append(piece);
    hash.update(piece);
    options.onBytes?.(piece.length);
    // Waiting even for nothing lets signals and timers in between two pieces.
    await (rate?.take(piece.length, signal) ?? clock.sleep(0, signal));
  }
}

/** The SHA-256 of a local file, read in pieces. */
export async function fileSha256(path: string, clock: Clock): Promise<string> {
  const reader = new RandomReader(path);
  try {
    const hash = createHash('sha256');
    const buffer = new Uint8Array(Math.min(PIECE_BYTES, Math.max(reader.bytes, 1)));
    for (let at = 0; at < reader.bytes; at += buffer.length) {
      const piece = buffer.subarray(0, Math.min(buffer.length, reader.bytes - at));
      reader.readInto(piece, at);
      hash.update(piece);
      await clock.sleep(0);
    }
    return hash.digest('hex');
  } finally {
    reader.close();
  }
}

export function bytesSha256(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}
