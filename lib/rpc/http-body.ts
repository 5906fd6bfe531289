/** Bodies over HTTP as bounded streams: no redirect is followed, no byte beyond a limit is kept, and silence ends the call. */
import { CubeError } from '../core/errors.ts';

export interface BodyOptions {
  /** So long without a byte ends the call. */
  readonly idleMs: number;
  readonly headers?: Readonly<Record<string, string>>;
}

export interface Body {
  readonly status: number;
  readonly bytes: Uint8Array;
}

export class BodyReader {
  readonly #options: BodyOptions;

  constructor(options: BodyOptions) {
    this.#options = options;
  }

  /**
   * A whole body.
   * @throws CubeError TOO_LARGE beyond `bytesMax`; UNAVAILABLE, DEADLINE_EXCEEDED
   */
  async read(url: string, bytesMax: number): Promise<Body> {
    const pieces: Uint8Array[] = [];
    const { status } = await this.stream(url, bytesMax, (piece) => pieces.push(piece));
    return { status, bytes: Buffer.concat(pieces) };
  }

  /**
   * The same in pieces. Of an answer that is no success the body is passed on too.
   * @param take returns false to stop
   * @returns the status, and the bytes passed on
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
      if (status >= 300 && status < 400) throw refusal(url, `leads elsewhere (HTTP ${status})`);
      for await (const piece of body ?? []) {
        timer.refresh();
        bytes += piece.length;
        if (bytes > bytesMax) {
          throw new CubeError('TOO_LARGE', `${url}: more than the ${bytesMax} bytes expected`);
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

  #failure(url: string, error: unknown, silent: boolean, bytes: number): CubeError {
    if (error instanceof CubeError) return error;
    const { idleMs } = this.#options;
    if (silent) {
      return new CubeError('DEADLINE_EXCEEDED', `${url}: nothing came for ${idleMs} ms`);
    }
    const { cause } = error as { cause?: { code?: string; message?: string } };
    const told = cause?.code ?? cause?.message ?? (error as Error).message;
    const when = bytes === 0 ? 'no answer' : `it broke off after ${bytes} bytes`;
    return new CubeError('UNAVAILABLE', `${url}: ${when} (${told}); try again`, { cause: error });
  }
}

function refusal(url: string, what: string): CubeError {
  return new CubeError('UNSUPPORTED', `${url} ${what}; give the address that it leads to`);
}
