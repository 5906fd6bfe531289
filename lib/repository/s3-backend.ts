/**
 * A repository in a bucket of S3, or of a store that speaks its protocol. What a store answers is checked like anything from
 * outside: names that are no names are left out, ranges must be those asked for.
 */
import type { ListObjectsV2CommandOutput } from '@aws-sdk/client-s3';
import { CubeError } from '../core/errors.ts';
import { type Clock, systemClock, wallClockMs } from '../platform/clock.ts';
import type { Backend, Eraser, StoredObject } from './backend.ts';
import { gatherRange } from './gather-range.ts';
import { PaceTimer } from './pace-timer.ts';
import {
  connectS3,
  IDLE_MS,
  parseS3Url,
  type S3Connection,
  type S3Location,
  s3Error,
  statusOf,
} from './s3-client.ts';
import { S3Writer } from './s3-writer.ts';

/** Of 1000 names: a store that never ends its list is given up. */
const PAGES_MAX = 10_000;
const ETAGS_MAX = 10_000;
const PROBE = '.conditional-writes';

export class S3Backend implements Backend {
  readonly location: string;
  readonly canList = true;
  readonly eraser: Eraser = {
    objects: (folder) => this.#objects(folder),
    remove: (path) => this.#remove(path),
  };
  readonly #place: S3Location;
  readonly #writer: S3Writer;
  /** As of when an object's size was asked. */
  readonly #etags = new Map<string, string>();
  #connection: Promise<S3Connection> | undefined;

  /** @throws CubeError INVALID_ARGUMENT */
  constructor(url: string, clock: Clock = systemClock) {
    this.#place = parseS3Url(url);
    const { bucket, prefix, endpoint } = this.#place;
    // One name in two stores is two buckets.
    const host = endpoint === undefined ? '' : `${new URL(endpoint).host}/`;
    this.location = `s3://${host}${bucket}/${prefix}`.slice(0, -1);
    this.#writer = new S3Writer(() => this.#connect(), bucket, clock);
  }

  async read(path: string, maxBytes: number): Promise<Uint8Array> {
    const name = this.#name(path);
    const tooLarge = (bytes: number): CubeError =>
      new CubeError('TOO_LARGE', `${name}: ${bytes} bytes, the limit here is ${maxBytes}`);
    const bytes = await this.size(path);
    if (bytes === undefined) throw new CubeError('NOT_FOUND', `${name}: no such object`);
    if (bytes > maxBytes) throw tooLarge(bytes);
    return this.readRange(path, 0, bytes);
  }

  readRange(path: string, start: number, bytes: number, signal?: AbortSignal): Promise<Uint8Array> {
    return gatherRange(this.#name(path), bytes, (done, missing) =>
      this.#range(path, start + done, missing, signal),
    );
  }

