/**
 * A repository below a URL, on any server of static files: read-only. Nobody can list over HTTP, so versions are named, logs
 * are probed entry by entry and quarantines version by version. The server must honour Range, for layers are fetched in
 * pieces and resumed; where it gives ETags, an object that changes between two pieces is noticed at once.
 */
import { CubeError } from '../core/errors.ts';
import { type Clock, systemClock } from '../platform/clock.ts';
import type { Backend } from './backend.ts';
import { gatherRange } from './gather-range.ts';
import { type HttpAnswer, HttpClient } from './http-client.ts';

const IDLE_MS = 20_000;
/** Objects whose ETags are remembered. */
const ETAGS_MAX = 10_000;
const CONTENT_RANGE = /^bytes (\d{1,15})-(\d{1,15})\/(\d{1,15}|\*)$/;

export class HttpBackend implements Backend {
  readonly location: string;
  readonly canList = false;
  readonly #client: HttpClient;
  /** As of when an object's size was asked. */
  readonly #etags = new Map<string, string>();

  constructor(url: string, options: { clock?: Clock; idleMs?: number } = {}) {
    const { clock = systemClock, idleMs = IDLE_MS } = options;
    this.#client = new HttpClient(url, { clock, idleMs });
    this.location = this.#client.location;
  }

  async read(path: string, maxBytes: number): Promise<Uint8Array> {
    const answer = await this.#client.request('GET', path);
    if (isAbsent(answer)) throw this.#absent(path, answer);
    if (answer.status !== 200) throw this.#unexpected(path, answer);
    const announced = contentLength(answer);
    if (announced !== undefined && announced > maxBytes) {
      answer.discard();
      throw this.#tooLarge(path, announced, maxBytes);
    }
    const pieces: Uint8Array[] = [];
    let bytes = 0;
    for await (const piece of answer.body()) {
      bytes += piece.length;
      if (bytes > maxBytes) throw this.#tooLarge(path, bytes, maxBytes);
      pieces.push(piece);
    }
    if (announced === undefined || announced === bytes) return Buffer.concat(pieces);
    throw new CubeError(
      'UNAVAILABLE',
      `${this.location}/${path}: ${bytes} bytes came, the server announced ${announced}`,
    );
  }

  readRange(path: string, start: number, bytes: number, signal?: AbortSignal): Promise<Uint8Array> {
    return gatherRange(`${this.location}/${path}`, bytes, (done, missing) =>
      this.#range(path, start + done, missing, signal),
    );
  }

  async size(path: string): Promise<number | undefined> {
    let answer = await this.#client.request('HEAD', path);
    answer.discard();
    let bytes = answer.status === 200 ? contentLength(answer) : undefined;
    if (isAbsent(answer)) return undefined;
    if (bytes === undefined) {
      // Some servers know HEAD not at all, or without the length.
      answer = await this.#client.request('GET', path, { range: 'bytes=0-0' });
      answer.discard();
      if (isAbsent(answer)) return undefined;
      if (answer.status === 416) return 0;
      const total = CONTENT_RANGE.exec(answer.headers.get('content-range') ?? '')?.[3];
      bytes = total === undefined || total === '*' ? contentLength(answer) : Number(total);
      if (bytes === undefined || answer.status > 206) throw this.#unexpected(path, answer);
    }
    this.#remember(path, answer);
    return bytes;
  }

  async list(_folder: string): Promise<string[]> {
    throw new CubeError(
      'UNSUPPORTED',
      `${this.location}: nobody can list over HTTP; name the version or the channel`,
    );
  }

  async putIfAbsent(): Promise<boolean> {
    throw this.#readOnly();
  }

  async putFileIfAbsent(): Promise<boolean> {
    throw this.#readOnly();
  }

  async removeUnfinished(): Promise<void> {
    throw this.#readOnly();
  }

  localPath(): undefined {
    return undefined;
  }

  /** The bytes asked for, as they come. @throws CubeError CORRUPT when the object has changed or ends before */
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
    const answer = await this.#client.request('GET', path, headers, signal);
    if (isAbsent(answer)) throw this.#absent(path, answer);
    const got = answer.headers.get('etag');
    const isChanged = etag !== undefined && got !== null && got !== etag;
    const place = CONTENT_RANGE.exec(answer.headers.get('content-range') ?? '');
    const isRight =
      answer.status === 206 &&
      !isChanged &&
      Number(place?.[1]) === start &&
      Number(place?.[2]) === start + bytes - 1;
    if (isRight) {
      yield* answer.body();
      return;
    }
    answer.discard();
    if (isChanged) throw this.#wrongRange(path, 'it has changed since its size was asked');
    if (answer.status === 416 || place !== null) throw this.#wrongRange(path, 'it ends before');
    if (answer.status !== 200) throw this.#unexpected(path, answer);
    throw new CubeError(
      'UNSUPPORTED',
      `${this.location}/${path}: the server does not honour Range, so no layer can be fetched in pieces`,
    );
  }

  /** Only strong ones: a weak one does not promise equal bytes. */
  #remember(path: string, answer: HttpAnswer): void {
    const etag = answer.headers.get('etag');
    if (this.#etags.size >= ETAGS_MAX) this.#etags.clear();
    if (etag?.startsWith('"')) this.#etags.set(path, etag);
    else this.#etags.delete(path);
  }

  #absent(path: string, answer: HttpAnswer): CubeError {
    answer.discard();
    return new CubeError('NOT_FOUND', `${this.location}/${path}: no such object`);
  }

  #unexpected(path: string, answer: HttpAnswer): CubeError {
    answer.discard();
    return new CubeError(
      'UNSUPPORTED',
      `${this.location}/${path}: the server answers ${answer.status}`,
    );
  }

  #wrongRange(path: string, why: string): CubeError {
    return new CubeError('CORRUPT', `${this.location}/${path}: ${why}`);
  }

  #tooLarge(path: string, bytes: number, maxBytes: number): CubeError {
    return new CubeError(
      'TOO_LARGE',
      `${this.location}/${path}: ${bytes} bytes, the limit here is ${maxBytes}`,
    );
  }

  #readOnly(): CubeError {
    return new CubeError(
      'UNSUPPORTED',
      `${this.location}: a repository is read-only over HTTP; publish and activate in its folder or bucket`,
    );
  }
}

function isAbsent({ status }: HttpAnswer): boolean {
  return status === 404 || status === 410;
}

function contentLength({ headers }: HttpAnswer): number | undefined {
  const text = headers.get('content-length') ?? '';
  return /^\d{1,15}$/.test(text) ? Number(text) : undefined;
}
