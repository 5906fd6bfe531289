/**
 * Cube's `seek` over baidu_std and HTTP: one table, its active version, one value per key. Misses
 * are normal results. A key of another shard is refused: Cube's clients route by `key mod shardNum`
 * and would take the miss for a missing key.
 */
import { CubeError } from '../lib/core/errors.ts';
import type { ServerLimits } from '../lib/core/limits.ts';
import type { RpcResponse } from '../lib/rpc/rpc-routes.ts';
import type { Frame } from '../proto/baidu-std.ts';
import { appendDictVersion, DictRequest, STATUS_MISS } from '../proto/dict.ts';
import { OutputBuffer } from '../proto/output-buffer.ts';
import type { LoadedTable, LoadedVersion } from './loaded-version.ts';
import type { LoadedVersions } from './loaded-versions.ts';
import { createWrongShardError } from './loaded-versions.ts';
import { SeekBatch } from './seek-batch.ts';
import { respondSliced, runSliced, runSync, type SlicedTask } from './sliced-task.ts';

/**
 * Larger requests are looked up in slices: they would block other requests for several
 * milliseconds.
 */
const KEYS_AT_ONCE_MAX = 65_536;
/** A longer JSON seek is decoded and answered in slices: text costs several times as much. */
const JSON_BYTES_AT_ONCE_MAX = 128 << 10;
const EMPTY_JSON: Uint8Array = new TextEncoder().encode('{}');
/** Keys between two yields to other requests. */
const SLICE_KEYS = 16_384;

export interface CubeTable {
  readonly bundle: string;
  readonly table: string;
}

interface SeekTarget {
  readonly version: LoadedVersion;
  readonly table: LoadedTable;
}

interface SeekCall {
  readonly target: SeekTarget;
  /** u64 little-endian. */
  readonly keys: Uint8Array;
  readonly count: number;
  readonly versionRequired: boolean;
  readonly batch: SeekBatch;
  /** Upper bound of the response size; variable-length values are added when found. */
  responseBytes: number;
}

function toBuffer({ buffer, byteOffset, byteLength }: Uint8Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}

export class DictService {
  readonly #versions: LoadedVersions;
  readonly #limits: ServerLimits;
  readonly #cubeTable: CubeTable | undefined;
  readonly #request: DictRequest;
  #batch: SeekBatch | undefined;
  #target: SeekTarget | undefined;
  #targetRevision = -1;

  /** @param cubeTable undefined: the only table of the only active version */
  constructor(versions: LoadedVersions, limits: ServerLimits, cubeTable: CubeTable | undefined) {
    this.#versions = versions;
    this.#limits = limits;
    this.#cubeTable = cubeTable;
    this.#request = new DictRequest(limits.keysPerRequest);
  }

  /** Handles a baidu_std frame. */
  readonly handleFrame = (frame: Frame, response: RpcResponse): void => {
    this.#decode(frame.bytes, frame.payloadStart, frame.payloadEnd);
    const target = this.#requireTarget();
    if (this.#isSliced(target)) {
      const deferred = response.defer();
      deferred.begin(0);
      void respondSliced(this.#write(deferred.output, this.#createOwnSeek(target)), deferred);
      return;
    }
    response.begin(0);
    this.#writeAtOnce(response.output, this.#seek(target));
  };

  /** Handles a protobuf body over HTTP. */
  handleProtobuf(body: Uint8Array): Uint8Array | Promise<Uint8Array> {
    this.#decode(body, 0, body.length);
    const target = this.#requireTarget();
    const output = new OutputBuffer();
    if (this.#isSliced(target)) {
      const steps = this.#write(output, this.#createOwnSeek(target));
      return runSliced(steps, () => false).then(() => output.writtenBytes());
    }
    this.#writeAtOnce(output, this.#seek(target));
    return output.writtenBytes();
  }

  /**
   * Handles a JSON message, of a frame or of an HTTP body; an empty one is an empty request.
   * @param body copied before it returns a promise
   */
  handleJson(body: Uint8Array): string | Promise<string> {
    const isSliced = body.length > JSON_BYTES_AT_ONCE_MAX;
    if (!isSliced) {
      runSync(this.#decodeJson(this.#request, body));
      const target = this.#requireTarget();
      if (!target.table.resident.onDisk) return runSync(this.#json(this.#seek(target)));
      return runSliced(this.#json(this.#createOwnSeek(target)), () => false);
    }
    const request = new DictRequest(this.#limits.keysPerRequest);
    return runSliced(this.#jsonSliced(request, body.slice()), () => false);
  }

  *#jsonSliced(request: DictRequest, body: Uint8Array): SlicedTask<string> {
    yield* this.#decodeJson(request, body);
    return yield* this.#json(this.#createOwnSeek(this.#requireTarget(), request));
  }

  #decode(bytes: Uint8Array, start: number, end: number): void {
    try {
      this.#request.decode(bytes, start, end);
    } catch (error) {
      const { code, message } = CubeError.from(error);
      throw new CubeError(
        code,
        'Fail to parse request=rec.mcube.DictRequest, ContentType=pb, ' +
          `request_size=${end - start}: ${message}`,
      );
    }
  }

  *#decodeJson(request: DictRequest, body: Uint8Array): Generator<undefined, void> {
    try {
      yield* request.decodeJson(body.length === 0 ? EMPTY_JSON : body, 'Invalid json');
    } catch (error) {
      const { code, message } = CubeError.from(error);
      throw new CubeError(
        code,
        `Fail to parse http json body as rec.mcube.DictRequest: ${message}`,
      );
    }
  }

  #isSliced({ table }: SeekTarget): boolean {
    return table.resident.onDisk || this.#request.count > KEYS_AT_ONCE_MAX;
  }

  /**
   * The decoded request with shared buffers; it must be answered before the next one is decoded.
   */
  #seek(target: SeekTarget): SeekCall {
    if (this.#batch?.table !== target.table) {
      this.#batch = new SeekBatch(target.table, this.#limits.responseBytes);
    }
    return this.#begin(target, this.#request, this.#request.keyBytes, this.#batch);
  }

  /** A decoded request with buffers of its own. */
  #createOwnSeek(target: SeekTarget, request: DictRequest = this.#request): SeekCall {
    const batch = new SeekBatch(target.table, this.#limits.responseBytes);
    return this.#begin(target, request, request.keyBytes.slice(0, 8 * request.count), batch);
  }

  #begin(
    target: SeekTarget,
    { count, versionRequired }: DictRequest,
    keys: Uint8Array,
    batch: SeekBatch,
  ): SeekCall {
    const answerBytes = batch.getResponseBytesMax(count);
    this.#checkSize(answerBytes);
    target.version.lookups++;
    return { target, keys, count, versionRequired, batch, responseBytes: answerBytes };
  }

