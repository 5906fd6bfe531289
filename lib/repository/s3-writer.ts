/**
 * Writes objects of a bucket once: every write has `If-None-Match: *`. A response may be lost and
 * the retried write then finds its own object. So each write stores an id in the object, and a
 * writer that is told the object exists checks whose id it has.
 */
import { randomUUID } from 'node:crypto';
import type { CompletedPart } from '@aws-sdk/client-s3';
import { CubeError } from '../core/errors.ts';
import type { Clock } from '../platform/clock.ts';
import { faultPoint } from '../platform/fault-point.ts';
import { getFileBytes, RandomAccessReader, readFile } from '../platform/files.ts';
import { forEachConcurrent } from './for-each-concurrent.ts';
import { convertS3Error, getHttpStatus, type S3Connection } from './s3-client.ts';

/** Smaller files are sent in one request. */
const PART_BYTES_MIN = 8 << 20;
const PARTS_MAX = 10_000;
const CONCURRENT_PARTS = 4;
const ATTEMPTS_MAX = 8;
const FIRST_BACKOFF_MS = 20;

/** Another writer has written the object, or is writing it now. */
type WriteRefusal = 'exists' | 'conflict';

export class S3Writer {
  readonly #connect: () => Promise<S3Connection>;
  readonly #bucket: string;
  readonly #clock: Clock;
  #conditionalWrites: Promise<void> | undefined;

  constructor(connect: () => Promise<S3Connection>, bucket: string, clock: Clock) {
    this.#connect = connect;
    this.#bucket = bucket;
    this.#clock = clock;
  }

  /**
   * Checks once whether the store honours If-None-Match: the second of two writes of a probe object
   * must be refused.
   * @throws CubeError UNSUPPORTED if it does not, so that nothing may be written
   */
  requireConditionalWrites(probeKey: string): Promise<void> {
    this.#conditionalWrites ??= this.#probe(probeKey).catch((error: unknown) => {
      // Failures are not remembered, only what the store supports.
      this.#conditionalWrites = undefined;
      throw error;
    });
    return this.#conditionalWrites;
  }

  /** @returns false if the object exists */
  put(key: string, bytes: Uint8Array, name: string): Promise<boolean> {
    return this.#untilDecided(key, name, (writer) => this.#putOnce(key, bytes, writer, name));
  }

  /** Like `put`, from a file of any size; large files are sent in parts. */
  putFile(
    key: string,
    source: string,
    name: string,
    onBytes: (bytes: number) => void = () => undefined,
  ): Promise<boolean> {
    const bytes = getFileBytes(source);
    return this.#untilDecided(key, name, async (writer) => {
      if (bytes > PART_BYTES_MIN) return this.#putParts(key, source, writer, name, onBytes);
      const refusal = await this.#putOnce(key, readFile(source), writer, name);
      if (refusal === undefined) onBytes(bytes);
      return refusal;
    });
  }

  async #probe(key: string): Promise<void> {
    const bytes = new TextEncoder().encode(
      'This object tests whether If-None-Match is honoured.\n',
    );
    // The first writer creates the object and later ones find it: each is refused at its second
    // try.
    for (let attempt = 1; attempt <= 2; attempt++) {
      if ((await this.#putOnce(key, bytes, 'probe', key)) !== undefined) return;
    }
    throw new CubeError(
      'UNSUPPORTED',
      `the store of bucket ${this.#bucket} does not honour If-None-Match, so concurrent writers ` +
        'could overwrite each other; publish to a folder or to a store with conditional writes',
    );
  }

  /** @param write returns why it was refused; undefined once the object is stored */
  async #untilDecided(
    key: string,
    name: string,
    write: (writer: string) => Promise<WriteRefusal | undefined>,
  ): Promise<boolean> {
    const writer = randomUUID();
    for (let attempt = 1; attempt <= ATTEMPTS_MAX; attempt++) {
      const refusal = await write(writer);
      if (refusal === undefined) return true;
      if (refusal === 'exists') return this.#isWrittenBy(key, writer, name);
      await this.#clock.sleep(FIRST_BACKOFF_MS * 2 ** (attempt - 1));
    }
    throw new CubeError('UNAVAILABLE', `${name}: other writers keep writing it; retry`);
  }

  async #isWrittenBy(key: string, writer: string, name: string): Promise<boolean> {
    const { sdk, client } = await this.#connect();
    try {
      const head = await client.send(new sdk.HeadObjectCommand({ Bucket: this.#bucket, Key: key }));
      return head.Metadata?.['writer'] === writer;
    } catch (error) {
      throw convertS3Error(error, name);
    }
  }

  async #putOnce(
    key: string,
    bytes: Uint8Array,
    writer: string,
    name: string,
  ): Promise<WriteRefusal | undefined> {
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
      (error: unknown) => toWriteRefusal(error, name),
    );
  }

  async #putParts(
    key: string,
    source: string,
    writer: string,
    name: string,
    onBytes: (bytes: number) => void,
  ): Promise<WriteRefusal | undefined> {
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
        // An upload that cannot be aborted now is aborted by garbage collection.
        await client.send(abort).catch(() => undefined);
      }
      // Completed, but the response was lost: the upload has ended and the object exists.
      if ((error as Error).name === 'NoSuchUpload') return 'exists';
      return toWriteRefusal(error, name);
    }
  }

  async #sendParts(
    upload: { Bucket: string; Key: string; UploadId: string | undefined },
    source: string,
    onBytes: (bytes: number) => void,
  ): Promise<CompletedPart[]> {
    const { sdk, client } = await this.#connect();
    const reader = new RandomAccessReader(source);
    const partBytes = Math.max(PART_BYTES_MIN, Math.ceil(reader.bytes / PARTS_MAX));
    const parts: CompletedPart[] = Array.from(
      { length: Math.ceil(reader.bytes / partBytes) },
      (_, i) => ({ PartNumber: i + 1 }),
    );
    try {
      await forEachConcurrent(parts, CONCURRENT_PARTS, async (part) => {
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
function toWriteRefusal(error: unknown, name: string): WriteRefusal {
  const status = getHttpStatus(error);
  if (status === 412) return 'exists';
  if (status === 409) return 'conflict';
  throw convertS3Error(error, name);
}
