/**
 * Pieces of a body. A caller may send it in chunks of one byte, and each chunk is an object that
 * holds more than a hundred: what collects chunks joins small ones, so that memory is in proportion
 * to the bytes received.
 */
import { pipeline, type Readable, Transform, type TransformCallback } from 'node:stream';

/** Pieces that are not joined. */
const PIECES_APART = 4;
const JOINED_BYTES = 16 << 10;

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

/** Joins small chunks of a body. Errors of the body are those of the returned stream. */
export function joinChunks(body: Readable): Readable {
  const joiner = new ChunkJoiner();
  // The reader may have gone before the connection breaks.
  joiner.on('error', () => undefined);
  return pipeline(body, joiner, () => undefined);
}

class ChunkJoiner extends Transform {
  #pieces: Uint8Array[] = [];
  #bytes = 0;

  override _transform(chunk: Uint8Array, _: BufferEncoding, done: TransformCallback): void {
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
    this.#bytes = 0;
  }
}
