/**
 * A packed-lookup server over a real socket that answers from Maps, and misbehaves as told: the client's faults
 * are made here, byte by byte, so that no server of ours has to have them.
 */
import { createServer, type Server, type Socket } from 'node:net';
import { CubeError, ERROR_STATUS, type ErrorCode } from '../../lib/core/errors.ts';
import { keyToBigint } from '../../lib/core/keys.ts';
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
  groupBytes,
  type LookupRequestHead,
  setGroupHits,
  writeResponseGroup,
} from '../../proto/lookup.ts';
import { OutputBuffer } from '../../proto/output-buffer.ts';
import type { OracleTable, OracleVersion } from './oracle.ts';

/** What to do with one request. An error code is answered as that error. */
export type Behaviour =
  | 'answer'
  | 'answer another version'
  | 'answer a row too few'
  | 'answer garbage'
  | 'stay silent'
  | 'drop the connection'
  | ErrorCode;

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
    for (const socket of this.#sockets) socket.resetAndDestroy();
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
      socket.resetAndDestroy();
      return;
    }
    if (behaviour in ERROR_STATUS) {
      const code = behaviour as ErrorCode;
      writeErrorResponse(output, frame, ERROR_STATUS[code].brpc, `told to say ${code}`);
    } else {
      try {
        this.#answer(output, frame, head, behaviour);
      } catch (error) {
        const { status, message } = CubeError.from(error);
        output.truncate(0);
        writeErrorResponse(output, frame, status.brpc, message);
      }
    }
    socket.write(output.written());
  }

  #answer(output: OutputBuffer, frame: Frame, head: LookupRequestHead, behaviour: Behaviour): void {
    if (head.shardIndex !== this.shard || head.shardNum !== this.shardNum) {
      throw new CubeError('WRONG_SHARD', `this is shard ${this.shard} of ${this.shardNum}`);
    }
    const held = this.versions.find(
      ({ bundle, version }) => bundle === head.bundle && version === head.version,
    );
    if (held === undefined)
      throw new CubeError('VERSION_ABSENT', `no version ${head.version} here`);
    const tables = head.groups.map(({ table }) => held.tables.find(({ name }) => name === table)!);
    let rowsBytes = 0;
    head.groups.forEach(({ count }, g) => {
      rowsBytes += groupBytes(count, 4 * tables[g]!.dim);
    });
    const missingBytes = behaviour === 'answer a row too few' ? 4 : 0;
    const frameStart = output.length;
    const metaEnd = beginResponse(output, frame, rowsBytes - missingBytes);
    if (behaviour === 'answer garbage') output.append(Uint8Array.of(0xff, 0xff, 0xff));
    const said = behaviour === 'answer another version' ? 'other' : held.version;
    output.append(encodeVersionField(said));
    const hitsAt = head.groups.map(({ count }, g) =>
      writeResponseGroup(output, 'f32', 4 * tables[g]!.dim, count, 4 * tables[g]!.dim * count),
    );
    let at = frame.attachmentStart;
    head.groups.forEach(({ count }, g) => {
      const keys = new Uint32Array(
        Uint8Array.from(frame.bytes.subarray(at, at + 8 * count)).buffer,
      );
      setGroupHits(output, hitsAt[g]!, appendRows(output, tables[g]!, keys, count));
      at += 8 * count;
    });
    output.truncate(output.length - missingBytes);
    finishFrame(output, frameStart, metaEnd);
  }
}

function appendRows(
  output: OutputBuffer,
  table: OracleTable,
  keys: Uint32Array,
  count: number,
): number {
  const rowsAt = bitmapBytes(count);
  const answer = new Uint8Array(groupBytes(count, 4 * table.dim));
  let hits = 0;
  for (let i = 0; i < count; i++) {
    const row = table.rows.get(keyToBigint(keys, i));
    if (row !== undefined) {
      hits++;
      answer[i >>> 3]! |= 1 << (i & 7);
    }
    const values =
      row ?? Float32Array.from({ length: table.dim }, (_, d) => table.defaultRow[d] ?? 0);
    answer.set(new Uint8Array(values.buffer), rowsAt + i * 4 * table.dim);
  }
  output.append(answer);
  return hits;
}
