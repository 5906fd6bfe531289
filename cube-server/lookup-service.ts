/**
 * Packed lookup: several tables of one pinned (or the active) version in one call. Keys are read where they came in,
 * rows are written where they leave; nothing happens per key outside the store's kernel.
 */
import { CubeError } from '../lib/core/errors.ts';
import type { ServerLimits } from '../lib/core/limits.ts';
import type { RpcResponse } from '../lib/rpc/rpc-routes.ts';
import { LookupBatch } from '../lib/store/lookup-batch.ts';
import type { Frame } from '../proto/baidu-std.ts';
import {
  bitmapBytes,
  groupBytes,
  KEY_BYTES,
  LookupRequestDecoder,
  ROWS_F32,
  setGroupHits,
  writeResponseGroup,
} from '../proto/lookup.ts';
import { OutputBuffer } from '../proto/output-buffer.ts';
import type { HeldTable, HeldVersion } from './held-version.ts';
import type { HeldVersions } from './held-versions.ts';
import { LookupJob } from './lookup-job.ts';
import { misrouted } from './misrouted.ts';
import { answerLater, runLater, runNow } from './steps.ts';

const TAG_ROWS = 0x1a;
/** More keys than these are looked up in slices: they would hold up everybody for more than a few milliseconds. */
const KEYS_AT_ONCE_MAX = 65_536;

/** Padding, a few bytes: a loop beats `fill`. */
function clear(bytes: Uint8Array, from: number, to: number): void {
  for (let at = from; at < to; at++) bytes[at] = 0;
}

export class LookupService {
  readonly #held: HeldVersions;
  readonly #limits: ServerLimits;
  readonly #request = new LookupRequestDecoder();
  readonly #batch = new LookupBatch();
  /** Of the groups of the call being answered. */
  readonly #tables: HeldTable[] = [];
  readonly #hitsAt: number[] = [];
  #keyCount = 0;
  #rowsBytes = 0;
  #asF32 = false;
  #hasValues = false;
  #later = false;

  constructor(held: HeldVersions, limits: ServerLimits) {
    this.#held = held;
    this.#limits = limits;
  }

