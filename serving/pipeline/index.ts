/** The public entry `hypercube/pipeline`: operators, their clients, and the pipeline itself. */
export { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
export { xxh64 } from '../../lib/core/hash.ts';
export { PIPELINE_ERROR } from '../../proto/pipeline.ts';
export type { RunOptions } from './engine.ts';
export {
  LocalPredictor,
  type LocalPredictorOptions,
  type OnnxFileOptions,
  OnnxFilePredictor,
} from './local-predictor.ts';
export { formatArray, parseArray } from './numpy.ts';
export {
  type AnyOp,
  type AnyResponseOp,
  type HookResult,
  Op,
  type OpClient,
  type OpContext,
  type OpInputs,
  type OpOptions,
  OpResult,
  type OpSettings,
  type OpValues,
  type Part,
  type PipelineRequest,
  type ProcessContext,
  type ProcessResult,
  productError,
  RequestOp,
  ResponseOp,
  skipProcess,
  withLogId,
} from './op.ts';
export type { OpTiming, PipelineAnswer } from './pipeline-answer.ts';
export type { PipelineModule, PipelineOps } from './pipeline-module.ts';
export {
  createTensor,
  fromByteTensor,
  isTensor,
  type PipelineTensor,
  type TensorArray,
  toByteTensor,
} from './pipeline-tensor.ts';
export { RemoteClient, type RemoteClientOptions } from './remote-client.ts';
export { PipelineServer, type StopOptions } from './server.ts';
export type { PipelineSettings } from './settings.ts';
export { VariableNames, type VariableNamesOptions } from './variable-names.ts';
