/** A range of a remote object, gone on with where a connection was cut. */
import { CubeError } from '../core/errors.ts';

/** How often in a row a range is asked for again of which next to nothing came. */
const CUTS_MAX = 5;
const PROGRESS_BYTES = 16 << 10;

/**
 * @param name of the object, for errors
 * @param open the pieces of what is missing: `bytes` from `done` on, counted from the range's start
 * @throws CubeError CORRUPT when more comes than was asked for; what `open` throws, but UNAVAILABLE only several times in a row
 */
export async function gatherRange(
  name: string,
  bytes: number,
  open: (done: number, bytes: number) => AsyncIterable<Uint8Array>,
): Promise<Uint8Array> {
  const target = new Uint8Array(bytes);
  let done = 0;
  for (let cuts = 0; done < bytes; ) {
    const had = done;
    try {
      for await (const piece of open(done, bytes - done)) {
        if (piece.length > bytes - done) {
          throw new CubeError('CORRUPT', `${name}: more came than was asked for`);
        }
        target.set(piece, done);
        done += piece.length;
      }
      if (done < bytes) throw new CubeError('UNAVAILABLE', `${name}: the connection was cut`);
    } catch (error) {
      const isCut = error instanceof CubeError && error.code === 'UNAVAILABLE';
      cuts = done - had < PROGRESS_BYTES ? cuts + 1 : 0;
      if (!isCut || cuts > CUTS_MAX) throw error;
    }
  }
  return target;
}