  /** Over baidu_std: keys and rows are the attachments. */
  readonly handle = (frame: Frame, response: RpcResponse): void => {
    const { bytes, payloadStart, payloadEnd, attachmentStart, attachmentEnd } = frame;
    this.#request.decode(bytes, payloadStart, payloadEnd);
    const held = this.#prepare();
    this.#checkKeyBytes(attachmentEnd - attachmentStart);
    held.lookups++;
    if (this.#later) {
      const deferred = response.defer();
      const steps = this.#job(held, bytes.slice(attachmentStart, attachmentEnd), 0, false);
      void answerLater(steps.steps(deferred), deferred);
    } else if (this.#hasValues) {
      runNow(this.#job(held, bytes, attachmentStart, false).steps(response));
    } else {
      response.begin(this.#rowsBytes);
      this.#writeHead(response.output, held);
      this.#writeRows(response.output, bytes, attachmentStart);
    }
  };

  /**
   * Over HTTP: keys and rows are fields of the messages.
   * @param body stays as it is until the answer is there
   */
  answer(body: Uint8Array): Uint8Array | Promise<Uint8Array> {
    const { keysStart, keysEnd } = this.#request.decode(body);
    const held = this.#prepare();
    this.#checkKeyBytes(keysEnd - keysStart);
    held.lookups++;
    const output = new OutputBuffer(this.#rowsBytes + 1024);
    if (this.#later || this.#hasValues) {
      const steps = this.#job(held, body, keysStart, true).steps({
        output,
        begin: () => undefined,
      });
      if (this.#later) return runLater(steps, () => false).then(() => output.written());
      runNow(steps);
      return output.written();
    }
    this.#writeHead(output, held);
    output.appendByte(TAG_ROWS);
    output.appendVarint(this.#rowsBytes);
    this.#writeRows(output, body, keysStart);
    return output.written();
  }

  /** Checks the decoded request and finds its version and tables, before anything is written. */
  #prepare(): HeldVersion {
    const { shardIndex, shardNum, bundle, version, groupCount, tables, counts } = this.#request;
    const { tablesDigest, rowsAs } = this.#request;
    const { keysPerRequest, responseBytes } = this.#limits;
    if (shardIndex !== this.#held.shardIndex || shardNum !== this.#held.shardNum) {
      throw new CubeError(
        'WRONG_SHARD',
        `the lookup is for shard ${shardIndex} of ${shardNum}; this replica serves shard ${this.#held.shardIndex} of ${this.#held.shardNum}`,
      );
    }
    const held = this.#held.resolve(bundle, version);
    if (tablesDigest !== '' && tablesDigest !== held.tablesDigest) {
      throw new CubeError(
        'VERSION_ABSENT',
        `${bundle} ${held.resident.version} has other rows here (${held.tablesDigest}) than asked for (${tablesDigest}): ` +
          'two versions were published under one name; publish one under another, or restart what holds the old one',
      );
    }
    this.#keyCount = 0;
    this.#rowsBytes = 0;
    this.#asF32 = rowsAs === ROWS_F32;
    this.#hasValues = false;
    this.#later = false;
    for (let g = 0; g < groupCount; g++) {
      const table = held.table(tables[g]!);
      this.#tables[g] = table;
      this.#keyCount += counts[g]!;
      this.#rowsBytes += groupBytes(counts[g]!, table.answeredRowBytes(this.#asF32));
      if (table.resident.dtype === 'bytes') this.#hasValues = true;
      if (table.resident.onDisk) this.#later = true;
    }
    if (this.#keyCount > KEYS_AT_ONCE_MAX) this.#later = true;
    if (this.#keyCount > keysPerRequest || this.#rowsBytes > responseBytes) {
      throw new CubeError(
        'TOO_LARGE',
        `${this.#keyCount} keys, ${this.#rowsBytes} bytes of rows: a lookup has at most ${keysPerRequest} keys and ${responseBytes} bytes; split it`,
      );
    }
    return held;
  }

  #checkKeyBytes(byteCount: number): void {
    if (byteCount === this.#keyCount * KEY_BYTES) return;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `the groups count ${this.#keyCount} keys of ${KEY_BYTES} bytes, but there are ${byteCount} bytes of keys`,
    );
  }

  #writeHead(output: OutputBuffer, held: HeldVersion): void {
    const { groupCount, counts } = this.#request;
    output.append(held.versionField);
    for (let g = 0; g < groupCount; g++) {
      const table = this.#tables[g]!;
      const count = counts[g]!;
      const dtype = table.answeredDtype(this.#asF32);
      const rowBytes = table.answeredRowBytes(this.#asF32);
      this.#hitsAt[g] = writeResponseGroup(output, dtype, rowBytes, count, rowBytes * count);
    }
  }

  #writeRows(output: OutputBuffer, keys: Uint8Array, keysStart: number): void {
    const { groupCount, counts } = this.#request;
    const batch = this.#batch;
    let at = output.reserve(this.#rowsBytes);
    const bytes = output.bytes;
    batch.keys = keys;
    batch.keysAt = keysStart;
    batch.rows = bytes;
    batch.found = bytes;
    batch.asF32 = this.#asF32;
    for (let g = 0; g < groupCount; g++) {
      const table = this.#tables[g]!;
      const { resident, traffic } = table;
      const count = counts[g]!;
      const rowBytes = table.answeredRowBytes(this.#asF32);
      const rowsAt = at + bitmapBytes(count);
      const rowsEnd = rowsAt + count * rowBytes;
      batch.count = count;
      batch.foundAt = at;
      batch.rowsAt = rowsAt;
      const hits = resident.lookup(batch);
      if (hits < 0) throw misrouted(this.#held, keys, batch.keysAt, -1 - hits, resident.name);
      setGroupHits(output, this.#hitsAt[g]!, hits);
      traffic.keys += count;
      traffic.hits += hits;
      traffic.bytes += rowsEnd - rowsAt;
      clear(bytes, at + Math.ceil(count / 8), rowsAt);
      at += groupBytes(count, rowBytes);
      clear(bytes, rowsEnd, at);
      batch.keysAt += count * KEY_BYTES;
    }
  }

  /** The request as work of its own, which outlives the decoder's. */
  #job(version: HeldVersion, keys: Uint8Array, keysAt: number, rowsInside: boolean): LookupJob {
    const { groupCount, counts } = this.#request;
    return new LookupJob({
      ...{ held: this.#held, version, keys, keysAt, asF32: this.#asF32, rowsInside },
      tables: this.#tables.slice(0, groupCount),
      counts: counts.slice(0, groupCount),
      responseBytes: this.#limits.responseBytes,
    });
  }
}
