/**
 * Cube's own `seek`, over baidu_std and HTTP: one table, its active version, a value per key. Misses are data; a key
 * of another shard is refused, because Cube's clients route by `key mod shardNum` and would take the miss for true.
 */
import { CubeError } from '../lib/core/errors.ts';
import type { ServerLimits } from '../lib/core/limits.ts';
import type { RpcResponse } from '../lib/rpc/rpc-routes.ts';
import type { Frame } from '../proto/baidu-std.ts';
import { DictRequest, dictValuesBytesMax, STATUS_MISS, writeDictValues } from '../proto/dict.ts';
import { OutputBuffer } from '../proto/output-buffer.ts';
import type { HeldTable, HeldVersion } from './held-version.ts';
import type { HeldVersions } from './held-versions.ts';
import { misrouted } from './lookup-service.ts';

/** Keys looked up at once: their rows stay in the cache until they are written out. */
const BATCH_KEYS = 256;
const TAG_VERSION = 0x12;

export interface CubeTable {
  readonly bundle: string;
  readonly table: string;
}

interface Target {
  readonly held: HeldVersion;
  readonly table: HeldTable;
}

export class DictService {
  readonly #held: HeldVersions;
  readonly #limits: ServerLimits;
  readonly #cubeTable: CubeTable | undefined;
  readonly #request: DictRequest;
  readonly #found = new Uint8Array(BATCH_KEYS / 8);
  #rows = new Uint8Array(0);
  #rowWords = new Int32Array(0);
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
    response.begin(0);
    this.#write(response.output, target);
  };

  /** Over HTTP with a protobuf body. */
  answer(body: Uint8Array): Uint8Array {
    this.#decode(body, 0, body.length);
    const output = new OutputBuffer();
    this.#write(output, this.#requireTarget());
    return output.written();
  }

  /** Over HTTP with a JSON body; an empty one is an empty request. */
  answerJson(body: string): string {
    this.#decodeJson(body);
    const target = this.#requireTarget();
    const { count, keyBytes, versionRequired } = this.#request;
    const { rowBytes } = target.table.resident;
    this.#checkSize(dictValuesBytesMax(count, rowBytes));
    const values: string[] = [];
    for (let at = 0; at < count; at += BATCH_KEYS) {
      const batch = Math.min(BATCH_KEYS, count - at);
      this.#lookup(target, keyBytes, 8 * at, batch);
      for (let i = 0; i < batch; i++) {
        const hit = (this.#found[i >> 3]! & (1 << (i & 7))) !== 0;
        const row = Buffer.from(this.#rows.buffer, i * rowBytes, hit ? rowBytes : 0);
        values.push(`{"status":${hit ? 0 : STATUS_MISS},"value":"${row.toString('base64')}"}`);
      }
    }
    target.held.lookups++;
    const fields: string[] = [];
    if (count > 0) fields.push(`"values":[${values.join(',')}]`);
    if (versionRequired) fields.push(`"version":${JSON.stringify(target.held.resident.version)}`);
    return `{${fields.join(',')}}`;
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

  #write(output: OutputBuffer, target: Target): void {
    const { count, keyBytes, versionRequired } = this.#request;
    const { resident, hitPrefix } = target.table;
    const { rowBytes } = resident;
    this.#checkSize(dictValuesBytesMax(count, rowBytes));
    for (let at = 0; at < count; at += BATCH_KEYS) {
      const batch = Math.min(BATCH_KEYS, count - at);
      this.#lookup(target, keyBytes, 8 * at, batch);
      const start = output.reserve(dictValuesBytesMax(batch, rowBytes));
      const source = {
        count: batch,
        rowBytes,
        hitPrefix,
        rows: this.#rows,
        rowWords: this.#rowWords,
        found: this.#found,
      };
      output.truncate(writeDictValues(output.bytes, output.view, start, source));
    }
    if (versionRequired) output.appendString(TAG_VERSION, target.held.resident.version);
    target.held.lookups++;
  }

  /** Rows and found bits of one batch into the buffers of this service. */
  #lookup(target: Target, keys: Uint8Array, keysAt: number, count: number): void {
    const { resident, traffic } = target.table;
    this.#reserveRows(resident.rowBytes);
    const hits = resident.lookup(keys, keysAt, count, this.#rows, 0, this.#found, 0);
    if (hits < 0) throw misrouted(this.#held, keys, keysAt, -1 - hits, resident.name);
    traffic.keys += count;
    traffic.hits += hits;
    traffic.bytes += hits * resident.rowBytes;
  }

  #reserveRows(rowBytes: number): void {
    const needed = Math.ceil((BATCH_KEYS * rowBytes) / 4) * 4;
    if (this.#rows.length >= needed) return;
    this.#rows = new Uint8Array(needed);
    this.#rowWords = new Int32Array(this.#rows.buffer);
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
