/**
 * A repository below a URL, on any server of static files: read-only. HTTP cannot list, so versions
 * are named by the caller, logs are probed entry by entry and quarantines version by version. The
 * server must support Range, because layers are fetched in chunks and resumed. If it sends ETags,
 * an object that changes between two chunks is detected at once.
 */
import { CubeError } from '../core/errors.ts';
import { type Clock, systemClock } from '../platform/clock.ts';
import type { Backend } from './backend.ts';
import { HttpClient, type HttpResponse } from './http-client.ts';
import { readResumableRange } from './remote-reads.ts';

const IDLE_MS = 20_000;
/** At most this many ETags are remembered. */
const ETAGS_MAX = 10_000;
const CONTENT_RANGE = /^bytes (\d{1,15})-(\d{1,15})\/(\d{1,15}|\*)$/;

export class HttpBackend implements Backend {
  readonly location: string;
  readonly canList = false;
  readonly #client: HttpClient;
  /** ETags by path, from the time `size` was called. */
  readonly #etags = new Map<string, string>();

  constructor(url: string, options: { clock?: Clock; idleMs?: number } = {}) {
    const { clock = systemClock, idleMs = IDLE_MS } = options;
    this.#client = new HttpClient(url, { clock, idleMs });
    this.location = this.#client.location;
  }

  async read(path: string, maxBytes: number): Promise<Uint8Array> {
    const response = await this.#client.request('GET', path);
    if (isMissing(response)) throw this.#missing(path, response);
    if (response.status !== 200) throw this.#unexpected(path, response);
    const announced = contentLength(response);
    if (announced !== undefined && announced > maxBytes) {
      response.discard();
      throw this.#tooLarge(path, announced, maxBytes);
    }
    const chunks: Uint8Array[] = [];
    let bytes = 0;
    for await (const chunk of response.body()) {
      bytes += chunk.length;
      if (bytes > maxBytes) throw this.#tooLarge(path, bytes, maxBytes);
      chunks.push(chunk);
    }
    if (announced === undefined || announced === bytes) return Buffer.concat(chunks);
    throw new CubeError(
      'UNAVAILABLE',
      `${this.location}/${path}: received ${bytes} bytes, the server announced ${announced}; retry`,
    );
  }

  readRange(path: string, start: number, bytes: number, signal?: AbortSignal): Promise<Uint8Array> {
    return readResumableRange(`${this.location}/${path}`, bytes, (done, missing) =>
      this.#range(path, start + done, missing, signal),
    );
  }

  async size(path: string): Promise<number | undefined> {
    let response = await this.#client.request('HEAD', path);
    response.discard();
    let bytes = response.status === 200 ? contentLength(response) : undefined;
    if (isMissing(response)) return undefined;
    if (bytes === undefined) {
      // Some servers do not support HEAD, or omit the length.
      response = await this.#client.request('GET', path, { range: 'bytes=0-0' });
      response.discard();
      if (isMissing(response)) return undefined;
      if (response.status === 416) return 0;
      const total = CONTENT_RANGE.exec(response.headers.get('content-range') ?? '')?.[3];
      bytes = total === undefined || total === '*' ? contentLength(response) : Number(total);
      if (bytes === undefined || response.status > 206) throw this.#unexpected(path, response);
    }
    this.#remember(path, response);
    return bytes;
  }

  async list(_folder: string): Promise<string[]> {
    throw new CubeError(
      'UNSUPPORTED',
      `${this.location} cannot be listed over HTTP; name the version or the channel`,
    );
  }

  async putIfAbsent(): Promise<boolean> {
    throw this.#readOnly();
  }

  async putFileIfAbsent(): Promise<boolean> {
    throw this.#readOnly();
  }

  async removeUnfinishedWrites(): Promise<void> {
    throw this.#readOnly();
  }

  localPath(): undefined {
    return undefined;
  }

  /** Streams the bytes. @throws CubeError CORRUPT if the object has changed or is shorter */
  async *#range(
    path: string,
    start: number,
    bytes: number,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<Uint8Array> {
    const etag = this.#etags.get(path);
    const headers = {
      range: `bytes=${start}-${start + bytes - 1}`,
      ...(etag === undefined ? {} : { 'if-range': etag }),
    };
    const response = await this.#client.request('GET', path, headers, signal);
    if (isMissing(response)) throw this.#missing(path, response);
    const newEtag = response.headers.get('etag');
    const isChanged = etag !== undefined && newEtag !== null && newEtag !== etag;
    const contentRange = CONTENT_RANGE.exec(response.headers.get('content-range') ?? '');
    const isRight =
      response.status === 206 &&
      !isChanged &&
      Number(contentRange?.[1]) === start &&
      Number(contentRange?.[2]) === start + bytes - 1;
    if (isRight) {
      yield* response.body();
      return;
    }
    response.discard();
    if (isChanged) throw this.#wrongRange(path, 'the object has changed since its size was read');
    if (response.status === 416 || contentRange !== null)
      throw this.#wrongRange(path, 'the object is shorter than expected');
    if (response.status !== 200) throw this.#unexpected(path, response);
    throw new CubeError(
      'UNSUPPORTED',
      `${this.location}/${path}: the server does not honour Range, ` +
        'which fetching layers in chunks needs',
    );
  }

  /** Only strong ETags: a weak one does not guarantee equal bytes. */
  #remember(path: string, response: HttpResponse): void {
    const etag = response.headers.get('etag');
    if (this.#etags.size >= ETAGS_MAX) this.#etags.clear();
    if (etag?.startsWith('"')) this.#etags.set(path, etag);
    else this.#etags.delete(path);
  }

  #missing(path: string, response: HttpResponse): CubeError {
    response.discard();
    return new CubeError('NOT_FOUND', `${this.location}/${path}: no such object`);
  }

  #unexpected(path: string, response: HttpResponse): CubeError {
    response.discard();
    return new CubeError(
      'UNSUPPORTED',
      `${this.location}/${path}: the server responded with HTTP ${response.status}`,
    );
  }

  #wrongRange(path: string, why: string): CubeError {
    return new CubeError('CORRUPT', `${this.location}/${path}: ${why}`);
  }

  #tooLarge(path: string, bytes: number, maxBytes: number): CubeError {
    return new CubeError(
      'TOO_LARGE',
      `${this.location}/${path} has ${bytes} bytes, the limit is ${maxBytes}`,
    );
  }

  #readOnly(): CubeError {
    return new CubeError(
      'UNSUPPORTED',
      `${this.location} is read-only over HTTP; publish and activate in its folder or bucket`,
    );
  }
}

function isMissing({ status }: HttpResponse): boolean {
  return status === 404 || status === 410;
}

function contentLength({ headers }: HttpResponse): number | undefined {
  const text = headers.get('content-length') ?? '';
  return /^\d{1,15}$/.test(text) ? Number(text) : undefined;
}
