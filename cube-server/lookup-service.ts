/**
 * Packed lookup: several tables of one pinned (or the active) version in one call. Keys are read where they came in,
 * rows are written where they leave; nothing happens per key outside the store's kernel.
 */
import { CubeError } from '../lib/core/errors.ts';
import type { ServerLimits } from '../lib/core/limits.ts';
import type { RpcResponse } from '../lib/rpc/rpc-routes.ts';
import type { Frame } from '../proto/baidu-std.ts';
import {
  bitmapBytes,
  groupBytes,
  KEY_BYTES,
  LookupRequestDecoder,
  setGroupHits,
  writeResponseGroup,
} from '../proto/lookup.ts';
import { OutputBuffer } from '../proto/output-buffer.ts';
import type { HeldTable, HeldVersion } from './held-version.ts';
import type { HeldVersions } from './held-versions.ts';

const TAG_ROWS = 0x1a;

export class LookupService {
  readonly #held: HeldVersions;
  readonly #limits: ServerLimits;
  readonly #request = new LookupRequestDecoder();
  /** Of the groups of the call being answered. */
  readonly #tables: HeldTable[] = [];
  readonly #hitsAt: number[] = [];
  #keyCount = 0;
  #rowsBytes = 0;

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
    response.begin(this.#rowsBytes);
    this.#writeHead(response.output, held);
    this.#writeRows(response.output, bytes, attachmentStart);
    held.lookups++;
  };

  /** Over HTTP: keys and rows are fields of the messages. */
  answer(body: Uint8Array): Uint8Array {
    const { keysStart, keysEnd } = this.#request.decode(body);
    const held = this.#prepare();
    this.#checkKeyBytes(keysEnd - keysStart);
    const output = new OutputBuffer(this.#rowsBytes + 1024);
    this.#writeHead(output, held);
    output.appendByte(TAG_ROWS);
    output.appendVarint(this.#rowsBytes);
    this.#writeRows(output, body, keysStart);
    held.lookups++;
    return output.written();
  }

  /** Checks the decoded request and finds its version and tables, before anything is written. */
  #prepare(): HeldVersion {
    const { shardIndex, shardNum, bundle, version, groupCount, tables, counts, tablesDigest } =
      this.#request;
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
    for (let g = 0; g < groupCount; g++) {
      const table = held.table(tables[g]!);
      this.#tables[g] = table;
      this.#keyCount += counts[g]!;
      this.#rowsBytes += groupBytes(counts[g]!, table.resident.rowBytes);
    }
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
      const { dtype, rowBytes } = this.#tables[g]!.resident;
      this.#hitsAt[g] = writeResponseGroup(
        output,
        dtype,
        rowBytes,
        counts[g]!,
        rowBytes * counts[g]!,
      );
    }
  }

  #writeRows(output: OutputBuffer, keys: Uint8Array, keysStart: number): void {
    const { groupCount, counts } = this.#request;
    let at = output.reserve(this.#rowsBytes);
    let keysAt = keysStart;
    const bytes = output.bytes;
    for (let g = 0; g < groupCount; g++) {
      const { resident, traffic } = this.#tables[g]!;
      const count = counts[g]!;
      const rowsAt = at + bitmapBytes(count);
      const end = at + groupBytes(count, resident.rowBytes);
      bytes.fill(0, at + Math.ceil(count / 8), rowsAt);
      bytes.fill(0, rowsAt + count * resident.rowBytes, end);
      const hits = resident.lookup(keys, keysAt, count, bytes, rowsAt, bytes, at);
      if (hits < 0) throw misrouted(this.#held, keys, keysAt, -1 - hits, resident.name);
      setGroupHits(output, this.#hitsAt[g]!, hits);
      traffic.keys += count;
      traffic.hits += hits;
      traffic.bytes += count * resident.rowBytes;
      at = end;
      keysAt += count * KEY_BYTES;
    }
  }
}

/** A missing key of another shard: answering "missing" would turn a routing fault into wrong predictions. */
export function misrouted(
  held: HeldVersions,
  keys: Uint8Array,
  keysAt: number,
  index: number,
  table: string,
): CubeError {
  const view = new DataView(keys.buffer, keys.byteOffset);
  const key = view.getBigUint64(keysAt + index * KEY_BYTES, true);
  return new CubeError(
    'WRONG_SHARD',
    `key ${key} (number ${index} for table ${table}) belongs to shard ${key % BigInt(held.shardNum)}; this replica serves shard ${held.shardIndex} of ${held.shardNum}`,
  );
}
