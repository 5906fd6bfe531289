/** Refusals: a model that is valid but holds something that is not understood is left alone, and the reason names it. */
import { CubeError } from '../../../lib/core/errors.ts';
import { describeNode, type OnnxNode } from './onnx-model.ts';

/** @param tensor the tensor in question: a table, or the ids. @param why continues a sentence about the node */
export function refuse(node: OnnxNode, tensor: string, why: string): never {
  throw new CubeError(
    'UNSUPPORTED',
    `cannot prune ${describeNode(node)}, tensor ${JSON.stringify(tensor)}: ${why}`,
  );
}

export function refuseModel(why: string): never {
  throw new CubeError('UNSUPPORTED', `cannot prune this model: ${why}`);
}
