/**
 * TensorFlow Serving's Predict and GetModelMetadata over gRPC (proto/tensorflow-serving.proto).
 * Inputs have the names and datatypes of KServe's.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { quoteInput } from '../../lib/core/shown-input.ts';
import type { NamedTensor } from '../../lib/core/tensor.ts';
import type { GrpcCall } from '../../lib/rpc/grpc-calls.ts';
import {
  decodeMetadataRequest,
  decodePredictRequest,
  encodeMetadataResponse,
  encodePredictResponse,
  type PredictRequest,
} from '../../proto/tensorflow-serving.ts';
import { isTensorModel, type LoadedVersion } from '../engine/loaded-version.ts';
import type { VersionFinder } from '../models/experiments.ts';
import { GrpcCallContext } from './call-context.ts';
import type { Endpoints } from './endpoints.ts';
import {
  type AnyParsedRequest,
  checkModelAccess,
  createGrpcAdmit,
  handlePrediction,
  type ProtocolContext,
} from './handle-prediction.ts';
import { getModelMetadata, toParsedGraphRequest, toParsedRequest } from './infer.ts';
import { InputTensor } from './input-tensor.ts';

const SERVICE = 'tensorflow.serving.PredictionService';
const SIGNATURE = 'serving_default';
const METADATA_FIELD = 'signature_def';
const NO_PARAMETERS = new Map<string, never>();

export function registerTfsGrpc({ grpc }: Endpoints, context: ProtocolContext): void {
  const predict = async (bytes: Uint8Array, call: GrpcCall): Promise<Uint8Array> => {
    const request = decodePredictRequest(bytes);
    return handlePrediction(context, 'tfs', new GrpcCallContext(call), {
      find: (models) => findVersion(request, models),
      parse: (choose) => parseRequest(request, choose()),
    });
  };
  grpc.addUnary(SERVICE, 'Predict', predict, createGrpcAdmit(context, 'tfs'));
  grpc.addUnary(SERVICE, 'GetModelMetadata', async (bytes, { grant }) => {
    const request = decodeMetadataRequest(bytes);
    const [unknown] = request.fields.filter((field) => field !== METADATA_FIELD);
    if (unknown !== undefined || request.fields.length === 0) {
      const got = unknown === undefined ? 'none' : quoteInput(unknown);
      const text = `metadata_field: expected ${METADATA_FIELD}, got ${got}`;
      throw new CubeError('INVALID_ARGUMENT', text);
    }
    const { models } = context;
    const loaded = checkModelAccess(models, grant, findVersion(request, models));
    const { inputs, outputs } = getModelMetadata(request.model, loaded);
    const { model } = request;
    const { version } = loaded;
    return encodeMetadataResponse({ model, version, signature: SIGNATURE, inputs, outputs });
  });
}

function findVersion(
  { model, version, label }: Pick<PredictRequest, 'model' | 'version' | 'label'>,
  models: VersionFinder,
): LoadedVersion {
  const selector = { ...(version !== '' && { version }), ...(label !== '' && { label }) };
  return models.find(model, selector);
}

function parseRequest(
  request: PredictRequest,
  loaded: LoadedVersion,
): AnyParsedRequest<Uint8Array> {
  const { model, signature } = request;
  if (signature !== '' && signature !== SIGNATURE) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `model_spec.signature_name: expected ${SIGNATURE} or none, got ${quoteInput(signature)}`,
    );
  }
  const isPlain = isTensorModel(loaded);
  const inputs = request.inputs.map((input) => {
    // For rows of features, a scalar is a list of one element.
    const shape = !isPlain && input.shape.length === 0 ? [1] : input.shape;
    return InputTensor.fromBytes({ ...input, shape }, input.contents);
  });
  const outputs = request.outputs.map((name) => ({ name, parameters: NO_PARAMETERS }));
  const inferRequest = { id: '', parameters: NO_PARAMETERS, inputs, outputs };
  const format = (tensors: readonly NamedTensor[]): Uint8Array =>
    encodePredictResponse({
      model,
      version: loaded.version,
      signature: SIGNATURE,
      outputs: tensors,
    });
  if (isPlain) {
    return toParsedGraphRequest(inferRequest, { model, graph: loaded }, (response) =>
      format(response.outputs),
    );
  }
  return toParsedRequest(inferRequest, { model, bundle: loaded }, (response) =>
    format(
      response.outputs.map(({ name, shape, data }) => {
        const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
        return { name, dataType: 'FP32', shape, data: bytes };
      }),
    ),
  );
}
