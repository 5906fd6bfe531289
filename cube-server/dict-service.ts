/**
 * Cube's own `seek`, over baidu_std and HTTP: one table, its active version, a value per key. Misses are data; a key
 * of another shard is refused, because Cube's clients route by `key mod shardNum` and would take the miss for true.
 */
import { CubeError } from '../lib/core/errors.ts';
import type { ServerLimits } from '../lib/core/limits.ts';
import type { RpcResponse } from '../lib/rpc/rpc-routes.ts';
import type { Frame } from '../proto/baidu-std.ts';
import { DictRequest, STATUS_MISS } from '../proto/dict.ts';
import { OutputBuffer } from '../proto/output-buffer.ts';
import type { HeldTable, HeldVersion } from './held-version.ts';
import type { HeldVersions } from './held-versions.ts';
import { misrouted } from './misrouted.ts';
import { SeekBatch } from './seek-batch.ts';
import { answerLater, runLater, runNow, type Steps } from './steps.ts';

const TAG_VERSION = 0x12;
/** More keys than these are looked up in slices: they would hold up everybody for more than a few milliseconds. */
const KEYS_AT_ONCE_MAX = 65_536;
/** Keys between two moments when others may go first. */
const SLICE_KEYS = 16_384;

export interface CubeTable {
  readonly bundle: string;
  readonly table: string;
}

interface Target {
  readonly held: HeldVersion;
  readonly table: HeldTable;
}

interface Seek {
  readonly target: Target;
  /** u64 little-endian. */
  readonly keys: Uint8Array;
  readonly count: number;
  readonly versionRequired: boolean;
  readonly batch: SeekBatch;
  /** Of the answer, at most; values are added as they are found. */
  answerBytes: number;
}

function bufferOf({ buffer, byteOffset, byteLength }: Uint8Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}

export class DictService {
  readonly #held: HeldVersions;
  readonly #limits: ServerLimits;
  readonly #cubeTable: CubeTable | undefined;
  readonly #request: DictRequest;
  #batch: SeekBatch | undefined;
  #target: Target | undefined;
  #targetRevision = -1;

  /** @param cubeTable undefined: the only table of the only active version */
  constructor(held: HeldVersions, limits: ServerLimits, cubeTable: CubeTable | undefined) {
    this.#held = held;
    this.#limits = limits;
    this.#cubeTable = cubeTable;
    this.#request = new DictRequest(limits.keysPerRequest);
  }

  /** Over baidu_std. */
  readonly handle = (frame: Frame, response: RpcResponse): void => {
    this.#decode(frame.bytes, frame.payloadStart, frame.payloadEnd);
    const target = this.#requireTarget();
    if (this.#isLater(target)) {
      const deferred = response.defer();
      deferred.begin(0);
      void answerLater(this.#write(deferred.output, this.#ownSeek(target)), deferred);
      return;
    }
    response.begin(0);
    this.#writeNow(response.output, this.#seek(target));
  };

  /** Over HTTP with a protobuf body. */
  answer(body: Uint8Array): Uint8Array | Promise<Uint8Array> {
    this.#decode(body, 0, body.length);
    const target = this.#requireTarget();
    const output = new OutputBuffer();
    if (this.#isLater(target)) {
      const steps = this.#write(output, this.#ownSeek(target));
      return runLater(steps, () => false).then(() => output.written());
    }
    this.#writeNow(output, this.#seek(target));
    return output.written();
  }

  /**
   * A JSON message inside a frame; an empty one is an empty request.
   * @throws CubeError UNSUPPORTED for a table on disk
   */
  answerJson(body: string): string {
    this.#decodeJson(body);
    const target = this.#requireTarget();
    if (target.table.resident.onDisk) {
      throw new CubeError(
        'UNSUPPORTED',
        `table ${target.table.resident.name} is read from disk: ask in protobuf, or in JSON over HTTP`,
      );
    }
    return runNow(this.#json(this.#seek(target)));
  }

  /** Over HTTP with a JSON body. */
  answerJsonLater(body: string): Promise<string> | string {
    this.#decodeJson(body);
    const target = this.#requireTarget();
    // Values as text cost several times what they cost as bytes.
    const isLater = target.table.resident.onDisk || this.#request.count > SLICE_KEYS;
    if (!isLater) return runNow(this.#json(this.#seek(target)));
    return runLater(this.#json(this.#ownSeek(target)), () => false);
  }

  #decode(bytes: Uint8Array, start: number, end: number): void {
    try {
      this.#request.decode(bytes, start, end);
    } catch (error) {
      const { code, message } = CubeError.from(error);
      throw new CubeError(
        code,
        `Fail to parse request=rec.mcube.DictRequest, ContentType=pb, request_size=${end - start}: ${message}`,
      );
    }
  }

  #decodeJson(body: string): void {
    const { jsonChars } = this.#limits;
    if (body.length > jsonChars) {
      throw new CubeError(
        'TOO_LARGE',
        `a JSON seek of ${body.length} characters, the limit is ${jsonChars}: split it, or send protobuf (application/proto)`,
      );
    }
    try {
      this.#request.decodeJson(body === '' ? '{}' : body, 'Invalid json');
    } catch (error) {
      const { code, message } = CubeError.from(error);
      throw new CubeError(
        code,
        `Fail to parse http json body as rec.mcube.DictRequest: ${message}`,
      );
    }
  }

  #isLater({ table }: Target): boolean {
    return table.resident.onDisk || this.#request.count > KEYS_AT_ONCE_MAX;
  }

  /** The decoded request, answered before the next one is decoded. */
  #seek(target: Target): Seek {
    if (this.#batch?.table !== target.table) {
      this.#batch = new SeekBatch(target.table, this.#limits.responseBytes);
    }
    return this.#begin(target, this.#request.keyBytes, this.#batch);
  }

