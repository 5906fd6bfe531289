/** The lines of a body as they come, in batches of bounded size: a body may be endless. */
import { isUtf8 } from 'node:buffer';
import { CubeError } from '../../lib/core/errors.ts';

/** Lines one after another; those that are too long or no UTF-8 are errors. */
export interface LineBatch {
  /** The number of the first, from 1. */
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

/** What has come goes out at the end of each piece of the body: lines never wait for others. */
export async function* lineBatches(
  body: AsyncIterable<Uint8Array>,
  limits: LineLimits,
): AsyncGenerator<LineBatch, void, undefined> {
  const gatherer = new LineGatherer(limits);
  for await (const piece of body) {
    let from = 0;
    for (let end = piece.indexOf(NEWLINE); end >= 0; end = piece.indexOf(NEWLINE, from)) {
      gatherer.add(piece.subarray(from, end));
      gatherer.endLine();
      from = end + 1;
      if (gatherer.full) yield gatherer.take();
    }
    gatherer.add(piece.subarray(from));
    if (!gatherer.empty) yield gatherer.take();
  }
  gatherer.endBody();
  if (!gatherer.empty) yield gatherer.take();
}

class LineGatherer {
  readonly #limits: LineLimits;
  #lines: (string | CubeError)[] = [];
  #bytes = 0;
  #nextLine = 1;
  /** The line that has begun. */
  #pieces: Uint8Array[] | typeof TOO_LONG = [];
  #pieceBytes = 0;

  constructor(limits: LineLimits) {
    this.#limits = limits;
  }

  get full(): boolean {
    const { batchLines, batchBytes } = this.#limits;
    return this.#lines.length >= batchLines || this.#bytes >= batchBytes;
  }

  get empty(): boolean {
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
    else this.#pieces.push(piece);
  }

  endLine(): void {
    this.#lines.push(this.#line());
    this.#bytes += this.#pieceBytes;
    this.#pieces = [];
    this.#pieceBytes = 0;
  }

  /** The last line may end without a break. */
  endBody(): void {
    if (this.#pieceBytes > 0) this.endLine();
  }

  #line(): string | CubeError {
    if (this.#pieces === TOO_LONG) {
      const { lineBytes } = this.#limits;
      return new CubeError('TOO_LARGE', `the line is longer than ${lineBytes} bytes`);
    }
    const bytes = this.#pieces.length === 1 ? this.#pieces[0]! : Buffer.concat(this.#pieces);
    if (!isUtf8(bytes)) return new CubeError('INVALID_ARGUMENT', 'the line is not UTF-8 text');
    return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString();
  }
}
