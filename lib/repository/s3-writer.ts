/**
 * Objects of a bucket that are put once: `If-None-Match: *` on every write. An answer may be lost and the write tried again,
 * which then finds its own object; so each write carries an id, and whoever is told that the object exists looks whose it is.
 */
import { randomUUID } from 'node:crypto';
import type { CompletedPart } from '@aws-sdk/client-s3';
import { CubeError } from '../core/errors.ts';
import type { Clock } from '../platform/clock.ts';
import { faultPoint } from '../platform/fault-point.ts';
import { fileBytes, RandomReader, readFile } from '../platform/files.ts';
import { forEachAtOnce } from './parallel.ts';
import { type S3Connection, s3Error, statusOf } from './s3-client.ts';

/** Smaller files go in one request. */
const PART_BYTES_MIN = 8 << 20;
const PARTS_MAX = 10_000;
const PARTS_AT_ONCE = 4;
const TRIES_MAX = 8;
const FIRST_PAUSE_MS = 20;

/** Somebody writes the same object at this moment, or has. */
type Refusal = 'exists' | 'conflict';

export class S3Writer {
  readonly #connect: () => Promise<S3Connection>;
  readonly #bucket: string;
  readonly #clock: Clock;
  #honours: Promise<void> | undefined;

  constructor(connect: () => Promise<S3Connection>, bucket: string, clock: Clock) {
    this.#connect = connect;
    this.#bucket = bucket;
    this.#clock = clock;
  }

  /**
   * Asks the store once whether it honours If-None-Match: one key is put twice, and the second must be refused.
   * @throws CubeError UNSUPPORTED: the store is read-only to us
   */
  requireConditional(probeKey: string): Promise<void> {
    this.#honours ??= this.#probe(probeKey).catch((error: unknown) => {
      // Only what the store itself said is remembered.
      this.#honours = undefined;
      throw error;
    });
    return this.#honours;
  }

  /** @returns false when the object exists already */
  put(key: string, bytes: Uint8Array, name: string): Promise<boolean> {
    return this.#untilDecided(key, name, (writer) => this.#putOnce(key, bytes, writer, name));
  }

  /** The same from a file of any size, in parts where it is large. */
  putFile(
    key: string,
    source: string,
    name: string,
    onBytes: (bytes: number) => void = () => undefined,
  ): Promise<boolean> {
    const bytes = fileBytes(source);
    return this.#untilDecided(key, name, async (writer) => {
      if (bytes > PART_BYTES_MIN) return this.#putParts(key, source, writer, name, onBytes);
      const refusal = await this.#putOnce(key, readFile(source), writer, name);
      if (refusal === undefined) onBytes(bytes);
      return refusal;
    });
  }

  async #probe(key: string): Promise<void> {
    const bytes = new TextEncoder().encode(
      'Whoever writes here asks whether If-None-Match is honoured.\n',
    );
    // Whoever asks first makes it, whoever asks later finds it: both are refused the second time.
    for (let attempt = 1; attempt <= 2; attempt++) {
      if ((await this.#putOnce(key, bytes, 'probe', key)) !== undefined) return;
    }
    throw new CubeError(
      'UNSUPPORTED',
      `the store of bucket ${this.#bucket} does not honour If-None-Match, so two writers could overwrite each other: ` +
        'it is read-only to us; publish to a folder or to a store with conditional writes',
    );
  }

  /** @param write tells why it was refused; undefined when the object is in place */
  async #untilDecided(
    key: string,
    name: string,
    write: (writer: string) => Promise<Refusal | undefined>,
  ): Promise<boolean> {
    const writer = randomUUID();
    for (let attempt = 1; attempt <= TRIES_MAX; attempt++) {
      const refusal = await write(writer);
      if (refusal === undefined) return true;
      if (refusal === 'exists') return this.#isWrittenBy(key, writer, name);
      await this.#clock.sleep(FIRST_PAUSE_MS * 2 ** (attempt - 1));
    }
    throw new CubeError('UNAVAILABLE', `${name}: others write it all the time; try again`);
  }

  async #isWrittenBy(key: string, writer: string, name: string): Promise<boolean> {
    const { sdk, client } = await this.#connect();
    try {
      const head = await client.send(new sdk.HeadObjectCommand({ Bucket: this.#bucket, Key: key }));
      return head.Metadata?.['writer'] === writer;
    } catch (error) {
      throw s3Error(error, name);
    }
  }

  async #putOnce(
    key: string,
    bytes: Uint8Array,
    writer: string,
    name: string,
  ): Promise<Refusal | undefined> {
    const { sdk, client } = await this.#connect();
    const command = new sdk.PutObjectCommand({
      Bucket: this.#bucket,
      Key: key,
      Body: bytes,
      IfNoneMatch: '*',
      Metadata: { writer },
    });
    return client.send(command).then(
      () => undefined,
      (error: unknown) => refusalOf(error, name),
    );
  }

  async #putParts(
    key: string,
    source: string,
    writer: string,
    name: string,
    onBytes: (bytes: number) => void,
  ): Promise<Refusal | undefined> {
    const { sdk, client } = await this.#connect();
    const place = { Bucket: this.#bucket, Key: key };
    let uploadId: string | undefined;
    try {
      const create = new sdk.CreateMultipartUploadCommand({ ...place, Metadata: { writer } });
      uploadId = (await client.send(create)).UploadId;
      const upload = { ...place, UploadId: uploadId };
      const parts = await this.#sendParts(upload, source, onBytes);
      const complete = new sdk.CompleteMultipartUploadCommand({
        ...upload,
        IfNoneMatch: '*',
        MultipartUpload: { Parts: parts },
      });
      await client.send(complete);
      return undefined;
    } catch (error) {
      if (uploadId !== undefined) {
        const abort = new sdk.AbortMultipartUploadCommand({ ...place, UploadId: uploadId });
        // What cannot be given up now is given up by garbage collection.
        await client.send(abort).catch(() => undefined);
      }
      // Completed, but the answer was lost: the upload is no more, the object is there.
      if ((error as Error).name === 'NoSuchUpload') return 'exists';
      return refusalOf(error, name);
    }
  }

  async #sendParts(
    upload: { Bucket: string; Key: string; UploadId: string | undefined },
    source: string,
    onBytes: (bytes: number) => void,
  ): Promise<CompletedPart[]> {
    const { sdk, client } = await this.#connect();
    const reader = new RandomReader(source);
    const partBytes = Math.max(PART_BYTES_MIN, Math.ceil(reader.bytes / PARTS_MAX));
    const parts: CompletedPart[] = Array.from(
      { length: Math.ceil(reader.bytes / partBytes) },
      (_, i) => ({ PartNumber: i + 1 }),
    );
    try {
      await forEachAtOnce(parts, PARTS_AT_ONCE, async (part) => {
        const start = ((part.PartNumber ?? 1) - 1) * partBytes;
        const body = new Uint8Array(Math.min(partBytes, reader.bytes - start));
        reader.readInto(body, start);
        const command = new sdk.UploadPartCommand({
          ...upload,
          PartNumber: part.PartNumber,
          Body: body,
        });
        part.ETag = (await client.send(command)).ETag;
        onBytes(body.length);
        faultPoint('publish.part');
      });
    } finally {
      reader.close();
    }
    return parts;
  }
}

/** @throws CubeError for any other failure */
function refusalOf(error: unknown, name: string): Refusal {
  const status = statusOf(error);
  if (status === 412) return 'exists';
  if (status === 409) return 'conflict';
  throw s3Error(error, name);
}
