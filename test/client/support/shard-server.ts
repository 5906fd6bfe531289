/**
 * A packed-lookup server over a real socket that answers from Maps, and fails in the ways a test
 * selects.
 */
import { createServer, type Server, type Socket } from 'node:net';
import { encodeErrorDetails } from '../../../lib/core/error-details.ts';
import {
  CubeError,
  ERROR_STATUS,
  type ErrorCode,
  type ErrorDetails,
  getWireErrorName,
} from '../../../lib/core/errors.ts';
import { keyToBigint } from '../../../lib/core/keys.ts';
import type { TableDtype } from '../../../lib/core/manifest.ts';
import { computeRowBytes } from '../../../lib/core/row-codec.ts';
import { encodeResponsePayload, isEncoded } from '../../../lib/rpc/payload-encoding.ts';
import {
  beginResponse,
  type Frame,
  FrameDecoder,
  finishFrame,
  writeErrorResponse,
} from '../../../proto/baidu-std.ts';
import {
  bitmapBytes,
  decodeLookupRequest,
  encodeVersionField,
  groupResponseBytes,
  type LookupRequestHead,
  ROWS_F32,
  setGroupHits,
  writeResponseGroup,
} from '../../../proto/lookup.ts';
import { OutputBuffer } from '../../../proto/output-buffer.ts';
import { readTraceparent } from '../../../proto/trace-fields.ts';
import { resetSocket } from '../../rpc/support/reset.ts';
import type { OracleTable, OracleVersion } from './oracle.ts';

/** The reaction to one request. An error code is returned as that error. */
export type FakeBehavior =
  | 'answer'
  | 'answer another version'
  | 'answer a row too few'
  | 'answer more hits than there are'
  | 'answer one key more than asked'
  | 'answer rows of another dtype'
  | 'answer garbage'
  | 'answer late'
  | 'stay silent'
  | 'drop the connection'
  | ErrorCode;

/** The delay of a late answer: longer than that of a backup, far shorter than a deadline. */
const LATE_MS = 25;

export class FakeShardServer {
  readonly shard: number;
  readonly shardNum: number;
  readonly versions: OracleVersion[];
  /** Heads of the received lookups with keys, in order. */
  readonly lookups: LookupRequestHead[] = [];
  probes = 0;
  timeoutsMs: number[] = [];
  /** The trace of each lookup with keys, in order; undefined: none. */
  readonly traceparents: (string | undefined)[] = [];
  /** Received bytes are read once this is settled. */
  readGate: Promise<void> = Promise.resolve();
  /** Chunks received, read or not. */
  chunksReceived = 0;
  nextBehavior: () => FakeBehavior = () => 'answer';
  responseBytes: number = Number.POSITIVE_INFINITY;
  /** Says which versions it holds when it lacks one. */
  reportsLoadedVersions = false;
  #server: Server | undefined;
  readonly #sockets = new Set<Socket>();
  #port = 0;

  constructor(shard: number, shardNum: number, versions: readonly OracleVersion[]) {
    this.shard = shard;
    this.shardNum = shardNum;
    this.versions = [...versions];
  }

  get endpoint(): string {
    return `127.0.0.1:${this.#port}`;
  }

  get connections(): number {
    return this.#sockets.size;
  }

