/**
 * Copies an object of a repository to this machine: resumes an interrupted copy, limits the rate
 * and computes the SHA-256 while it streams. The file appears complete and correct, or not at all.
 */
import { createHash, type Hash } from 'node:crypto';
import { CubeError } from '../core/errors.ts';
import type { ByteRateLimiter } from '../platform/byte-rate-limiter.ts';
import type { Clock } from '../platform/clock.ts';
import { fileExists, getFileBytes, RandomAccessReader } from '../platform/files.ts';
import { PartialFile } from '../platform/partial-file.ts';
import type { Backend } from './backend.ts';

const PUBLISH_AGAIN =
  "; the repository's copy is damaged: delete it there, then publish the version again";
/** Hashed at a time beside requests. */
const SLICE_BYTES = 512 << 10;
const CHUNK_BYTES_MAX = 4 << 20;
const LOCAL_CHUNK_BYTES_MAX = 1 << 20;
/** Chunks of a slow source are small, so that progress is visible and kept when the copy stops. */
const CHUNK_BYTES_FIRST = 256 << 10;
const CHUNK_BYTES_MIN = 16 << 10;
const SLOW_CHUNK_MS = 1000;

/**
 * Chunks of files of this machine, of all copies in turn: memory that is used again costs less to
 * fill than new memory. A copy must be done with its chunk before it waits for anything.
 */
let localChunk: Uint8Array | undefined;

export interface CopyOptions {
  /** Shared by all copies that it limits together. */
  readonly rate?: ByteRateLimiter;
  /**
   * Called with the bytes that arrived since the last call, first with those of an earlier attempt.
   */
  readonly onBytes?: (bytes: number) => void;
  /** Stops the copy between two chunks; what has arrived is kept for the next attempt. */
  readonly signal?: AbortSignal;
  /** The file of an incomplete copy, which the next attempt resumes; default `<target>.part`. */
  readonly partPath?: string;
}

export interface ExpectedContent {
  readonly bytes: number;
  readonly sha256: string;
}

/** What was found where content is expected. */
export interface FoundContent {
  /** Undefined: there is no such object. */
  readonly bytes: number | undefined;
  /** Undefined: not computed. */
  readonly sha256?: string | undefined;
}

interface ObjectSource {
  readonly backend: Backend;
  readonly path: string;
}

/**
 * Reads nothing if the file exists with the expected size: only verified files get that name.
 * @throws CubeError NOT_FOUND; CORRUPT for other content than expected; STOPPING
 */
export async function copyVerified(
  source: ObjectSource,
  expected: ExpectedContent,
  target: string,
  options: CopyOptions & { clock: Clock },
): Promise<void> {
  await requireSize(source, expected, PUBLISH_AGAIN);
  if (fileExists(target) && getFileBytes(target) === expected.bytes) return;
  const part = new PartialFile(target, options.partPath);
  let sha256: string;
  try {
    const hash = hashPartialFile(part, expected.bytes, options);
    await streamChunks(source, expected.bytes, part, hash, options);
    sha256 = hash.digest('hex');
  } catch (error) {
    part.close();
    throw error;
  }
  if (sha256 !== expected.sha256) part.discard();
  requireContent(getName(source), { bytes: expected.bytes, sha256 }, expected, PUBLISH_AGAIN);
  part.commit();
}

/** Reads an object and keeps nothing. @throws CubeError NOT_FOUND; CORRUPT for other content */
export async function verifyContent(
  source: ObjectSource,
  expected: ExpectedContent,
  options: Pick<CopyOptions, 'signal' | 'onBytes'> & { clock: Clock },
): Promise<void> {
  await requireSize(source, expected);
  const hash = createHash('sha256');
  const counter = { bytes: 0, append: ({ length }: Uint8Array) => (counter.bytes += length) };
  await streamChunks(source, expected.bytes, counter, hash, options);
  const found = { bytes: expected.bytes, sha256: hash.digest('hex') };
  requireContent(getName(source), found, expected);
}

/**
 * @param name of the object, for errors
 * @param remedy what to do, appended to the message of CORRUPT
 * @throws CubeError NOT_FOUND if it is missing; CORRUPT if its size or SHA-256 differs
 */
export function requireContent(
  name: string,
  found: FoundContent,
  expected: ExpectedContent,
  remedy = '',
): void {
  const { bytes, sha256 } = found;
  if (bytes === undefined) throw new CubeError('NOT_FOUND', `${name} is missing`);
  if (bytes !== expected.bytes) {
    const text = `${name} has ${bytes} bytes, but the manifest says ${expected.bytes}`;
    throw new CubeError('CORRUPT', text + remedy);
  }
  if (sha256 !== undefined && sha256 !== expected.sha256) {
    const text = `${name} has SHA-256 ${sha256}, but the manifest says ${expected.sha256}`;
    throw new CubeError('CORRUPT', text + remedy);
  }
}