  async size(path: string): Promise<number | undefined> {
    const { sdk, client } = await this.#connect();
    try {
      const head = await client.send(new sdk.HeadObjectCommand(this.#of(path)));
      if (this.#etags.size >= ETAGS_MAX) this.#etags.clear();
      if (head.ETag?.startsWith('"')) this.#etags.set(path, head.ETag);
      return head.ContentLength;
    } catch (error) {
      if (statusOf(error) === 404 && (error as Error).name !== 'NoSuchBucket') return undefined;
      throw s3Error(error, this.#name(path));
    }
  }

  async list(folder: string): Promise<string[]> {
    const names = new Set<string>();
    const prefix = this.#keyOf(folder);
    for await (const page of this.#pages(folder, '/')) {
      const keys = [
        ...(page.Contents ?? []).map(({ Key }) => Key),
        ...(page.CommonPrefixes ?? []).map(({ Prefix }) => Prefix?.replace(/\/$/, '')),
      ];
      for (const key of keys) {
        const name = key?.startsWith(prefix) ? key.slice(prefix.length) : '';
        if (name !== '' && !name.startsWith('.') && !/[/\\\0]/.test(name)) names.add(name);
      }
    }
    return [...names].sort();
  }

  async putIfAbsent(path: string, bytes: Uint8Array): Promise<boolean> {
    await this.#requireWritable();
    return this.#writer.put(this.#of(path).Key, bytes, this.#name(path));
  }

  async putFileIfAbsent(
    path: string,
    source: string,
    onBytes?: (bytes: number) => void,
  ): Promise<boolean> {
    if ((await this.size(path)) !== undefined) return false;
    await this.#requireWritable();
    return this.#writer.putFile(this.#of(path).Key, source, this.#name(path), onBytes);
  }

  /** Uploads in parts that nobody completed: they are paid for, and no list shows them. */
  async removeUnfinished(folder: string, idleMs: number): Promise<void> {
    const { sdk, client } = await this.#connect();
    const before = wallClockMs() - idleMs;
    const place = { Bucket: this.#place.bucket };
    try {
      const command = new sdk.ListMultipartUploadsCommand({
        ...place,
        Prefix: this.#keyOf(folder),
      });
      for (const { Key, UploadId, Initiated } of (await client.send(command)).Uploads ?? []) {
        if (!Key?.startsWith(this.#keyOf(folder)) || (Initiated?.getTime() ?? 0) > before) continue;
        await client.send(new sdk.AbortMultipartUploadCommand({ ...place, Key, UploadId }));
      }
    } catch (error) {
      throw s3Error(error, this.#name(folder));
    }
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
    const { sdk, client } = await this.#connect();
    const etag = this.#etags.get(path);
    const name = this.#name(path);
    const pace = new PaceTimer(IDLE_MS);
    const abortSignal = AbortSignal.any([pace.signal, ...(signal === undefined ? [] : [signal])]);
    try {
      const command = new sdk.GetObjectCommand({
        ...this.#of(path),
        Range: `bytes=${start}-${start + bytes - 1}`,
        ...(etag === undefined ? {} : { IfMatch: etag }),
      });
      const answer = await client.send(command, { abortSignal });
      const body = answer.Body as unknown as AsyncIterable<Uint8Array> & { destroy(): void };
      abortSignal.addEventListener('abort', () => body.destroy());
      if (!answer.ContentRange?.startsWith(`bytes ${start}-${start + bytes - 1}/`)) {
        body.destroy();
        throw new CubeError('CORRUPT', `${name}: it ends before, or the store sent another range`);
      }
      for await (const piece of body) {
        pace.count(piece.length);
        yield piece;
      }
    } catch (error) {
      if (signal?.aborted) throw new CubeError('STOPPING', `stopped while reading ${name}`);
      if (abortSignal.aborted) throw s3Error(abortSignal.reason, name);
      if (statusOf(error) !== 412) throw s3Error(error, name);
      throw new CubeError('CORRUPT', `${name}: it has changed since its size was asked`);
    } finally {
      pace.stop();
    }
  }

  async #objects(folder: string): Promise<StoredObject[]> {
    const nowMs = wallClockMs();
    const found: StoredObject[] = [];
    const root = this.#place.prefix;
    for await (const page of this.#pages(folder, undefined)) {
      for (const { Key, Size, LastModified } of page.Contents ?? []) {
        if (!Key?.startsWith(this.#keyOf(folder)) || LastModified === undefined) continue;
        const ageMs = nowMs - LastModified.getTime();
        found.push({ path: Key.slice(root.length), bytes: Size ?? 0, ageMs });
      }
    }
    return found;
  }

  async #remove(path: string): Promise<void> {
    const { sdk, client } = await this.#connect();
    try {
      await client.send(new sdk.DeleteObjectCommand(this.#of(path)));
    } catch (error) {
      throw s3Error(error, this.#name(path));
    }
  }

  async *#pages(
    folder: string,
    delimiter: string | undefined,
  ): AsyncGenerator<ListObjectsV2CommandOutput> {
    const { sdk, client } = await this.#connect();
    let token: string | undefined;
    for (let n = 0; n < PAGES_MAX; n++) {
      const command = new sdk.ListObjectsV2Command({
        Bucket: this.#place.bucket,
        Prefix: this.#keyOf(folder),
        ...(delimiter === undefined ? {} : { Delimiter: delimiter }),
        ...(token === undefined ? {} : { ContinuationToken: token }),
      });
      const page = await client.send(command).catch((error: unknown) => {
        throw s3Error(error, this.#name(folder));
      });
      yield page;
      token = page.IsTruncated ? page.NextContinuationToken : undefined;
      if (token === undefined) return;
    }
    throw new CubeError('CORRUPT', `${this.#name(folder)}: the store's list does not end`);
  }

  #requireWritable(): Promise<void> {
    return this.#writer.requireConditional(`${this.#place.prefix}${PROBE}`);
  }

  #connect(): Promise<S3Connection> {
    this.#connection ??= connectS3(this.#place);
    return this.#connection;
  }

  #of(path: string): { Bucket: string; Key: string } {
    return { Bucket: this.#place.bucket, Key: `${this.#place.prefix}${path}` };
  }

  /** What every key below a folder begins with. */
  #keyOf(folder: string): string {
    return folder === '' ? this.#place.prefix : `${this.#place.prefix}${folder}/`;
  }

  #name(path: string): string {
    return `${this.location}/${path}`;
  }
}
