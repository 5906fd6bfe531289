/**
 * Reads HTTP responses as bounded streams: redirects are not followed, the size is limited, and an
 * idle timeout ends the request.
 */
import { CubeError } from '../core/errors.ts';

export interface HttpBodyOptions {
  /** Maximum milliseconds without receiving a byte. */
  readonly idleMs: number;
  readonly headers?: Readonly<Record<string, string>>;
}

export interface HttpBody {
  readonly status: number;
  readonly bytes: Uint8Array;
}

export class HttpBodyReader {
  readonly #options: HttpBodyOptions;

  constructor(options: HttpBodyOptions) {
    this.#options = options;
  }

  /**
   * Reads a whole body.
   * @throws CubeError TOO_LARGE beyond `bytesMax`; UNAVAILABLE, DEADLINE_EXCEEDED
   */
  async read(url: string, bytesMax: number): Promise<HttpBody> {
    const pieces: Uint8Array[] = [];
    const { status } = await this.stream(url, bytesMax, (piece) => pieces.push(piece));
    return { status, bytes: Buffer.concat(pieces) };
  }

  /**
   * Reads a body in pieces. The body of an error response is passed on too.
   * @param take receives each piece; returns false to stop
   * @returns the status, and the number of bytes passed on
   */
  async stream(
    url: string,
    bytesMax: number,
    take: (piece: Uint8Array, status: number) => unknown,
  ): Promise<{ status: number; bytes: number }> {
    const abort = new AbortController();
    const { idleMs } = this.#options;
    const timer = setTimeout(() => abort.abort(), idleMs);
    let bytes = 0;
    try {
      const response = await fetch(url, {
        headers: { 'accept-encoding': 'identity', ...this.#options.headers },
        redirect: 'manual',
        signal: abort.signal,
      });
      const { status, body } = response;
      if (status >= 300 && status < 400)
        throw createRedirectError(url, `redirects elsewhere (HTTP ${status})`);
      for await (const piece of body ?? []) {
        timer.refresh();
        bytes += piece.length;
        if (bytes > bytesMax) {
          throw new CubeError(
            'TOO_LARGE',
            `${url}: the response exceeds the expected ${bytesMax} bytes`,
          );
        }
        if (take(piece, status) === false) break;
      }
      return { status, bytes };
    } catch (error) {
      throw this.#failure(url, error, abort.signal.aborted, bytes);
    } finally {
      clearTimeout(timer);
      abort.abort();
    }
  }

  #failure(url: string, error: unknown, isIdle: boolean, bytes: number): CubeError {
    if (error instanceof CubeError) return error;
    const { idleMs } = this.#options;
    if (isIdle) {
      return new CubeError('DEADLINE_EXCEEDED', `${url}: no bytes received for ${idleMs} ms`);
    }
    const { cause } = error as { cause?: { code?: string; message?: string } };
    const reason = cause?.code ?? cause?.message ?? (error as Error).message;
    const when = bytes === 0 ? 'no response' : `the response broke off after ${bytes} bytes`;
    return new CubeError('UNAVAILABLE', `${url}: ${when} (${reason}); try again`, { cause: error });
  }
}

function createRedirectError(url: string, problem: string): CubeError {
  return new CubeError('UNSUPPORTED', `${url} ${problem}; give the final address instead`);
}
