/** The KServe v2 door over HTTP: health, metadata and inference (docs/wire/serving.md). */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { CubeError } from '../../lib/core/errors.ts';
import type { HttpAnswer, HttpCall } from '../../lib/rpc/http-direct.ts';
import { answerBy } from '../../lib/rpc/http-front.ts';
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
/** Of what clients send: Triton's none at all. */
const INFER_TYPES = ['', 'application/json', 'application/octet-stream'];
const NO_BODY = new Uint8Array(0);

export const MODEL_PATHS = ['/v2/models/:model', '/v2/models/:model/versions/:version'] as const;

export function addKserveRest({ http: { app, direct } }: Fronts, context: DoorContext): void {
  const { models, admission } = context;
  const infer = async (call: HttpCall): Promise<HttpAnswer> =>
    sent(
      await answer(context, 'kserve', httpCall(call.headers, call.raw), () =>
        askedOf(call, models),
      ),
    );
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
    app.post(`${path}/infer`, (request, reply) => answerBy(infer, request, reply));
    direct.add({ path: `${path}/infer`, types: INFER_TYPES, handler: infer });
  }
  app.get('/v2', async () => SERVER_METADATA);
  app.get('/v2/models', async () => ({ models: models.status().map(({ model }) => model) }));
}

/** @throws CubeError NOT_FOUND for another model or version, NOT_READY while none is loaded */
export function requireModel(
  models: Models,
  { params: { model = '', version } }: { readonly params: Partial<ModelRoute['Params']> },
): LoadedBundle {
  return models.find(model, version === undefined ? {} : { version });
}

function askedOf(call: HttpCall, models: Models): Question<JsonAnswer> {
  const { model = '' } = call.params;
  const bundle = requireModel(models, call);
  const body = call.body instanceof Uint8Array ? call.body : NO_BODY;
  const header = call.headers[JSON_LENGTH_HEADER];
  const length = Array.isArray(header) ? header.join() : header;
  const asked = readJsonInfer(body, length, () => modelMetadata(model, bundle));
  return questionOf(asked, { model, bundle }, (written) => writeJsonInfer(written, asked.outputs));
}

function sent({ body, headerLength }: JsonAnswer): HttpAnswer {
  if (headerLength === undefined) return { type: 'application/json', body };
  const headers = { [JSON_LENGTH_HEADER]: headerLength };
  return { type: 'application/octet-stream', headers, body };
}
