/** Opens a trained ONNX model with its lookups found, for the commands about features.json. */
import { CubeError } from '../../../lib/core/errors.ts';
import type { CutModel } from '../cut/cut-model.ts';
import { findModel } from '../model-format.ts';
import { cutOnnxModel } from '../onnx/cut-onnx.ts';

/** @throws CubeError UNSUPPORTED for a model without lookups, or of another format */
export function openModel(modelPath: string): CutModel {
  const { path, format } = findModel(modelPath, 'auto');
  if (format !== 'onnx') {
    throw new CubeError('UNSUPPORTED', `${path} is a Paddle program; write features.json by hand`);
  }
  const cut = cutOnnxModel(path);
  if (cut !== undefined) return cut;
  throw new CubeError('UNSUPPORTED', `${path} has no embedding lookups (it may be pruned already)`);
}
