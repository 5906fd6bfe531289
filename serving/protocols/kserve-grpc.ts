/**
 * KServe v2 over gRPC: OIP's GRPCInferenceService with Triton's extensions (proto/oip.proto).
 * Inference messages use the codec in proto/oip.ts; other messages are encoded by their
 * definitions.
 */

import { join } from 'node:path';
import type { MethodDefinition } from '@grpc/proto-loader';
import { CubeError } from '../../lib/core/errors.ts';
import { quoteInput, shortenInput } from '../../lib/core/shown-input.ts';
import type { ControlCaller } from '../../lib/rpc/control-caller.ts';
import type { GrpcCall } from '../../lib/rpc/grpc-calls.ts';
import { defineGrpcService } from '../../lib/rpc/grpc-libraries.ts';
import {
  decodeOipRequest,
  encodeOipResponse,
  encodeOipStreamResponse,
  type OipInput,
  type OipParameter,
  type OipRequest,
  readOipRequestId,
} from '../../proto/oip.ts';
import type { LoadedVersion } from '../engine/loaded-version.ts';
import { isTensorModel, requireSteps } from '../engine/loaded-version.ts';
import { GrpcCallContext } from './call-context.ts';
import { type Endpoints, findNotReadyReason } from './endpoints.ts';
import {
  type AnyParsedRequest,
  checkModelAccess,
  createGrpcAdmit,
  handlePrediction,
  type ProtocolContext,
} from './handle-prediction.ts';
import {
  getModelMetadata,
  type InferRequest,
  type InferResponse,
  readBooleanParameter,
  readExperimentKey,
  toParsedGraphRequest,
  toParsedRequest,
} from './infer.ts';
import { InputTensor } from './input-tensor.ts';
import { SERVER_METADATA } from './kserve-rest.ts';
import {
  getModelConfig,
  getModelStatistics,
  getRepositoryIndex,
  loadModel,
  unloadModel,
} from './triton.ts';
import {
  checkLoadParameters,
  checkLogSettings,
  checkTraceSettings,
  readUnloadParameters,
  type Settings,
  type SettingValue,
} from './triton-settings.ts';

const OIP_PROTO = 'oip.proto';
const SERVICE = 'inference.GRPCInferenceService';

/** Parameters of each response of a stream: every request has exactly one response. */
const STREAM_PARAMETERS = { triton_final_response: true } as const;

/** The fields of a message, by their names in the definition. */
type Fields = Readonly<Record<string, unknown>>;

export function registerKserveGrpc({ grpc }: Endpoints, context: ProtocolContext): void {
  const infer = async (
    bytes: Uint8Array,
    call: GrpcCall,
    parameters?: Record<string, OipParameter>,
  ): Promise<Uint8Array> => {
    const request = decodeOipRequest(bytes);
    const { modelName, modelVersion } = request;
    return handlePrediction(context, 'kserve', new GrpcCallContext(call), {
      find: (models) => models.find(modelName, toVersionSelector(modelVersion)),
      parse: (choose) =>
        parseRequest(request, choose(readExperimentKey(request.parameters)), parameters),
    });
  };
  const admit = createGrpcAdmit(context, 'kserve');
  grpc.addUnary(SERVICE, 'ModelInfer', (request, call) => infer(request, call), admit);
  grpc.addBidi(SERVICE, 'ModelStreamInfer', async (request, call) => {
    try {
      return encodeOipStreamResponse(await infer(request, call, STREAM_PARAMETERS));
    } catch (error) {
      return encodeStreamError(request, CubeError.from(error).message);
    }
  });
  const path = join(import.meta.dirname, '..', '..', 'proto', OIP_PROTO);
  const options = { keepCase: true, longs: Number, enums: String };
  const getService = defineGrpcService(path, SERVICE, options);
  for (const [name, handle] of Object.entries(createMetadataCalls(context))) {
    grpc.addUnary(SERVICE, name, async (request, call) => {
      const method = getService()[name] as MethodDefinition<Fields, Fields>;
      return method.responseSerialize(await handle(decodeFields(method, request), call));
    });
  }
}

function createMetadataCalls(
  context: ProtocolContext,
): Record<string, (request: Fields, call: GrpcCall) => Fields | Promise<Fields>> {
  const { models, admission } = context;
  const find = ({ name, version }: Fields): LoadedVersion =>
    models.find(String(name), toVersionSelector(String(version ?? '')));
  const findPermitted = (request: Fields, { grant }: GrpcCall): LoadedVersion =>
    checkModelAccess(models, grant, find(request));
  return {
    ...createSettingCalls(context),
    ServerLive: () => ({ live: true }),
    ServerReady: () => ({ ready: findNotReadyReason(context) === undefined }),
    ServerMetadata: () => ({ ...SERVER_METADATA }),
    ModelReady: (request) => {
      try {
        requireSteps(find(request));
        return { ready: !admission.closed };
      } catch (error) {
        if (CubeError.from(error).code !== 'NOT_READY') throw error;
        return { ready: false };
      }
    },
    ModelMetadata: (request, call) => ({
      ...getModelMetadata(String(request['name']), findPermitted(request, call)),
    }),
    ModelConfig: (request, call) => ({
      config: getModelConfig(String(request['name']), findPermitted(request, call)),
    }),
    ModelStatistics: ({ name, version }) => ({
      model_stats: getModelStatistics(models, String(name ?? ''), String(version ?? '')),
    }),
    RepositoryIndex: ({ ready }) => ({ models: getRepositoryIndex(models, ready === true) }),
    RepositoryModelLoad: async ({ model_name: model, parameters }, call) => {
      checkLoadParameters(Object.keys(parameters ?? {}));
      await loadModel(context, toControlCaller(call), String(model ?? ''));
      return {};
    },
    RepositoryModelUnload: async ({ model_name: model, parameters }, call) => {
      const given = Object.entries((parameters ?? {}) as LogFields);
      const withDependents = readUnloadParameters(
        given.map(([name, value]) => [name, value['bool_param']] as const),
      );
      const request = { model: String(model ?? ''), withDependents };
      await unloadModel(context, toControlCaller(call), request);
      return {};
    },
  };
}

