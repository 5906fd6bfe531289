/**
 * TensorFlow Serving's Predict over gRPC (proto/tensorflow-serving.proto). Inputs have the names
 * and datatypes of KServe's.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { quoteInput } from '../../lib/core/shown-input.ts';
import type { GrpcCall } from '../../lib/rpc/grpc-calls.ts';
import {
  decodePredictRequest,
  encodePredictResponse,
  type PredictRequest,
} from '../../proto/tensorflow-serving.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import { type Models, requireBundle } from '../models/model-registry.ts';
import type { Endpoints } from './endpoints.ts';
import {
  createGrpcAdmit,
  createGrpcCallContext,
  handlePrediction,
  type ParsedRequest,
  type ProtocolContext,
} from './handle-prediction.ts';
import { toParsedRequest } from './infer.ts';
import { InputTensor } from './input-tensor.ts';

const SERVICE = 'tensorflow.serving.PredictionService';
const SIGNATURE = 'serving_default';
const NO_PARAMETERS = new Map<string, never>();

export function registerTfsGrpc({ grpc }: Endpoints, context: ProtocolContext): void {
  const predict = async (bytes: Uint8Array, call: GrpcCall): Promise<Uint8Array> => {
    const request = decodePredictRequest(bytes);
    return handlePrediction(context, 'tfs', createGrpcCallContext(call), {
      find: () => findBundle(request, context.models),
      parse: (bundle) => parseRequest(request, bundle),
    });
  };
  grpc.addUnary(SERVICE, 'Predict', predict, createGrpcAdmit(context, 'tfs'));
}

function findBundle({ model, version, label }: PredictRequest, models: Models): LoadedBundle {
  const selector = { ...(version !== '' && { version }), ...(label !== '' && { label }) };
  return requireBundle(models.find(model, selector));
}

function parseRequest(request: PredictRequest, bundle: LoadedBundle): ParsedRequest<Uint8Array> {
  const { model, signature } = request;
  if (signature !== '' && signature !== SIGNATURE) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `model_spec.signature_name: expected ${SIGNATURE} or none, got ${quoteInput(signature)}`,
    );
  }
  const inferRequest = {
    id: '',
    parameters: NO_PARAMETERS,
    inputs: request.inputs.map((input) => InputTensor.fromBytes(input, input.contents)),
    outputs: request.outputs.map((name) => ({ name, parameters: NO_PARAMETERS })),
  };
  return toParsedRequest(inferRequest, { model, bundle }, ({ outputs }) =>
    encodePredictResponse({ model, version: bundle.version, signature: SIGNATURE, outputs }),
  );
}
