/**
 * Pieces of a body. A caller may send it in chunks of one byte, and each chunk is an object that
 * holds more than a hundred: what collects chunks joins small ones, so that memory is in proportion
 * to the bytes received.
 */
import { type Readable, Transform, type TransformCallback } from 'node:stream';
import { CubeError } from '../core/errors.ts';

/** Pieces that are not joined. */
const PIECES_APART = 4;
const JOINED_BYTES = 16 << 10;
/** A body with more chunks must have MEAN_BYTES_MIN in each: reading one takes microseconds. */
const SMALL_CHUNKS_MAX = 8192;
const MEAN_BYTES_MIN = 16;

/**
 * Adds a piece to those before it. A piece that is not larger than the next one is joined with it,
 * so that there are few.
 */
export function addPiece(pieces: Uint8Array[], piece: Uint8Array): void {
  let last = piece;
  while (pieces.length > PIECES_APART) {
    const before = pieces.at(-1);
    if (before === undefined || before.length > last.length) break;
    last = Buffer.concat([before, last]);
    pieces.pop();
  }
  pieces.push(last);
}

/**
 * Joins small chunks of a body. Errors of the body are those of the returned stream. A body of very
 * many tiny chunks ends with INVALID_ARGUMENT and is not read further: two callers that send such
 * bodies without end would take all CPU time of the process.
 * @param onRefused called at once, while the parser may have more chunks of the body
 */
export function joinChunks(body: Readable, onRefused: () => void = () => undefined): Readable {
  const joiner = new ChunkJoiner(onRefused);
  // The reader may have gone before the connection breaks.
  joiner.on('error', () => undefined);
  body.once('error', (error) => joiner.destroy(error));
  body.once('close', () => {
    if (!body.readableEnded) joiner.destroy(new Error('the body broke off'));
  });
  return body.pipe(joiner);
}

class ChunkJoiner extends Transform {
  #pieces: Uint8Array[] = [];
  #bytes = 0;
  #chunks = 0;
  #bytesBefore = 0;
  readonly #onRefused: () => void;

  constructor(onRefused: () => void) {
    super();
    this.#onRefused = onRefused;
  }

  override _transform(chunk: Uint8Array, _: BufferEncoding, done: TransformCallback): void {
    const bytes = this.#bytesBefore + this.#bytes + chunk.length;
    if (++this.#chunks > SMALL_CHUNKS_MAX && bytes < MEAN_BYTES_MIN * this.#chunks) {
      const mean = (bytes / this.#chunks).toFixed(1);
      const text = `the body comes in chunks of ${mean} bytes on average; send larger ones`;
      this.#onRefused();
      done(new CubeError('INVALID_ARGUMENT', text));
      return;
    }
    addPiece(this.#pieces, chunk);
    this.#bytes += chunk.length;
    if (this.#bytes >= JOINED_BYTES) this.#push();
    done();
  }

  override _flush(done: TransformCallback): void {
    if (this.#bytes > 0) this.#push();
    done();
  }

  #push(): void {
    this.push(Buffer.concat(this.#pieces));
    this.#pieces = [];
    this.#bytesBefore += this.#bytes;
    this.#bytes = 0;
  }
}