async function requireSize(
  source: ObjectSource,
  expected: ExpectedContent,
  remedy = '',
): Promise<void> {
  const bytes = await source.backend.size(source.path);
  requireContent(getName(source), { bytes }, expected, remedy);
}

function getName({ backend, path }: ObjectSource): string {
  return `${backend.location}/${path}`;
}

/** Hashes what an earlier attempt left; a file longer than expected is dropped. */
function hashPartialFile(part: PartialFile, bytes: number, options: CopyOptions): Hash {
  const hash = createHash('sha256');
  if (part.bytes > bytes) part.clear();
  const buffer = new Uint8Array(Math.min(CHUNK_BYTES_MAX, Math.max(part.bytes, 1)));
  for (let offset = 0; offset < part.bytes; ) {
    const length = part.read(buffer, offset);
    hash.update(buffer.subarray(0, length));
    offset += length;
  }
  if (part.bytes > 0) options.onBytes?.(part.bytes);
  return hash;
}

async function streamChunks(
  source: ObjectSource,
  bytes: number,
  part: Pick<PartialFile, 'bytes' | 'append'>,
  hash: Hash,
  options: CopyOptions & { clock: Clock },
): Promise<void> {
  const { rate, clock, signal } = options;
  const { backend, path } = source;
  const localPath = backend.localPath(path);
  const file = localPath === undefined ? undefined : new RandomAccessReader(localPath);
  const bytesMax = file === undefined ? CHUNK_BYTES_MAX : LOCAL_CHUNK_BYTES_MAX;
  // At most a quarter of a second's bytes, so that a limited copy is smooth and stops soon.
  const chunkBytesMax =
    rate === undefined
      ? bytesMax
      : Math.max(1, Math.min(bytesMax, Math.floor(rate.bytesPerSecond / 4)));
  let chunkBytes = Math.min(CHUNK_BYTES_FIRST, chunkBytesMax);
  try {
    while (part.bytes < bytes) {
      if (signal?.aborted) throw new CubeError('STOPPING', `stopped while copying ${path}`);
      const length = Math.min(chunkBytes, bytes - part.bytes);
      const startMs = clock.nowMs();
      let chunk: Uint8Array;
      if (file === undefined) {
        chunk = await backend.readRange(path, part.bytes, length, signal);
      } else {
        localChunk ??= new Uint8Array(LOCAL_CHUNK_BYTES_MAX);
        chunk = localChunk.subarray(0, length);
        file.readInto(chunk, part.bytes);
      }
      const isSlow = clock.nowMs() - startMs > SLOW_CHUNK_MS;
      const next = isSlow ? Math.max(CHUNK_BYTES_MIN, chunkBytes >> 1) : 2 * chunkBytes;
      chunkBytes = Math.min(chunkBytesMax, next);
      part.append(chunk);
      hash.update(chunk);
      options.onBytes?.(chunk.length);
      // Even a wait of 0 ms lets signals and timers run between two chunks.
      await (rate?.acquire(chunk.length, signal) ?? clock.sleep(0, signal));
    }
  } finally {
    file?.close();
  }
}

/** The SHA-256 of a local file, read in chunks. */
export async function computeFileSha256(path: string, clock: Clock): Promise<string> {
  const reader = new RandomAccessReader(path);
  try {
    const hash = createHash('sha256');
    const buffer = new Uint8Array(Math.min(CHUNK_BYTES_MAX, Math.max(reader.bytes, 1)));
    for (let offset = 0; offset < reader.bytes; offset += buffer.length) {
      const chunk = buffer.subarray(0, Math.min(buffer.length, reader.bytes - offset));
      reader.readInto(chunk, offset);
      hash.update(chunk);
      await clock.sleep(0);
    }
    return hash.digest('hex');
  } finally {
    reader.close();
  }
}

export function computeSha256(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

/** Hashes in slices of about a millisecond, so that the thread answers requests between them. */
export async function computeSha256InSlices(bytes: Uint8Array): Promise<string> {
  const hash = createHash('sha256');
  for (let at = 0; at < bytes.length; at += SLICE_BYTES) {
    if (at > 0) await new Promise((resolve) => setImmediate(resolve));
    hash.update(bytes.subarray(at, at + SLICE_BYTES));
  }
  return hash.digest('hex');
}
