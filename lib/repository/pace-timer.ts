/** Gives a request up when nothing, or next to nothing, has come for so long, however large the whole is. */

/** Slower than this is as good as standing still: whoever waits for it waits for ever. */
const BYTES_PER_SECOND_MIN = 1024;

export class PaceTimer {
  readonly #controller = new AbortController();
  readonly #timer: NodeJS.Timeout;
  readonly #idleMs: number;
  /** Since the timer last looked. */
  #bytes = 0;

  constructor(idleMs: number) {
    this.#idleMs = idleMs;
    this.#timer = setInterval(() => this.#look(), idleMs);
  }

  /** Aborted with an error that says how little came. */
  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  count(bytes: number): void {
    this.#bytes += bytes;
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  #look(): void {
    const [bytes, idleMs] = [this.#bytes, this.#idleMs];
    this.#bytes = 0;
    if (bytes >= (BYTES_PER_SECOND_MIN * idleMs) / 1000) return;
    const what = bytes === 0 ? 'nothing' : `no more than ${bytes} bytes`;
    this.stop();
    this.#controller.abort(new Error(`${what} came in ${idleMs} ms`));
  }
}