  /** The decoded request with all it needs of its own. */
  #ownSeek(target: Target): Seek {
    const { count, keyBytes } = this.#request;
    const batch = new SeekBatch(target.table, this.#limits.responseBytes);
    return this.#begin(target, keyBytes.slice(0, 8 * count), batch);
  }

  #begin(target: Target, keys: Uint8Array, batch: SeekBatch): Seek {
    const { count, versionRequired } = this.#request;
    const answerBytes = batch.answerBytesMax(count);
    this.#checkSize(answerBytes);
    target.held.lookups++;
    return { target, keys, count, versionRequired, batch, answerBytes };
  }

  /** The usual way, without steps. */
  #writeNow(output: OutputBuffer, seek: Seek): void {
    const { keys, count, batch } = seek;
    for (let at = 0; at < count; at += batch.keysMax) {
      this.#account(seek, at, batch.lookup(keys, 8 * at, Math.min(batch.keysMax, count - at)));
      batch.write(output);
    }
    this.#writeVersion(output, seek);
  }

  *#write(output: OutputBuffer, seek: Seek): Steps {
    yield* this.#batches(seek, () => seek.batch.write(output));
    this.#writeVersion(output, seek);
  }

  #writeVersion(output: OutputBuffer, { target, versionRequired }: Seek): void {
    if (versionRequired) output.appendString(TAG_VERSION, target.held.resident.version);
  }

  *#json(seek: Seek): Steps<string> {
    const { target, count, versionRequired, batch } = seek;
    const values: string[] = [];
    yield* this.#batches(seek, () => {
      for (const value of batch.values()) {
        const text = value === undefined ? '' : bufferOf(value).toString('base64');
        values.push(`{"status":${value === undefined ? STATUS_MISS : 0},"value":"${text}"}`);
      }
    });
    const fields: string[] = [];
    if (count > 0) fields.push(`"values":[${values.join(',')}]`);
    if (versionRequired) fields.push(`"version":${JSON.stringify(target.held.resident.version)}`);
    return `{${fields.join(',')}}`;
  }

  /** Looks up batch after batch, each taken by `take` before the next overwrites it. */
  *#batches(seek: Seek, take: () => void): Steps {
    const { target, keys, count, batch } = seek;
    const { onDisk } = target.table.resident;
    for (let at = 0, slice = SLICE_KEYS; at < count; at += batch.keysMax) {
      const inBatch = Math.min(batch.keysMax, count - at);
      const hits = onDisk
        ? yield batch.lookupLater(keys, 8 * at, inBatch)
        : batch.lookup(keys, 8 * at, inBatch);
      this.#account(seek, at, hits);
      take();
      if (at < slice) continue;
      slice += SLICE_KEYS;
      yield undefined;
    }
  }

  /** Checks and counts what was found for the keys from `at`. */
  #account(seek: Seek, at: number, hits: number): void {
    const { batch, keys } = seek;
    const { resident, traffic } = seek.target.table;
    if (hits < 0) throw misrouted(this.#held, keys, 0, at - 1 - hits, resident.name);
    if (resident.dtype === 'bytes') {
      seek.answerBytes += batch.valuesBytes;
      this.#checkSize(seek.answerBytes);
    }
    traffic.keys += batch.count;
    traffic.hits += hits;
    traffic.bytes += batch.valuesBytes;
  }

  #checkSize(byteCount: number): void {
    const { responseBytes } = this.#limits;
    if (byteCount <= responseBytes) return;
    throw new CubeError(
      'TOO_LARGE',
      `the answer may have ${byteCount} bytes, over the limit of ${responseBytes}; seek fewer keys at once`,
    );
  }

  /** The table that Cube's clients read. @throws CubeError NOT_READY, NOT_FOUND, CONFLICT */
  #requireTarget(): Target {
    if (this.#target !== undefined && this.#targetRevision === this.#held.revision) {
      return this.#target;
    }
    this.#target = this.#findTarget();
    this.#targetRevision = this.#held.revision;
    return this.#target;
  }

  #findTarget(): Target {
    if (this.#cubeTable !== undefined) {
      const held = this.#held.resolve(this.#cubeTable.bundle, '');
      return { held, table: held.table(this.#cubeTable.table) };
    }
    const active = [...this.#held.activeVersions()];
    if (active.length === 0) {
      throw new CubeError('NOT_READY', 'no version is active here; load and activate one');
    }
    const names = active.flatMap((held) =>
      held.tableNames.map((table) => `${held.resident.bundle}/${table}`),
    );
    const [held] = active;
    const [name] = held!.tableNames;
    if (active.length > 1 || names.length !== 1) {
      throw new CubeError(
        'CONFLICT',
        `seek reads one table and here are ${names.length} (${names.slice(0, 20).join(', ')}); start the server with --cube-table bundle/table`,
      );
    }
    return { held: held!, table: held!.table(name!) };
  }
}