  /** Listens; again on the same port after a `kill`. */
  async start(): Promise<this> {
    const server = createServer({ noDelay: true }, (socket) => this.#accept(socket));
    this.#server = server;
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject);
      server.listen(this.#port, '127.0.0.1', resolve);
    });
    this.#port = (server.address() as { port: number }).port;
    return this;
  }

  /** Resets all connections and closes the port, as after kill -9. */
  async kill(): Promise<void> {
    const server = this.#server;
    this.#server = undefined;
    for (const socket of this.#sockets) resetSocket(socket);
    if (server !== undefined) await new Promise((resolve) => server.close(resolve));
  }

  #accept(socket: Socket): void {
    const decoder = new FrameDecoder();
    this.#sockets.add(socket);
    socket.on('error', () => undefined);
    socket.on('close', () => this.#sockets.delete(socket));
    let reading = Promise.resolve();
    socket.on('data', (chunk) => {
      this.chunksReceived++;
      reading = Promise.all([reading, this.readGate]).then(() => {
        decoder.push(chunk);
        while (!socket.destroyed && decoder.next()) this.#serve(socket, decoder.frame);
      });
    });
  }

  #serve(socket: Socket, frame: Frame): void {
    const output = new OutputBuffer();
    const head = decodeLookupRequest(frame.bytes.subarray(frame.payloadStart, frame.payloadEnd));
    if (head.groups.length === 0) this.probes++;
    else {
      this.lookups.push(head);
      this.traceparents.push(readTraceparent(frame));
    }
    this.timeoutsMs.push(frame.timeoutMs);
    const behavior = this.nextBehavior();
    if (behavior === 'stay silent') return;
    if (behavior === 'drop the connection') {
      resetSocket(socket);
      return;
    }
    if (behavior in ERROR_STATUS) {
      const code = behavior as ErrorCode;
      const text = `told to say ${code}`;
      writeErrorResponse(output, frame, ERROR_STATUS[code].brpc, text, getWireErrorName(code));
    } else {
      try {
        this.#answer(output, frame, head, behavior);
      } catch (error) {
        const { status, message, code, details } = CubeError.from(error);
        output.truncate(0);
        const name = getWireErrorName(code);
        writeErrorResponse(output, frame, status.brpc, message, name, encodeErrorDetails(details));
      }
    }
    if (behavior === 'answer late') setTimeout(() => socket.write(output.writtenBytes()), LATE_MS);
    else socket.write(output.writtenBytes());
  }

  #errorDetails(): ErrorDetails {
    if (!this.reportsLoadedVersions) return {};
    return { loadedVersions: this.versions.map(({ version }) => version) };
  }

  #answer(
    output: OutputBuffer,
    frame: Frame,
    head: LookupRequestHead,
    behavior: FakeBehavior,
  ): void {
    if (head.shardIndex !== this.shard || head.shardNum !== this.shardNum) {
      throw new CubeError('WRONG_SHARD', `this is shard ${this.shard} of ${this.shardNum}`);
    }
    const loaded = this.versions.find(
      ({ bundle, version }) => bundle === head.bundle && version === head.version,
    );
    if (loaded === undefined) {
      const details = this.#errorDetails();
      throw new CubeError('VERSION_ABSENT', `no version ${head.version} here`, { details });
    }
    const answers = head.groups.map(({ table, count }) => {
      const found = loaded.tables.find(({ name }) => name === table)!;
      return new GroupResponse(found, count, head.rowsAs === ROWS_F32);
    });
    let offset = frame.attachmentStart;
    for (const answer of answers) {
      const end = offset + 8 * answer.count;
      answer.fill(new Uint32Array(Uint8Array.from(frame.bytes.subarray(offset, end)).buffer));
      offset = end;
    }
    const rowsBytes = answers.reduce((sum, { bytes }) => sum + bytes.length, 0);
    if (rowsBytes > this.responseBytes) {
      const limit = `a lookup has at most ${this.responseBytes} bytes; split it`;
      const text = `${rowsBytes} bytes of rows: ${limit}`;
      throw new CubeError('TOO_LARGE', text);
    }
    const missingBytes = behavior === 'answer a row too few' ? 4 : 0;
    const frameStart = output.length;
    const metaEnd = beginResponse(output, frame, rowsBytes - missingBytes);
    if (behavior === 'answer garbage') output.append(Uint8Array.of(0xff, 0xff, 0xff));
    const version = behavior === 'answer another version' ? 'other' : loaded.version;
    output.append(encodeVersionField(version));
    for (const { dtype, rowBytes, count, partBytes, hits } of answers) {
      const extraKeys = behavior === 'answer one key more than asked' ? 1 : 0;
      const isOtherDtype = behavior === 'answer rows of another dtype' && dtype === 'f32';
      const extraHits = behavior === 'answer more hits than there are' ? 1 : 0;
      const hitsAt = writeResponseGroup(
        output,
        isOtherDtype ? 'bf16' : dtype,
        rowBytes,
        count + extraKeys,
        partBytes,
      );
      setGroupHits(output, hitsAt, hits + extraHits);
    }
    for (const { bytes } of answers) output.append(bytes);
    output.truncate(output.length - missingBytes);
    const attachmentBytes = rowsBytes - missingBytes;
    if (isEncoded(frame)) {
      encodeResponsePayload(output, { frameStart, metaEnd, attachmentBytes }, frame);
    }
    finishFrame(output, frameStart, metaEnd);
  }
}

/** The response to one group: bitmap and rows, or values. */
class GroupResponse {
  readonly count: number;
  dtype: TableDtype = 'f32';
  rowBytes: number;
  /** Bitmap and rows, padded. */
  bytes: Uint8Array = new Uint8Array(0);
  /** Bytes of the rows before the padding. */
  partBytes = 0;
  hits = 0;
  readonly #table: OracleTable;
  readonly #asF32: boolean;

  constructor(table: OracleTable, count: number, asF32: boolean) {
    this.#table = table;
    this.#asF32 = asF32;
    this.count = count;
    this.rowBytes = 4 * table.dim;
  }

  fill(keys: Uint32Array): void {
    const { values, stored, rows, dim, defaultRow } = this.#table;
    const found = new Uint8Array(bitmapBytes(this.count));
    const parts: Uint8Array[] = [];
    const lengths = new Uint32Array(values === undefined ? 0 : this.count);
    if (values !== undefined) [this.dtype, this.rowBytes] = ['bytes', 0];
    else if (stored !== undefined && !this.#asF32) {
      [this.dtype, this.rowBytes] = [stored.dtype, computeRowBytes(stored.dtype, dim)];
    }
    for (let i = 0; i < this.count; i++) {
      const key = keyToBigint(keys, i);
      const row = rows.get(key);
      const hit = values === undefined ? row !== undefined : values.has(key);
      if (hit) {
        this.hits++;
        found[i >>> 3]! |= 1 << (i & 7);
      }
      if (this.dtype === 'bytes') {
        const value = values!.get(key) ?? new Uint8Array(0);
        lengths[i] = value.length;
        parts.push(value);
      } else if (this.dtype === 'f32') {
        const floats = row ?? Float32Array.from({ length: dim }, (_, d) => defaultRow[d] ?? 0);
        parts.push(new Uint8Array(floats.buffer, floats.byteOffset, floats.byteLength));
      } else parts.push(stored!.rows.get(key) ?? new Uint8Array(this.rowBytes).fill(0x55));
    }
    const part = Buffer.concat([new Uint8Array(lengths.buffer), ...parts]);
    this.partBytes = part.length;
    this.bytes = new Uint8Array(groupResponseBytes(this.count, part.length));
    this.bytes.set(found);
    this.bytes.set(part, found.length);
  }
}
