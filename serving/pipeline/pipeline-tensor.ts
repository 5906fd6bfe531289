/** Tensors as ops see them. */
export {
  createTensor,
  findArrayType,
  fromByteTensor,
  isTensor,
  type PipelineTensor,
  type TensorArray,
  toByteTensor,
} from '../../lib/core/pipeline-tensor.ts';