  /** Fast path without slices. */
  #writeAtOnce(output: OutputBuffer, seek: SeekCall): void {
    const { keys, count, batch } = seek;
    for (let at = 0; at < count; at += batch.keysMax) {
      this.#countResults(seek, at, batch.lookup(keys, 8 * at, Math.min(batch.keysMax, count - at)));
      batch.write(output);
    }
    this.#writeVersion(output, seek);
  }

  *#write(output: OutputBuffer, seek: SeekCall): SlicedTask {
    yield* this.#batches(seek, () => seek.batch.write(output));
    this.#writeVersion(output, seek);
  }

  #writeVersion(output: OutputBuffer, { target, versionRequired }: SeekCall): void {
    if (versionRequired) appendDictVersion(output, target.version.resident.version);
  }

  *#json(seek: SeekCall): SlicedTask<string> {
    const { target, count, versionRequired, batch } = seek;
    const values: string[] = [];
    yield* this.#batches(seek, () => {
      for (const value of batch.values()) {
        const text = value === undefined ? '' : toBuffer(value).toString('base64');
        values.push(`{"status":${value === undefined ? STATUS_MISS : 0},"value":"${text}"}`);
      }
    });
    const fields: string[] = [];
    if (count > 0) fields.push(`"values":[${values.join(',')}]`);
    if (versionRequired)
      fields.push(`"version":${JSON.stringify(target.version.resident.version)}`);
    return `{${fields.join(',')}}`;
  }

  /** Looks up batch after batch; `take` consumes each before the next overwrites it. */
  *#batches(seek: SeekCall, take: () => void): SlicedTask {
    const { target, keys, count, batch } = seek;
    const { onDisk } = target.table.resident;
    for (let at = 0, slice = SLICE_KEYS; at < count; at += batch.keysMax) {
      const inBatch = Math.min(batch.keysMax, count - at);
      const hits = onDisk
        ? yield batch.lookupAsync(keys, 8 * at, inBatch)
        : batch.lookup(keys, 8 * at, inBatch);
      this.#countResults(seek, at, hits);
      take();
      if (at < slice) continue;
      slice += SLICE_KEYS;
      yield undefined;
    }
  }

  /** Checks and counts the results for the keys from `at`. */
  #countResults(seek: SeekCall, at: number, hits: number): void {
    const { batch, keys } = seek;
    const { resident, counters } = seek.target.table;
    if (hits < 0)
      throw createWrongShardError(this.#versions, keys, 0, at - 1 - hits, resident.name);
    if (resident.dtype === 'bytes') {
      seek.responseBytes += batch.valuesBytes;
      this.#checkSize(seek.responseBytes);
    }
    counters.keys += batch.count;
    counters.hits += hits;
    counters.bytes += batch.valuesBytes;
  }

  #checkSize(byteCount: number): void {
    const { responseBytes } = this.#limits;
    if (byteCount <= responseBytes) return;
    throw new CubeError(
      'TOO_LARGE',
      `a response of up to ${byteCount} bytes exceeds the limit of ${responseBytes}; ` +
        'seek fewer keys at once',
    );
  }

  /** The table that Cube's clients read. @throws CubeError NOT_READY, NOT_FOUND, CONFLICT */
  #requireTarget(): SeekTarget {
    if (this.#target !== undefined && this.#targetRevision === this.#versions.revision) {
      return this.#target;
    }
    this.#target = this.#findTarget();
    this.#targetRevision = this.#versions.revision;
    return this.#target;
  }

  #findTarget(): SeekTarget {
    if (this.#cubeTable !== undefined) {
      const version = this.#versions.resolve(this.#cubeTable.bundle, '');
      return { version, table: version.table(this.#cubeTable.table) };
    }
    const active = [...this.#versions.activeVersions()];
    if (active.length === 0) {
      throw new CubeError('NOT_READY', this.#versions.explainNotReady());
    }
    const tables = active.flatMap((version) =>
      version.tableNames.map((name) => ({ version, name })),
    );
    const [only] = tables;
    if (only === undefined || active.length > 1 || tables.length > 1) {
      const names = tables.map(({ version, name }) => `${version.resident.bundle}/${name}`);
      throw new CubeError(
        'CONFLICT',
        `seek reads one table, but this server has ${names.length} ` +
          `(${names.slice(0, 20).join(', ')}); start it with --cube-table bundle/table`,
      );
    }
    return { version: only.version, table: only.version.table(only.name) };
  }
}
