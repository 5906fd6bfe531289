/** Finds the model file and its format. */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { isFolder, listFolder, RandomAccessReader } from '../../lib/platform/files.ts';

export const MODEL_FORMATS = ['auto', 'onnx', 'paddle'] as const;
export type FormatOption = (typeof MODEL_FORMATS)[number];
export type ModelFormat = Exclude<FormatOption, 'auto'>;

/** First byte of a Paddle program, binary or JSON; an ONNX model begins with its version, 0x08. */
const PADDLE_FIRST_BYTES = [0x0a, 0x7b];

/** @throws CubeError INVALID_ARGUMENT when a folder contains no model or several */
export function findModel(
  modelPath: string,
  format: FormatOption,
): { readonly path: string; readonly format: ModelFormat } {
  const path = isFolder(modelPath) ? findModelIn(modelPath) : modelPath;
  return { path, format: format === 'auto' ? detectFormat(path) : format };
}

function findModelIn(folder: string): string {
  const all = listFolder(folder);
  // Paddle 3 saves a program as JSON next to its parameters.
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
      `${folder} holds ${found}; name the model file with --model`,
    );
  }
  return join(folder, name);
}

function detectFormat(path: string): ModelFormat {
  if (/\.onnx$/.test(path)) return 'onnx';
  if (/\.pdmodel$|(^|[\\/])__model__$/.test(path)) return 'paddle';
  const reader = new RandomAccessReader(path);
  try {
    const first = new Uint8Array(Math.min(1, reader.bytes));
    reader.readInto(first, 0);
    return first.some((byte) => PADDLE_FIRST_BYTES.includes(byte)) ? 'paddle' : 'onnx';
  } finally {
    reader.close();
  }
}

export function rejectParamsOption(path: string): never {
  throw new CubeError(
    'INVALID_ARGUMENT',
    `--params is for Paddle programs; ${path} is an ONNX model, which names its data files itself`,
  );
}

export function rejectPaddleOption(path: string, option: string): never {
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${option} is for Paddle programs; ${path} is an ONNX model`,
  );
}
