/**
 * Unique names for tables and maps: two bodies may use one name for different tensors, and one
 * quantised table may be read with several scales.
 */

export class UniqueNames {
  readonly #numbers = new Map<unknown, number>();
  readonly #names = new Map<string, string>();
  readonly #taken = new Set<string>();

  /**
   * @param parts identify the tensor, compared by identity
   * @returns the same name for the same parts
   */
  getName(base: string, ...parts: readonly unknown[]): string {
    const key = parts.map((part) => this.#getNumber(part)).join();
    const existing = this.#names.get(key);
    if (existing !== undefined) return existing;
    const name = claimFreshName(base, this.#taken);
    this.#names.set(key, name);
    return name;
  }

  #getNumber(part: unknown): number {
    const number = this.#numbers.get(part) ?? this.#numbers.size;
    this.#numbers.set(part, number);
    return number;
  }
}

/** Adds `base` to the taken names, with a number when it is one of them. */
export function claimFreshName(base: string, taken: Set<string>): string {
  let name = base;
  for (let i = 2; taken.has(name); i++) name = `${base}_${i}`;
  taken.add(name);
  return name;
}
