/**
 * A value that is read from files, and read again when they change. The files are looked at when
 * the value is used, at most once per interval: no timer keeps the process alive, and a value that
 * every request uses costs no system call each time. While changed files cannot be read or are
 * invalid, the previous value stays.
 */
import { CubeError } from '../core/errors.ts';
import { getFileStamp } from './files.ts';

export interface RereadOptions<T> {
  readonly paths: readonly string[];
  /** @throws when the files cannot be read or are invalid */
  readonly read: () => T;
  /** Minimum interval between looks at the files. */
  readonly intervalMs: number;
  readonly clock: { nowMs(): number };
  /** Called after the value has changed. */
  readonly onChange?: (value: T) => void;
  /** Called once for each change to invalid files. */
  readonly onInvalid?: (error: CubeError) => void;
}

export class RereadValue<T> {
  readonly #options: RereadOptions<T>;
  #value: T;
  #stamps: string;
  #nextLookMs: number;

  /** @throws what `read` throws */
  constructor(options: RereadOptions<T>) {
    this.#options = options;
    this.#stamps = readStamps(options.paths);
    this.#value = options.read();
    this.#nextLookMs = options.clock.nowMs() + options.intervalMs;
  }

  /** The value, at most an interval old: the same object while the files are unchanged. */
  get current(): T {
    const { paths, intervalMs, clock } = this.#options;
    const nowMs = clock.nowMs();
    if (nowMs < this.#nextLookMs) return this.#value;
    this.#nextLookMs = nowMs + intervalMs;
    // The stamps are taken before the read: a change in between is noticed at the next look.
    const stamps = readStamps(paths);
    if (stamps !== this.#stamps) {
      this.#stamps = stamps;
      this.#reread();
    }
    return this.#value;
  }

  #reread(): void {
    const { read, onChange, onInvalid } = this.#options;
    try {
      this.#value = read();
    } catch (error) {
      onInvalid?.(CubeError.from(error));
      return;
    }
    onChange?.(this.#value);
  }
}

function readStamps(paths: readonly string[]): string {
  return paths.map((path) => getFileStamp(path) ?? '').join(' ');
}
