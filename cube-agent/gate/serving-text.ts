/** Reads a page of text, such as metrics, from a serving process. */
import { CubeError } from '../../lib/core/errors.ts';

const TIMEOUT_MS = 5_000;
const RESPONSE_BYTES_MAX = 16 << 20;

/** @param path begins with a slash. @throws CubeError UNAVAILABLE, TOO_LARGE */
export async function fetchServingText(address: string, path: string): Promise<string> {
  const url = `http://${address}${path}`;
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const failed = (text: string): CubeError => new CubeError('UNAVAILABLE', `${url}: ${text}`);
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  try {
    const response = await fetch(url, { redirect: 'error', signal });
    for await (const piece of response.body ?? []) {
      bytes += piece.length;
      if (bytes > RESPONSE_BYTES_MAX) {
        throw new CubeError('TOO_LARGE', `${url} answers more than ${RESPONSE_BYTES_MAX} bytes`);
      }
      pieces.push(piece);
    }
    if (!response.ok) throw failed(`HTTP status ${response.status}`);
  } catch (error) {
    if (error instanceof CubeError) throw error;
    throw failed((error as Error).message);
  }
  return Buffer.concat(pieces).toString();
}
