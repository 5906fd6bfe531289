/**
 * Creates another version of a pruned model, as retraining would: the same graph with different
 * tables.
 */
import { basename, join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { decodeNpy, encodeNpyHeader } from '../../lib/core/npy.ts';
import { listFolder, readFile, replaceFile } from '../../lib/platform/files.ts';

/** Relative change of each weight: enough to change the score of every row. */
const STRENGTH = 0.3;

/**
 * Writes a copy of `source` (a prune-model output) whose table rows are perturbed, reproducibly by
 * `seed`.
 * @returns target
 */
export function perturbTables(source: string, target: string, seed: number): string {
  for (const file of ['model.onnx', 'slots.json']) {
    replaceFile(join(target, file), readFile(join(source, file)));
  }
  for (const file of listFolder(join(source, 'tables'))) {
    const path = join(source, 'tables', file);
    const { dtype, shape, data } = decodeNpy(readFile(path), basename(path));
    if (dtype !== 'f4')
      throw new CubeError('UNSUPPORTED', `${path}: ${dtype}, the demo supports only f4`);
    const perturbed = data.map((weight, i) => weight * (1 + STRENGTH * Math.sin(i * seed + seed)));
    const header = encodeNpyHeader(dtype, shape);
    const bytes = new Uint8Array(header.length + perturbed.byteLength);
    bytes.set(header);
    bytes.set(new Uint8Array(perturbed.buffer), header.length);
    replaceFile(join(target, 'tables', file), bytes);
  }
  return target;
}
