/** Reads the body of an HTTP response, of limited size. */
import type { IncomingMessage } from 'node:http';
import { CubeError } from '../core/errors.ts';
import { toConnectionError } from './http-errors.ts';

/** @throws CubeError TOO_LARGE, UNAVAILABLE when the connection is lost */
export async function readHttpBody(
  response: IncomingMessage,
  host: string,
  bytesMax: number,
): Promise<Buffer> {
  const pieces: Buffer[] = [];
  let bytes = 0;
  try {
    for await (const piece of response as AsyncIterable<Buffer>) {
      bytes += piece.length;
      if (bytes > bytesMax) {
        throw new CubeError('TOO_LARGE', `${host}: the response exceeds ${bytesMax} bytes`);
      }
      pieces.push(piece);
    }
  } catch (error) {
    throw toConnectionError(error as Error, host);
  }
  return Buffer.concat(pieces);
}
