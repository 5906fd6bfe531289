/**
 * Arrays that are used again for every range: what is dropped stays in the process until the engine collects it, which it
 * does late for memory outside its heap. An array taken is valid until one of the same name is taken.
 */
export class Scratch {
  readonly #arrays = new Map<string, Uint32Array>();

  /** @returns words with anything in them */
  words(name: string, length: number): Uint32Array {
    let array = this.#arrays.get(name);
    if (array === undefined || array.length < length) {
      // The old one goes first, and some room spares the next range the same.
      this.#arrays.delete(name);
      array = new Uint32Array(Math.ceil(length * 1.1));
      this.#arrays.set(name, array);
    }
    return array.subarray(0, length);
  }
}
