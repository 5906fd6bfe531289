/**
 * A packed-lookup server over a real socket that answers from Maps, and misbehaves as told: the client's faults
 * are made here, byte by byte, so that no server of ours has to have them.
 */
import { createServer, type Server, type Socket } from 'node:net';
import { CubeError, codeNameOf, ERROR_STATUS, type ErrorCode } from '../../lib/core/errors.ts';
import { keyToBigint } from '../../lib/core/keys.ts';
import type { TableDtype } from '../../lib/core/manifest.ts';
import { rowBytesOf } from '../../lib/core/row-codec.ts';
import {
  beginResponse,
  type Frame,
  FrameDecoder,
  finishFrame,
  writeErrorResponse,
} from '../../proto/baidu-std.ts';
import {
  bitmapBytes,
  decodeLookupRequest,
  encodeVersionField,
  groupBytesOf,
  type LookupRequestHead,
  ROWS_F32,
  setGroupHits,
  writeResponseGroup,
} from '../../proto/lookup.ts';
import { OutputBuffer } from '../../proto/output-buffer.ts';
import { reset } from '../rpc/reset.ts';
import type { OracleTable, OracleVersion } from './oracle.ts';

/** What to do with one request. An error code is answered as that error. */
export type Behaviour =
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

/** How late a late answer is: later than a backup, far earlier than a deadline. */
const LATE_MS = 25;

export class ShardServer {
  readonly shard: number;
  readonly shardNum: number;
  readonly versions: OracleVersion[];
  /** Heads of the lookups with keys, in order of arrival. */
  readonly lookups: LookupRequestHead[] = [];
  probes = 0;
  timeoutsMs: number[] = [];
  /** What arrives is read when this is settled. */
  gate: Promise<void> = Promise.resolve();
  /** Pieces of bytes that arrived, read or not. */
  arrivals = 0;
  behave: () => Behaviour = () => 'answer';
  responseBytes: number = Number.POSITIVE_INFINITY;
  /** Says which versions it holds when it lacks one. */
  saysHeld = false;
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

  /** As kill -9 looks from outside: connections reset, port closed. */
  async kill(): Promise<void> {
    const server = this.#server;
    this.#server = undefined;
    for (const socket of this.#sockets) reset(socket);
    if (server !== undefined) await new Promise((resolve) => server.close(resolve));
  }

  #accept(socket: Socket): void {
    const decoder = new FrameDecoder();
    this.#sockets.add(socket);
    socket.on('error', () => undefined);
    socket.on('close', () => this.#sockets.delete(socket));
    let reading = Promise.resolve();
    socket.on('data', (chunk) => {
      this.arrivals++;
      reading = Promise.all([reading, this.gate]).then(() => {
        decoder.push(chunk);
        while (!socket.destroyed && decoder.next()) this.#serve(socket, decoder.frame);
      });
    });
  }

  #serve(socket: Socket, frame: Frame): void {
    const output = new OutputBuffer();
    const head = decodeLookupRequest(frame.bytes.subarray(frame.payloadStart, frame.payloadEnd));
    if (head.groups.length === 0) this.probes++;
    else this.lookups.push(head);
    this.timeoutsMs.push(frame.timeoutMs);
    const behaviour = this.behave();
    if (behaviour === 'stay silent') return;
    if (behaviour === 'drop the connection') {
      reset(socket);
      return;
    }
    if (behaviour in ERROR_STATUS) {
      const code = behaviour as ErrorCode;
      const text = `told to say ${code}`;
      writeErrorResponse(output, frame, ERROR_STATUS[code].brpc, text, codeNameOf(code));
    } else {
      try {
        this.#answer(output, frame, head, behaviour);
      } catch (error) {
        const { status, message, code } = CubeError.from(error);
        output.truncate(0);
        writeErrorResponse(output, frame, status.brpc, message, codeNameOf(code));
      }
    }
    if (behaviour === 'answer late') setTimeout(() => socket.write(output.written()), LATE_MS);
    else socket.write(output.written());
  }

  #heldText(): string {
    return this.saysHeld
      ? ` (held: ${this.versions.map(({ version }) => version).join(', ')})`
      : '';
  }

  #answer(output: OutputBuffer, frame: Frame, head: LookupRequestHead, behaviour: Behaviour): void {
    if (head.shardIndex !== this.shard || head.shardNum !== this.shardNum) {
      throw new CubeError('WRONG_SHARD', `this is shard ${this.shard} of ${this.shardNum}`);
    }
    const held = this.versions.find(
      ({ bundle, version }) => bundle === head.bundle && version === head.version,
    );
    if (held === undefined)
      throw new CubeError('VERSION_ABSENT', `no version ${head.version} here${this.#heldText()}`);
    const answers = head.groups.map(({ table, count }) => {
      const found = held.tables.find(({ name }) => name === table)!;
      return new GroupAnswer(found, count, head.rowsAs === ROWS_F32);
    });
    let at = frame.attachmentStart;
    for (const answer of answers) {
      const end = at + 8 * answer.count;
      answer.fill(new Uint32Array(Uint8Array.from(frame.bytes.subarray(at, end)).buffer));
      at = end;
    }
    const rowsBytes = answers.reduce((sum, { bytes }) => sum + bytes.length, 0);
    if (rowsBytes > this.responseBytes) {
      const text = `${rowsBytes} bytes of rows: a lookup has at most ${this.responseBytes} bytes; split it`;
      throw new CubeError('TOO_LARGE', text);
    }
    const missingBytes = behaviour === 'answer a row too few' ? 4 : 0;
    const frameStart = output.length;
    const metaEnd = beginResponse(output, frame, rowsBytes - missingBytes);
    if (behaviour === 'answer garbage') output.append(Uint8Array.of(0xff, 0xff, 0xff));
    const said = behaviour === 'answer another version' ? 'other' : held.version;
    output.append(encodeVersionField(said));
    for (const { dtype, rowBytes, count, partBytes, hits } of answers) {
      const lying = behaviour === 'answer one key more than asked' ? 1 : 0;
      const other = behaviour === 'answer rows of another dtype' && dtype === 'f32';
      const more = behaviour === 'answer more hits than there are' ? 1 : 0;
      const hitsAt = writeResponseGroup(
        output,
        other ? 'bf16' : dtype,
        rowBytes,
        count + lying,
        partBytes,
      );
      setGroupHits(output, hitsAt, hits + more);
    }
    for (const { bytes } of answers) output.append(bytes);
    output.truncate(output.length - missingBytes);
    finishFrame(output, frameStart, metaEnd);
  }
}

/** The answer to one group: bitmap and rows, or values. */
class GroupAnswer {
  readonly count: number;
  dtype: TableDtype = 'f32';
  rowBytes: number;
  /** Bitmap and rows part, padded. */
  bytes: Uint8Array = new Uint8Array(0);
  /** Of the rows part before its padding. */
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
      [this.dtype, this.rowBytes] = [stored.dtype, rowBytesOf(stored.dtype, dim)];
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
    this.bytes = new Uint8Array(groupBytesOf(this.count, part.length));
    this.bytes.set(found);
    this.bytes.set(part, found.length);
  }
}
