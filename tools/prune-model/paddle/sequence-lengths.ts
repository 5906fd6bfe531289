/** How many ids each row has in inputs that take sequences of any length, once a program is converted to fixed shapes. */
import { CubeError } from '../../../lib/core/errors.ts';

const LENGTH_MAX = 100_000;

export class SequenceLengths {
  readonly #otherwise: number;
  readonly #named: ReadonlyMap<string, number>;

  private constructor(otherwise: number, named: ReadonlyMap<string, number>) {
    this.#otherwise = otherwise;
    this.#named = named;
  }

  /** @param texts `N` for every input, `NAME=N` for one. @throws CubeError INVALID_ARGUMENT */
  static parse(texts: readonly string[]): SequenceLengths {
    let otherwise = 1;
    const named = new Map<string, number>();
    for (const text of texts) {
      const [, name, digits] = /^(?:(.+)=)?(\d{1,6})$/.exec(text) ?? [];
      const length = Number(digits);
      if (!(length >= 1 && length <= LENGTH_MAX)) {
        throw new CubeError(
          'INVALID_ARGUMENT',
          `--sequence-length ${text}: expected N or INPUT=N, N from 1 to ${LENGTH_MAX}`,
        );
      }
      if (name === undefined) otherwise = length;
      else named.set(name, length);
    }
    return new SequenceLengths(otherwise, named);
  }

  /** Of an input of the full program. */
  of(input: string): number {
    return this.#named.get(input) ?? this.#otherwise;
  }

  get names(): Iterable<string> {
    return this.#named.keys();
  }
}
