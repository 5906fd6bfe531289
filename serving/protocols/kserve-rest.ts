/** KServe v2 over HTTP: health, metadata and inference (docs/wire/serving.md). */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { CubeError } from '../../lib/core/errors.ts';
import { PRODUCT_VERSION } from '../../lib/platform/version.ts';
import type { HttpAdmit, HttpRequest, HttpResponse } from '../../lib/rpc/direct-routes.ts';
import { handleFastifyRequest } from '../../lib/rpc/http-server.ts';
import { type LoadedVersion, requireSteps } from '../engine/loaded-version.ts';
import type { VersionFinder } from '../models/experiments.ts';
import type { Models } from '../models/model-registry.ts';
import { HttpCallContext, HttpHeadContext } from './call-context.ts';
import type { Endpoints } from './endpoints.ts';
import {
  admitHead,
  checkModelAccess,
  handlePrediction,
  type ProtocolContext,
} from './handle-prediction.ts';
import { getModelMetadata } from './infer.ts';
import type { InferBody } from './infer-json.ts';
import { InferParser } from './infer-parser.ts';

export interface ModelRoute {
  Params: { readonly model: string; readonly version?: string };
}

type ModelRequest = FastifyRequest<ModelRoute>;
type ModelReply = FastifyReply<ModelRoute>;

export interface ServerMetadata {
  readonly name: string;
  readonly version: string;
  readonly extensions: readonly string[];
}

export const SERVER_METADATA: ServerMetadata = {
  name: 'hypercube',
  version: PRODUCT_VERSION,
  extensions: [
    'binary_tensor_data',
    'classification',
    'logging',
    'model_configuration',
    'model_repository',
    'parameters',
    'schedule_policy',
    'statistics',
    'trace',
  ],
};
const JSON_LENGTH_HEADER = 'inference-header-content-length';
/** Content types that clients send for inference; Triton's clients send none. */
const INFER_CONTENT_TYPES = ['', 'application/json', 'application/octet-stream'];
const NO_BODY = new Uint8Array(0);

export const MODEL_PATHS = ['/v2/models/:model', '/v2/models/:model/versions/:version'] as const;

export function registerKserveRest(
  { http: { app, directRoutes } }: Endpoints,
  context: ProtocolContext,
): void {
  const { models, admission } = context;
  const parser = new InferParser();
  const infer = async (call: HttpRequest): Promise<HttpResponse> =>
    toHttpAnswer(
      await handlePrediction(context, 'kserve', new HttpCallContext(call), {
        find: (finder) => findModel(finder, call),
        parse: (choose) => parseRequest(parser, call, choose),
      }),
    );
  const admit: HttpAdmit = (head) =>
    admitHead(context, 'kserve', new HttpHeadContext(head), () => findModel(models, head));
  const ready = async (request: ModelRequest, reply: ModelReply): Promise<object> => {
    const { model } = request.params;
    try {
      requireSteps(findModel(models, request));
    } catch (error) {
      if (CubeError.from(error).code !== 'NOT_READY') throw error;
      reply.code(503);
      return { name: model, ready: false, error: CubeError.from(error).message };
    }
    if (admission.closed) reply.code(503);
    return { name: model, ready: !admission.closed };
  };
  for (const path of MODEL_PATHS) {
    app.get<ModelRoute>(path, async (request) =>
      getModelMetadata(request.params.model, findPermittedModel(models, request)),
    );
    app.get<ModelRoute>(`${path}/ready`, ready);
    app.post(`${path}/infer`, { config: { admit } }, (request, reply) =>
      handleFastifyRequest(infer, request, reply),
    );
    directRoutes.add({
      path: `${path}/infer`,
      contentTypes: INFER_CONTENT_TYPES,
      admit,
      handler: infer,
    });
  }
  app.get('/v2', async () => SERVER_METADATA);
  app.get('/v2/models', async () => ({ models: models.status().map(({ model }) => model) }));
}

/** @throws CubeError NOT_FOUND for another model or version, NOT_READY while none is loaded */
function findModel(
  models: VersionFinder,
  { params: { model = '', version } }: { readonly params: Partial<ModelRoute['Params']> },
): LoadedVersion {
  return models.find(model, version === undefined ? {} : { version });
}

/** The same for a caller who may read about the model. @throws CubeError also DENIED */
export function findPermittedModel(models: Models, request: ModelRequest): LoadedVersion {
  return checkModelAccess(models, request.grant, findModel(models, request));
}

function parseRequest(
  parser: InferParser,
  call: HttpRequest,
  choose: (key?: string) => LoadedVersion,
): ReturnType<InferParser['parse']> {
  const body = call.body instanceof Uint8Array ? call.body : NO_BODY;
  const header = call.headers[JSON_LENGTH_HEADER];
  const length = Array.isArray(header) ? header.join() : header;
  const { model = '' } = call.params;
  return parser.parse(body, length, { model, choose });
}

function toHttpAnswer({ body, headerLength }: InferBody): HttpResponse {
  if (headerLength === undefined) return { type: 'application/json', body };
  const headers = { [JSON_LENGTH_HEADER]: headerLength };
  return { type: 'application/octet-stream', headers, body };
}
