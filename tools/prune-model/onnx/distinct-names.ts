/**
 * Names of things that the model may call the same: a body has names of its own, which may be those of another body, and one
 * quantised table may be read with several scales.
 */
import { freshName } from './function-inliner.ts';

export class DistinctNames {
  readonly #numbers = new Map<unknown, number>();
  readonly #names = new Map<string, string>();
  readonly #taken = new Set<string>();

  /** @param parts what makes the thing that it is, compared by identity. @returns always the same name for the same parts */
  nameOf(wanted: string, ...parts: readonly unknown[]): string {
    const key = parts.map((part) => this.#numberOf(part)).join();
    const known = this.#names.get(key);
    if (known !== undefined) return known;
    const name = freshName(wanted, this.#taken);
    this.#names.set(key, name);
    return name;
  }

  #numberOf(part: unknown): number {
    const number = this.#numbers.get(part) ?? this.#numbers.size;
    this.#numbers.set(part, number);
    return number;
  }
}
