/** The lookup of a layer file in C with prefetch (bench/baseline/lookup.c), as a yardstick. */
import { execFileSync, spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';

export class CLookup {
  readonly #folder: string;
  readonly #program: string;

  private constructor(folder: string, program: string) {
    this.#folder = folder;
    this.#program = program;
  }

  /** @param folder for the program and its input. @returns undefined without gcc */
  static compile(folder: string): CLookup | undefined {
    const source = join(import.meta.dirname, '..', '..', '..', 'bench', 'baseline', 'lookup.c');
    const program = join(folder, 'lookup');
    const gcc = spawnSync('gcc', ['-O3', '-march=native', '-o', program, source]);
    return gcc.status === 0 ? new CLookup(folder, program) : undefined;
  }

  /**
   * @param layerPath an inline layer with rows of 40 bytes
   * @param keys all of them in the layer
   * @returns nanoseconds per key for each size of a batch, the best of five passes
   */
  measure(layerPath: string, keys: Uint32Array, batches: readonly number[]): number[] {
    const file = join(this.#folder, 'keys.bin');
    writeFileSync(file, keys);
    const args = [layerPath, file, ...batches.map(String)];
    const output = execFileSync(this.#program, args, { encoding: 'utf8' });
    return output
      .trim()
      .split('\n')
      .map((line) => Number(line.split(' ')[1]));
  }
}
