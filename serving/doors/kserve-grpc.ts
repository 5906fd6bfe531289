/**
 * The KServe v2 door over gRPC: OIP's GRPCInferenceService with Triton's calls (proto/oip.proto). Inference goes through the codec of
 * proto/oip.ts; the small messages are read and written by their definitions.
 */
import { join } from 'node:path';
import { loadSync, type MethodDefinition, type ServiceDefinition } from '@grpc/proto-loader';
import { CubeError } from '../../lib/core/errors.ts';
import type { ControlCaller } from '../../lib/rpc/control-caller.ts';
import type { GrpcCall } from '../../lib/rpc/grpc-calls.ts';
import {
  type OipInput,
  type OipRequest,
  readOipRequest,
  writeOipResponse,
  writeOipStreamResponse,
} from '../../proto/oip.ts';
import type { LoadedBundle } from '../models/bundle.ts';
import { answer, grpcCall, type Question } from './answer.ts';
import { type DoorContext, type Fronts, whyNotReady } from './fronts.ts';
import { type InferRequest, modelMetadata, questionOf } from './infer.ts';
import { SERVER_METADATA } from './kserve-rest.ts';
import { InputTensor } from './tensors.ts';
import { loadModel, modelConfig, modelStatistics, repositoryIndex, unloadModel } from './triton.ts';

const OIP_PROTO = 'oip.proto';
const SERVICE = 'inference.GRPCInferenceService';

/** The fields of a small message, by their names in the definition. */
type Fields = Readonly<Record<string, unknown>>;

export function addKserveGrpc({ grpc }: Fronts, context: DoorContext): void {
  const infer = (request: Uint8Array, call: GrpcCall): Promise<Uint8Array> =>
    answer(context, 'kserve', grpcCall(call), () => askedOf(readOipRequest(request), context));
  grpc.addUnary(SERVICE, 'ModelInfer', infer);
  grpc.addBidi(SERVICE, 'ModelStreamInfer', async (request, call) => {
    try {
      return writeOipStreamResponse(await infer(request, call));
    } catch (error) {
      return writeOipStreamResponse(CubeError.from(error).message);
    }
  });
  const path = join(import.meta.dirname, '..', '..', 'proto', OIP_PROTO);
  const definitions = loadSync(path, { keepCase: true, longs: Number, enums: String });
  const service = definitions[SERVICE] as ServiceDefinition;
  for (const [name, answerTo] of Object.entries(smallCalls(context))) {
    const method = service[name] as MethodDefinition<Fields, Fields>;
    grpc.addUnary(SERVICE, name, async (request, call) =>
      method.responseSerialize(await answerTo(fieldsOf(method, request), call)),
    );
  }
}

function smallCalls(
  context: DoorContext,
): Record<string, (request: Fields, call: GrpcCall) => Fields | Promise<Fields>> {
  const { models, admission } = context;
  const find = ({ name, version }: Fields): LoadedBundle =>
    models.find(String(name), whichOf(String(version ?? '')));
  return {
    ServerLive: () => ({ live: true }),
    ServerReady: () => ({ ready: whyNotReady(context) === undefined }),
    ServerMetadata: () => ({ ...SERVER_METADATA }),
    ModelReady: (request) => {
      try {
        find(request);
        return { ready: !admission.closed };
      } catch (error) {
        if (CubeError.from(error).code !== 'NOT_READY') throw error;
        return { ready: false };
      }
    },
    ModelMetadata: (request) => ({ ...modelMetadata(String(request['name']), find(request)) }),
    ModelConfig: (request) => ({ config: modelConfig(String(request['name']), find(request)) }),
    ModelStatistics: ({ name, version }) => ({
      model_stats: modelStatistics(models, String(name ?? ''), String(version ?? '')),
    }),
    RepositoryIndex: ({ ready }) => ({ models: repositoryIndex(models, ready === true) }),
    RepositoryModelLoad: async ({ model_name: model }, call) => {
      await loadModel(context, callerOf(call), String(model ?? ''));
      return {};
    },
    RepositoryModelUnload: async ({ model_name: model }, call) => {
      await unloadModel(context, callerOf(call), String(model ?? ''));
      return {};
    },
  };
}

function askedOf(request: OipRequest, { models }: DoorContext): Question<Uint8Array> {
  const { modelName, modelVersion, id, parameters, outputs, isRaw } = request;
  const bundle = models.find(modelName, whichOf(modelVersion));
  const asked: InferRequest = {
    ...{ id, parameters },
    inputs: request.inputs.map(tensorOf),
    outputs: outputs.map(({ name }) => ({ name, isBinary: isRaw })),
  };
  return questionOf(asked, { model: modelName, bundle }, (written) =>
    writeOipResponse({ ...written, isRaw }),
  );
}

function tensorOf(input: OipInput): InputTensor {
  const { name, contents, parameters } = input;
  if (parameters.has('shared_memory_region')) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `input ${name}: shared memory is not supported: send the data itself`,
    );
  }
  if (contents !== undefined) return InputTensor.ofBytes(input, contents);
  throw new CubeError(
    'INVALID_ARGUMENT',
    `input ${JSON.stringify(name.slice(0, 128))}: neither contents nor raw_input_contents`,
  );
}

function whichOf(version: string): { version?: string } {
  return version === '' ? {} : { version };
}

/** No page in a browser can speak gRPC to a plain port: there is no name to hold against rebinding. */
function callerOf(call: GrpcCall): ControlCaller {
  return {
    remoteAddress: call.peer.replace(/:\d+$/, ''),
    host: 'localhost',
    origin: undefined,
    authorization: call.metadata('authorization'),
  };
}

function fieldsOf(method: MethodDefinition<Fields, Fields>, request: Uint8Array): Fields {
  try {
    return method.requestDeserialize(Buffer.from(request));
  } catch (error) {
    throw new CubeError('INVALID_ARGUMENT', `request: ${(error as Error).message}`);
  }
}