type TraceFields = Readonly<Record<string, { readonly value?: readonly string[] }>>;
type LogFields = Readonly<Record<string, Readonly<Record<string, unknown>>>>;

/** Trace and log settings: maps of lists of strings, and of one value each. */
function createSettingCalls({
  models,
  logger,
}: ProtocolContext): Record<string, (request: Fields) => Fields> {
  return {
    TraceSetting: ({ settings = {}, model_name: model = '' }) => {
      if (model !== '') models.find(String(model));
      const requested = Object.entries(settings as TraceFields);
      const values = requested.map(([name, { value = [] }]) => [name, value] as const);
      return {
        settings: mapValues(checkTraceSettings(values), (value) => ({ value: [value].flat() })),
      };
    },
    LogSettings: ({ settings = {} }) => {
      const requested = Object.entries(settings as LogFields);
      const values = requested.map(
        ([name, value]) => [name, Object.values(value)[0] ?? null] as const,
      );
      return { settings: mapValues(checkLogSettings(values, logger), toLogValue) };
    },
  };
}

function toLogValue(value: SettingValue): Fields {
  if (typeof value === 'boolean') return { bool_param: value };
  return typeof value === 'number' ? { uint32_param: value } : { string_param: String(value) };
}

function mapValues(settings: Settings, convert: (value: SettingValue) => Fields): Fields {
  return Object.fromEntries(
    Object.entries(settings).map(([name, value]) => [name, convert(value)]),
  );
}

/** A failed request of a stream: the reason, and the id, so that the client knows which failed. */
function encodeStreamError(request: Uint8Array, message: string): Uint8Array {
  const response = encodeOipResponse({
    modelName: '',
    modelVersion: '',
    id: readOipRequestId(request),
    parameters: STREAM_PARAMETERS,
    outputs: [],
    isRaw: true,
  });
  return encodeOipStreamResponse(response, message);
}

/**
 * Outputs are raw contents, as Triton's are, which its clients read without a check. @param more
 * additional parameters of the response
 */
function parseRequest(
  request: OipRequest,
  loaded: LoadedVersion,
  more?: Record<string, OipParameter>,
): AnyParsedRequest<Uint8Array> {
  const { modelName, id, parameters, outputs } = request;
  const isRaw = readBooleanParameter(parameters, 'binary_data_output') ?? true;
  const inferRequest: InferRequest = {
    id,
    parameters,
    inputs: request.inputs.map(toInputTensor),
    outputs,
  };
  const format = (response: InferResponse): Uint8Array =>
    encodeOipResponse({
      isRaw,
      ...response,
      parameters: more === undefined ? response.parameters : { ...response.parameters, ...more },
    });
  return isTensorModel(loaded)
    ? toParsedGraphRequest(inferRequest, { model: modelName, graph: loaded }, format)
    : toParsedRequest(inferRequest, { model: modelName, bundle: loaded }, format);
}

function toInputTensor(input: OipInput): InputTensor {
  const { name, contents, parameters } = input;
  if (parameters.has('shared_memory_region')) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `input ${shortenInput(name)}: shared memory is not supported: send the data itself`,
    );
  }
  if (contents !== undefined) return InputTensor.fromBytes(input, contents);
  throw new CubeError(
    'INVALID_ARGUMENT',
    `input ${quoteInput(name)}: it has neither contents nor raw_input_contents`,
  );
}

function toVersionSelector(version: string): { version?: string } {
  return version === '' ? {} : { version };
}

/**
 * Browsers cannot send gRPC to a plain port, so there is no host name to check against DNS
 * rebinding.
 */
function toControlCaller(call: GrpcCall): ControlCaller {
  return {
    remoteAddress: call.peer.replace(/:\d+$/, ''),
    host: 'localhost',
    origin: undefined,
    authorization: call.getMetadata('authorization'),
    apiKey: call.getMetadata('x-api-key'),
    forwardedFor: call.forwardedFor,
    certificate: call.certificate,
  };
}

function decodeFields(method: MethodDefinition<Fields, Fields>, request: Uint8Array): Fields {
  try {
    return method.requestDeserialize(Buffer.from(request));
  } catch (error) {
    throw new CubeError('INVALID_ARGUMENT', `request: ${(error as Error).message}`);
  }
}
