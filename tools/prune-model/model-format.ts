/** Which file is the model, and which format it has. */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { isFolder, listFolder, RandomReader } from '../../lib/platform/files.ts';

export const MODEL_FORMATS = ['auto', 'onnx', 'paddle'] as const;
export type FormatOption = (typeof MODEL_FORMATS)[number];
export type ModelFormat = Exclude<FormatOption, 'auto'>;

/** The first field of a Paddle program, or the brace of one in JSON; an ONNX model begins with its version, 0x08. */
const PADDLE_FIRST_BYTES = [0x0a, 0x7b];

/** @throws CubeError INVALID_ARGUMENT when a folder holds no model, or several */
export function findModel(
  given: string,
  format: FormatOption,
): { readonly path: string; readonly format: ModelFormat } {
  const path = isFolder(given) ? modelIn(given) : given;
  return { path, format: format === 'auto' ? detect(path) : format };
}

function modelIn(folder: string): string {
  const all = listFolder(folder);
  // Paddle 3 saves a program as JSON beside its parameters.
  const isNewProgram = (name: string): boolean =>
    name.endsWith('.json') && all.includes(name.replace(/json$/, 'pdiparams'));
  const names = all.filter(
    (name) => /\.(onnx|pdmodel)$|^__model__$/.test(name) || isNewProgram(name),
  );
  const [name] = names;
  if (name === undefined || names.length > 1) {
    const found =
      names.length === 0 ? 'no model' : `several models (${names.slice(0, 4).join(', ')})`;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${folder} holds ${found}; give the model's own file as --model`,
    );
  }
  return join(folder, name);
}

function detect(path: string): ModelFormat {
  if (/\.onnx$/.test(path)) return 'onnx';
  if (/\.pdmodel$|(^|[\\/])__model__$/.test(path)) return 'paddle';
  const reader = new RandomReader(path);
  try {
    const first = new Uint8Array(Math.min(1, reader.bytes));
    reader.readInto(first, 0);
    return PADDLE_FIRST_BYTES.includes(first[0]!) ? 'paddle' : 'onnx';
  } finally {
    reader.close();
  }
}

export function refuseParams(path: string): never {
  throw new CubeError(
    'INVALID_ARGUMENT',
    `--params: ${path} is an ONNX model, which names the files of its data itself`,
  );
}

export function refusePaddleOnly(path: string, option: string): never {
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${option} is for Paddle programs; ${path} is an ONNX model`,
  );
}
