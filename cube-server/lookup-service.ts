/**
 * Packed lookup: several tables of one pinned or active version in one call. Keys are read from the
 * request's buffer and rows are written to the response's buffer; no work per key happens outside
 * the store's kernel.
 */
import { CubeError } from '../lib/core/errors.ts';
import type { ServerLimits } from '../lib/core/limits.ts';
import type { RpcResponse } from '../lib/rpc/rpc-routes.ts';
import { LookupBatch } from '../lib/store/lookup-batch.ts';
import type { Frame } from '../proto/baidu-std.ts';
import {
  beginResponseRows,
  bitmapBytes,
  fixedRowsResponseBytes,
  KEY_BYTES,
  LookupRequestDecoder,
  ROWS_F32,
  setGroupHits,
  writeResponseGroup,
} from '../proto/lookup.ts';
import { OutputBuffer } from '../proto/output-buffer.ts';
import type { LoadedTable, LoadedVersion } from './loaded-version.ts';
import type { LoadedVersions } from './loaded-versions.ts';
import { createWrongShardError } from './loaded-versions.ts';
import { LookupJob } from './lookup-job.ts';
import { respondSliced, runSliced, runSync } from './sliced-task.ts';

/**
 * Larger requests are looked up in slices: they would block other requests for several
 * milliseconds.
 */
const KEYS_AT_ONCE_MAX = 65_536;

/** For a few bytes of padding a loop is faster than `fill`. */
function clearPadding(bytes: Uint8Array, from: number, to: number): void {
  for (let at = from; at < to; at++) bytes[at] = 0;
}

export class LookupService {
  readonly #versions: LoadedVersions;
  readonly #limits: ServerLimits;
  readonly #request = new LookupRequestDecoder();
  readonly #batch = new LookupBatch();
  /** Tables of the current call's groups. */
  readonly #tables: LoadedTable[] = [];
  readonly #hitsAt: number[] = [];
  #keyCount = 0;
  #rowsBytes = 0;
  #asF32 = false;
  #hasValues = false;
  #isSliced = false;

  constructor(versions: LoadedVersions, limits: ServerLimits) {
    this.#versions = versions;
    this.#limits = limits;
  }

