/**
 * A repository in a bucket of S3, or of a store with the same protocol. Responses of the store are
 * checked like all input: invalid names are skipped, and ranges must be those requested.
 */
import type {
  ListMultipartUploadsCommandOutput,
  ListObjectsV2CommandOutput,
} from '@aws-sdk/client-s3';
import { CubeError } from '../core/errors.ts';
import { type Clock, systemClock, wallClockMs } from '../platform/clock.ts';
import type { Backend, ObjectDeleter, StoredObject } from './backend.ts';
import { readResumableRange, StallDetector } from './remote-reads.ts';
import {
  connectS3,
  convertS3Error,
  getHttpStatus,
  parseS3Url,
  S3_IDLE_MS,
  type S3Connection,
  type S3Location,
} from './s3-client.ts';
import type { S3Writer } from './s3-writer.ts';

/** Pages of 1000 names; a listing with more pages is treated as endless. */
const PAGES_MAX = 10_000;
const ETAGS_MAX = 10_000;
const PROBE_OBJECT = '.conditional-writes';

export class S3Backend implements Backend {
  readonly location: string;
  readonly canList = true;
  readonly deleter: ObjectDeleter = {
    listObjects: (folder) => this.#objects(folder),
    remove: (path) => this.#remove(path),
  };
  readonly #s3: S3Location;
  readonly #clock: Clock;
  #writer: Promise<S3Writer> | undefined;
  /** ETags by path, from the time `size` was called. */
  readonly #etags = new Map<string, string>();
  #connection: Promise<S3Connection> | undefined;

  /** @throws CubeError INVALID_ARGUMENT */
  constructor(url: string, clock: Clock = systemClock) {
    this.#s3 = parseS3Url(url);
    const { bucket, prefix, endpoint } = this.#s3;
    // Buckets of one name in two stores are different.
    const host = endpoint === undefined ? '' : `${new URL(endpoint).host}/`;
    this.location = `s3://${host}${bucket}/${prefix}`.slice(0, -1);
    this.#clock = clock;
  }

  async read(path: string, maxBytes: number): Promise<Uint8Array> {
    const name = this.#name(path);
    const tooLarge = (bytes: number): CubeError =>
      new CubeError('TOO_LARGE', `${name} has ${bytes} bytes, the limit is ${maxBytes}`);
    const bytes = await this.size(path);
    if (bytes === undefined) throw new CubeError('NOT_FOUND', `${name}: no such object`);
    if (bytes > maxBytes) throw tooLarge(bytes);
    return this.readRange(path, 0, bytes);
  }

  readRange(path: string, start: number, bytes: number, signal?: AbortSignal): Promise<Uint8Array> {
    return readResumableRange(this.#name(path), bytes, (done, missing) =>
      this.#range(path, start + done, missing, signal),
    );
  }

