/** Ids per row in inputs with sequences of any length, for a program converted to fixed shapes. */
import { CubeError } from '../../../lib/core/errors.ts';

const LENGTH_MAX = 100_000;

export class SequenceLengths {
  readonly #defaultLength: number;
  readonly #named: ReadonlyMap<string, number>;

  private constructor(defaultLength: number, named: ReadonlyMap<string, number>) {
    this.#defaultLength = defaultLength;
    this.#named = named;
  }

  /** @param texts `N` for every input, `NAME=N` for one. @throws CubeError INVALID_ARGUMENT */
  static parse(texts: readonly string[]): SequenceLengths {
    let defaultLength = 1;
    const named = new Map<string, number>();
    for (const text of texts) {
      const [, name, digits] = /^(?:(.+)=)?(\d{1,6})$/.exec(text) ?? [];
      const length = Number(digits);
      if (!(length >= 1 && length <= LENGTH_MAX)) {
        throw new CubeError(
          'INVALID_ARGUMENT',
          `--sequence-length ${text}: expected N or INPUT=N with N from 1 to ${LENGTH_MAX}`,
        );
      }
      if (name === undefined) defaultLength = length;
      else named.set(name, length);
    }
    return new SequenceLengths(defaultLength, named);
  }

  get(input: string): number {
    return this.#named.get(input) ?? this.#defaultLength;
  }

  get names(): Iterable<string> {
    return this.#named.keys();
  }
}