  /** Handles a baidu_std frame: keys and rows are attachments. */
  readonly handleFrame = (frame: Frame, response: RpcResponse): void => {
    const { bytes, payloadStart, payloadEnd, attachmentStart, attachmentEnd } = frame;
    this.#request.decode(bytes, payloadStart, payloadEnd);
    const version = this.#prepare();
    this.#checkKeyBytes(attachmentEnd - attachmentStart);
    version.lookups++;
    if (this.#isSliced) {
      const deferred = response.defer();
      const steps = this.#createJob(version, bytes.slice(attachmentStart, attachmentEnd), 0, false);
      void respondSliced(steps.run(deferred), deferred);
    } else if (this.#hasValues) {
      runSync(this.#createJob(version, bytes, attachmentStart, false).run(response));
    } else {
      response.begin(this.#rowsBytes);
      this.#writeHead(response.output, version);
      this.#writeRows(response.output, bytes, attachmentStart);
    }
  };

  /**
   * Handles a message over HTTP or gRPC: keys and rows are fields.
   * @param body must not change until the response is complete
   */
  handleMessage(body: Uint8Array): Uint8Array | Promise<Uint8Array> {
    const { keysStart, keysEnd } = this.#request.decode(body);
    const version = this.#prepare();
    this.#checkKeyBytes(keysEnd - keysStart);
    version.lookups++;
    const output = new OutputBuffer(this.#rowsBytes + 1024);
    if (this.#isSliced || this.#hasValues) {
      const steps = this.#createJob(version, body, keysStart, true).run({
        output,
        begin: () => undefined,
      });
      if (this.#isSliced) return runSliced(steps, () => false).then(() => output.writtenBytes());
      runSync(steps);
      return output.writtenBytes();
    }
    this.#writeHead(output, version);
    beginResponseRows(output, this.#rowsBytes);
    this.#writeRows(output, body, keysStart);
    return output.writtenBytes();
  }

  /** Checks the decoded request and finds its version and tables, before anything is written. */
  #prepare(): LoadedVersion {
    const { shardIndex, shardNum, bundle, version, groupCount, tables, counts } = this.#request;
    const { tablesDigest, rowsAs } = this.#request;
    const { keysPerRequest, responseBytes } = this.#limits;
    if (shardIndex !== this.#versions.shardIndex || shardNum !== this.#versions.shardNum) {
      throw new CubeError(
        'WRONG_SHARD',
        `the lookup is for shard ${shardIndex} of ${shardNum}; ` +
          `this replica serves shard ${this.#versions.shardIndex} of ${this.#versions.shardNum}`,
        { details: { shard: this.#versions.shardIndex } },
      );
    }
    const loaded = this.#versions.resolve(bundle, version);
    if (tablesDigest !== '' && tablesDigest !== loaded.tablesDigest) {
      throw new CubeError(
        'VERSION_ABSENT',
        `${bundle} ${loaded.resident.version} has other rows on this server ` +
          `(${loaded.tablesDigest}) than requested (${tablesDigest}): ` +
          'two versions were published under one name; ' +
          'publish one under a new name, or restart the servers with the old one',
        { details: { bundle, version: loaded.resident.version } },
      );
    }
    this.#keyCount = 0;
    this.#rowsBytes = 0;
    this.#asF32 = rowsAs === ROWS_F32;
    this.#hasValues = false;
    this.#isSliced = false;
    for (let g = 0; g < groupCount; g++) {
      const table = loaded.table(tables[g]!);
      this.#tables[g] = table;
      this.#keyCount += counts[g]!;
      this.#rowsBytes += fixedRowsResponseBytes(counts[g]!, table.getResponseRowBytes(this.#asF32));
      if (table.resident.dtype === 'bytes') this.#hasValues = true;
      if (table.resident.onDisk) this.#isSliced = true;
    }
    if (this.#keyCount > KEYS_AT_ONCE_MAX) this.#isSliced = true;
    if (this.#keyCount > keysPerRequest || this.#rowsBytes > responseBytes) {
      throw new CubeError(
        'TOO_LARGE',
        `${this.#keyCount} keys, ${this.#rowsBytes} bytes of rows: a lookup has at most ` +
          `${keysPerRequest} keys and ${responseBytes} bytes; split it`,
      );
    }
    return loaded;
  }

  #checkKeyBytes(byteCount: number): void {
    if (byteCount === this.#keyCount * KEY_BYTES) return;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `the groups count ${this.#keyCount} keys of ${KEY_BYTES} bytes, ` +
        `but there are ${byteCount} bytes of keys`,
    );
  }

  #writeHead(output: OutputBuffer, version: LoadedVersion): void {
    const { groupCount, counts } = this.#request;
    output.append(version.versionField);
    for (let g = 0; g < groupCount; g++) {
      const table = this.#tables[g]!;
      const count = counts[g]!;
      const dtype = table.getResponseDtype(this.#asF32);
      const rowBytes = table.getResponseRowBytes(this.#asF32);
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
      const { resident, counters } = table;
      const count = counts[g]!;
      const rowBytes = table.getResponseRowBytes(this.#asF32);
      const rowsAt = at + bitmapBytes(count);
      const rowsEnd = rowsAt + count * rowBytes;
      batch.count = count;
      batch.foundAt = at;
      batch.rowsAt = rowsAt;
      const hits = resident.lookup(batch);
      if (hits < 0)
        throw createWrongShardError(this.#versions, keys, batch.keysAt, -1 - hits, resident.name);
      setGroupHits(output, this.#hitsAt[g]!, hits);
      counters.keys += count;
      counters.hits += hits;
      counters.bytes += rowsEnd - rowsAt;
      clearPadding(bytes, at + Math.ceil(count / 8), rowsAt);
      at += fixedRowsResponseBytes(count, rowBytes);
      clearPadding(bytes, rowsEnd, at);
      batch.keysAt += count * KEY_BYTES;
    }
  }

  /** The request as a separate job, which outlives the decoder's buffers. */
  #createJob(
    version: LoadedVersion,
    keys: Uint8Array,
    keysAt: number,
    rowsInside: boolean,
  ): LookupJob {
    const { groupCount, counts } = this.#request;
    return new LookupJob({
      loadedVersions: this.#versions,
      version,
      keys,
      keysAt,
      asF32: this.#asF32,
      rowsInside,
      tables: this.#tables.slice(0, groupCount),
      counts: counts.slice(0, groupCount),
      responseBytes: this.#limits.responseBytes,
    });
  }
}