  async size(path: string): Promise<number | undefined> {
    const { sdk, client } = await this.#connect();
    try {
      const head = await client.send(new sdk.HeadObjectCommand(this.#toObject(path)));
      if (this.#etags.size >= ETAGS_MAX) this.#etags.clear();
      if (head.ETag?.startsWith('"')) this.#etags.set(path, head.ETag);
      return head.ContentLength;
    } catch (error) {
      if (getHttpStatus(error) === 404 && (error as Error).name !== 'NoSuchBucket')
        return undefined;
      throw convertS3Error(error, this.#name(path));
    }
  }

  async list(folder: string): Promise<string[]> {
    const names = new Set<string>();
    const prefix = this.#toKeyPrefix(folder);
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
    const writer = await this.#requireWritable();
    return writer.put(this.#toObject(path).Key, bytes, this.#name(path));
  }

  async putFileIfAbsent(
    path: string,
    source: string,
    onBytes?: (bytes: number) => void,
  ): Promise<boolean> {
    if ((await this.size(path)) !== undefined) return false;
    const writer = await this.#requireWritable();
    return writer.putFile(this.#toObject(path).Key, source, this.#name(path), onBytes);
  }

  /** Aborts unfinished multipart uploads: they cost money, and no listing shows them. */
  async removeUnfinishedWrites(folder: string, idleMs: number): Promise<void> {
    const { sdk, client } = await this.#connect();
    const before = wallClockMs() - idleMs;
    const target = { Bucket: this.#s3.bucket };
    try {
      for await (const { Uploads = [] } of this.#uploadPages(folder)) {
        for (const { Key, UploadId, Initiated } of Uploads) {
          if (!Key?.startsWith(this.#toKeyPrefix(folder)) || (Initiated?.getTime() ?? 0) > before)
            continue;
          await client.send(new sdk.AbortMultipartUploadCommand({ ...target, Key, UploadId }));
        }
      }
    } catch (error) {
      throw convertS3Error(error, this.#name(folder));
    }
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
    const { sdk, client } = await this.#connect();
    const etag = this.#etags.get(path);
    const name = this.#name(path);
    const stall = new StallDetector(S3_IDLE_MS);
    const abortSignal = AbortSignal.any([stall.signal, ...(signal === undefined ? [] : [signal])]);
    try {
      const command = new sdk.GetObjectCommand({
        ...this.#toObject(path),
        Range: `bytes=${start}-${start + bytes - 1}`,
        ...(etag === undefined ? {} : { IfMatch: etag }),
      });
      const response = await client.send(command, { abortSignal });
      const body = response.Body as unknown as AsyncIterable<Uint8Array> & { destroy(): void };
      abortSignal.addEventListener('abort', () => body.destroy());
      if (!response.ContentRange?.startsWith(`bytes ${start}-${start + bytes - 1}/`)) {
        body.destroy();
        throw new CubeError(
          'CORRUPT',
          `${name}: the object is shorter than expected, or the store sent another range`,
        );
      }
      for await (const chunk of body) {
        stall.count(chunk.length);
        yield chunk;
      }
    } catch (error) {
      if (signal?.aborted) throw new CubeError('STOPPING', `stopped while reading ${name}`);
      if (abortSignal.aborted) throw convertS3Error(abortSignal.reason, name);
      if (getHttpStatus(error) !== 412) throw convertS3Error(error, name);
      throw new CubeError('CORRUPT', `${name}: the object has changed since its size was read`);
    } finally {
      stall.stop();
    }
  }

  async #objects(folder: string): Promise<StoredObject[]> {
    const nowMs = wallClockMs();
    const found: StoredObject[] = [];
    const root = this.#s3.prefix;
    for await (const page of this.#pages(folder, undefined)) {
      for (const { Key, Size, LastModified } of page.Contents ?? []) {
        if (!Key?.startsWith(this.#toKeyPrefix(folder)) || LastModified === undefined) continue;
        const ageMs = nowMs - LastModified.getTime();
        found.push({ path: Key.slice(root.length), bytes: Size ?? 0, ageMs });
      }
    }
    return found;
  }

  async #remove(path: string): Promise<void> {
    const { sdk, client } = await this.#connect();
    try {
      await client.send(new sdk.DeleteObjectCommand(this.#toObject(path)));
    } catch (error) {
      throw convertS3Error(error, this.#name(path));
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
        Bucket: this.#s3.bucket,
        Prefix: this.#toKeyPrefix(folder),
        ...(delimiter === undefined ? {} : { Delimiter: delimiter }),
        ...(token === undefined ? {} : { ContinuationToken: token }),
      });
      const page = await client.send(command).catch((error: unknown) => {
        throw convertS3Error(error, this.#name(folder));
      });
      yield page;
      token = page.IsTruncated ? page.NextContinuationToken : undefined;
      if (token === undefined) return;
    }
    throw this.#createEndlessError(folder);
  }

  async *#uploadPages(folder: string): AsyncGenerator<ListMultipartUploadsCommandOutput> {
    const { sdk, client } = await this.#connect();
    let after: { KeyMarker?: string | undefined; UploadIdMarker?: string | undefined } = {};
    for (let n = 0; n < PAGES_MAX; n++) {
      const command = new sdk.ListMultipartUploadsCommand({
        Bucket: this.#s3.bucket,
        Prefix: this.#toKeyPrefix(folder),
        ...after,
      });
      const page = await client.send(command);
      yield page;
      const { IsTruncated, NextKeyMarker: KeyMarker, NextUploadIdMarker: UploadIdMarker } = page;
      if (!IsTruncated || KeyMarker === undefined) return;
      after = { KeyMarker, UploadIdMarker };
    }
    throw this.#createEndlessError(folder);
  }

  #createEndlessError(folder: string): CubeError {
    const text = `${this.#name(folder)}: the listing of the store does not end`;
    return new CubeError('CORRUPT', text);
  }

  /** Loads the writer at the first write: most processes only read. */
  async #requireWritable(): Promise<S3Writer> {
    this.#writer ??= import('./s3-writer.ts').then(
      ({ S3Writer }) => new S3Writer(() => this.#connect(), this.#s3.bucket, this.#clock),
    );
    const writer = await this.#writer;
    await writer.requireConditionalWrites(`${this.#s3.prefix}${PROBE_OBJECT}`);
    return writer;
  }

  #connect(): Promise<S3Connection> {
    this.#connection ??= connectS3(this.#s3);
    return this.#connection;
  }

  #toObject(path: string): { Bucket: string; Key: string } {
    return { Bucket: this.#s3.bucket, Key: `${this.#s3.prefix}${path}` };
  }

  /** The prefix of all keys below a folder. */
  #toKeyPrefix(folder: string): string {
    return folder === '' ? this.#s3.prefix : `${this.#s3.prefix}${folder}/`;
  }

  #name(path: string): string {
    return `${this.location}/${path}`;
  }
}
