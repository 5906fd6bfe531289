/** Runs the warm-up requests of Triton's configuration on every instance of a model. */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { TENSOR_TYPE_BYTES, type TensorType } from '../../lib/core/graph-signature.ts';
import { countElements, type NamedTensor } from '../../lib/core/tensor.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { fileExists, readFile } from '../../lib/platform/files.ts';
import type { TritonModelConfig } from '../config/triton-model-config.ts';
import type { TritonWarmUp, WarmUpInput } from '../config/triton-warm-up.ts';
import type { TensorModel } from '../engine/tensor-model.ts';
import { createElements } from './warm-up-elements.ts';
import { predictOnInstances } from './warm-up-graph.ts';

/** Files of `input_data_file` are in this folder of the model. */
const DATA_FOLDER = 'warmup';
const DATA_BYTES_MAX = 1 << 30;
const TIMEOUT_MS = 60_000;

/**
 * Retires the model when a request fails. @throws CubeError naming the entry
 */
export async function warmUpDeclared(
  model: TensorModel,
  { warmUps, source }: TritonModelConfig,
  folder: string,
  onStep: (step: string) => void,
): Promise<void> {
  for (const entry of warmUps) {
    onStep(`warm-up ${entry.name}`);
    try {
      await runEntry(model, entry, folder);
    } catch (error) {
      await model.retire();
      const { code, message } = CubeError.from(error);
      const text = `${source}: model_warmup ${entry.name} failed: ${message}`;
      throw new CubeError(code, text, { cause: error });
    }
  }
}

async function runEntry(model: TensorModel, entry: TritonWarmUp, folder: string): Promise<void> {
  const rows = Math.max(1, entry.rows);
  const inputs = [...entry.inputs].map(([name, input]): NamedTensor => {
    const shape = model.isBatched ? [rows, ...input.dims] : input.dims;
    const dataType = input.datatype as TensorType;
    return { name, dataType, shape, data: createData(input, dataType, shape, folder) };
  });
  for (let i = 0; i < entry.count; i++) {
    await predictOnInstances(model, inputs, systemClock.nowMs() + TIMEOUT_MS);
  }
}

function createData(
  { data }: WarmUpInput,
  dataType: TensorType,
  shape: readonly number[],
  folder: string,
): NamedTensor['data'] {
  const count = countElements(shape);
  if (data.kind === 'file') {
    return readData(join(folder, DATA_FOLDER, data.name), dataType, count);
  }
  return createElements(dataType, count, data.kind);
}

/** The bytes of a tensor; each string has its length in four bytes before it. */
function readData(path: string, dataType: TensorType, count: number): NamedTensor['data'] {
  if (!fileExists(path)) throw new CubeError('NOT_FOUND', `${path} does not exist`);
  const bytes = readFile(path, DATA_BYTES_MAX);
  if (dataType === 'BYTES') return readStrings(bytes, count, path);
  const expected = count * TENSOR_TYPE_BYTES[dataType];
  if (bytes.length === expected) return bytes.slice();
  const need = `${count} elements of ${dataType} need ${expected}`;
  const text = `${path} has ${bytes.length} bytes; ${need}`;
  throw new CubeError('INVALID_ARGUMENT', text);
}

function readStrings(bytes: Uint8Array, count: number, path: string): string[] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const strings: string[] = [];
  let at = 0;
  while (at + 4 <= bytes.length && strings.length < count) {
    const end = at + 4 + view.getUint32(at, true);
    if (end > bytes.length) break;
    strings.push(new TextDecoder().decode(bytes.subarray(at + 4, end)));
    at = end;
  }
  if (strings.length === count && at === bytes.length) return strings;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${path} does not have ${count} strings, each after its length in four bytes`,
  );
}
