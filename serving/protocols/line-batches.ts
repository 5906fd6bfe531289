/** Splits a streamed body into batches of lines of bounded size. The body may be endless. */
import { isUtf8 } from 'node:buffer';
import { setImmediate as giveTurn } from 'node:timers/promises';
import { CubeError } from '../../lib/core/errors.ts';
import { addPiece } from '../../lib/rpc/body-pieces.ts';

/** Consecutive lines; a line that is too long or not UTF-8 is an error. */
export interface LineBatch {
  /** The number of the first line, starting at 1. */
  readonly firstLine: number;
  readonly lines: readonly (string | CubeError)[];
}

export interface LineLimits {
  readonly lineBytes: number;
  readonly batchLines: number;
  readonly batchBytes: number;
}

const NEWLINE = 10;
const TOO_LONG = Symbol('too long');

/**
 * Yields a batch at the end of each chunk of the body, so that lines never wait for later ones.
 * After each batch other work of the process has a turn: invalid lines wait for nothing else, and a
 * caller that sends only such lines would keep the process from answering others.
 */
export async function* readLineBatches(
  body: AsyncIterable<Uint8Array>,
  limits: LineLimits,
): AsyncGenerator<LineBatch, void, undefined> {
  const builder = new LineBatchBuilder(limits);
  for await (const chunk of body) {
    let from = 0;
    for (let end = chunk.indexOf(NEWLINE); end >= 0; end = chunk.indexOf(NEWLINE, from)) {
      builder.add(chunk.subarray(from, end));
      builder.endLine();
      from = end + 1;
      if (!builder.isFull) continue;
      yield builder.take();
      await giveTurn();
    }
    builder.add(chunk.subarray(from));
    if (builder.isEmpty) continue;
    yield builder.take();
    await giveTurn();
  }
  builder.endBody();
  if (!builder.isEmpty) yield builder.take();
}

class LineBatchBuilder {
  readonly #limits: LineLimits;
  #lines: (string | CubeError)[] = [];
  #bytes = 0;
  #nextLine = 1;
  /** Parts of the current line. */
  #pieces: Uint8Array[] | typeof TOO_LONG = [];
  #pieceBytes = 0;

  constructor(limits: LineLimits) {
    this.#limits = limits;
  }

  get isFull(): boolean {
    const { batchLines, batchBytes } = this.#limits;
    return this.#lines.length >= batchLines || this.#bytes >= batchBytes;
  }

  get isEmpty(): boolean {
    return this.#lines.length === 0;
  }

  take(): LineBatch {
    const batch = { firstLine: this.#nextLine, lines: this.#lines };
    this.#nextLine += this.#lines.length;
    this.#lines = [];
    this.#bytes = 0;
    return batch;
  }

  add(piece: Uint8Array): void {
    if (this.#pieces === TOO_LONG || piece.length === 0) return;
    this.#pieceBytes += piece.length;
    if (this.#pieceBytes > this.#limits.lineBytes) this.#pieces = TOO_LONG;
    else addPiece(this.#pieces, piece);
  }

  endLine(): void {
    this.#lines.push(this.#line());
    this.#bytes += this.#pieceBytes;
    this.#pieces = [];
    this.#pieceBytes = 0;
  }

  /** The last line may end without a newline. */
  endBody(): void {
    if (this.#pieceBytes > 0) this.endLine();
  }

  #line(): string | CubeError {
    if (this.#pieces === TOO_LONG) {
      const { lineBytes } = this.#limits;
      return new CubeError('TOO_LARGE', `the line is longer than ${lineBytes} bytes`);
    }
    const [first, second] = this.#pieces;
    const isWhole = first !== undefined && second === undefined;
    const bytes = isWhole ? first : Buffer.concat(this.#pieces);
    if (!isUtf8(bytes)) return new CubeError('INVALID_ARGUMENT', 'the line is not UTF-8 text');
    return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString();
  }
}
