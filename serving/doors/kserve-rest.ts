/** The KServe v2 door over HTTP: health, metadata and inference (docs/wire/serving.md). */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { CubeError } from '../../lib/core/errors.ts';
import type { LoadedBundle } from '../models/bundle.ts';
import type { Models } from '../models/models.ts';
import { answer, httpCall, type Question } from './answer.ts';
import type { DoorContext, Fronts } from './fronts.ts';
import { modelMetadata, questionOf } from './infer.ts';
import { type JsonAnswer, readJsonInfer, writeJsonInfer } from './infer-json.ts';

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
  version: '0.1.0',
  extensions: [
    'binary_tensor_data',
    'model_configuration',
    'model_repository',
    'parameters',
    'schedule_policy',
    'statistics',
  ],
};
const JSON_LENGTH_HEADER = 'inference-header-content-length';
const NO_BODY = new Uint8Array(0);

export const MODEL_PATHS = ['/v2/models/:model', '/v2/models/:model/versions/:version'] as const;

export function addKserveRest({ http: { app } }: Fronts, context: DoorContext): void {
  const { models, admission } = context;
  const infer = async (request: ModelRequest, reply: ModelReply): Promise<Buffer> => {
    const written = await answer(context, 'kserve', httpCall(request, reply), () =>
      askedOf(request, models),
    );
    return sent(reply, written);
  };
  const ready = async (request: ModelRequest, reply: ModelReply): Promise<object> => {
    const { model } = request.params;
    try {
      requireModel(models, request);
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
      modelMetadata(request.params.model, requireModel(models, request)),
    );
    app.get<ModelRoute>(`${path}/ready`, ready);
    app.post<ModelRoute>(`${path}/infer`, infer);
  }
  app.get('/v2', async () => SERVER_METADATA);
  app.get('/v2/models', async () => ({ models: models.status().map(({ model }) => model) }));
}

/** @throws CubeError NOT_FOUND for another model or version, NOT_READY while none is loaded */
export function requireModel(
  models: Models,
  { params: { model, version } }: { readonly params: ModelRoute['Params'] },
): LoadedBundle {
  return models.find(model, version === undefined ? {} : { version });
}

function askedOf(request: ModelRequest, models: Models): Question<JsonAnswer> {
  const { model } = request.params;
  const bundle = requireModel(models, request);
  const body = request.body instanceof Uint8Array ? request.body : NO_BODY;
  const header = request.headers[JSON_LENGTH_HEADER];
  const length = Array.isArray(header) ? header.join() : header;
  const asked = readJsonInfer(body, length, () => modelMetadata(model, bundle));
  return questionOf(asked, { model, bundle }, (written) => writeJsonInfer(written, asked.outputs));
}

function sent(reply: ModelReply, { body, headerLength }: JsonAnswer): Buffer {
  if (headerLength === undefined) reply.type('application/json');
  else reply.type('application/octet-stream').header(JSON_LENGTH_HEADER, headerLength);
  return body;
}
