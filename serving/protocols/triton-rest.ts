/**
 * Triton's extensions of KServe v2 over HTTP: repository, configuration and statistics. Unsupported
 * extensions are rejected.
 */
import type { FastifyRequest } from 'fastify';
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { getControlCaller } from '../../lib/rpc/control-caller.ts';
import type { Endpoints } from './endpoints.ts';
import { type ProtocolContext, readBodyText } from './handle-prediction.ts';
import { findPermittedModel, MODEL_PATHS, type ModelRoute } from './kserve-rest.ts';
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
  getLogSettings,
  readUnloadParameters,
  TRACE_SETTINGS,
} from './triton-settings.ts';

const TRACE_PATHS = ['/v2/trace/setting', '/v2/models/:model/trace/setting'] as const;
const SHARED_MEMORY_PATHS = ['/v2/systemsharedmemory/*', '/v2/cudasharedmemory/*'] as const;

export function registerTritonRest({ http: { app } }: Endpoints, context: ProtocolContext): void {
  const { models } = context;
  for (const path of MODEL_PATHS) {
    app.get<ModelRoute>(`${path}/config`, async (request) =>
      getModelConfig(request.params.model, findPermittedModel(models, request)),
    );
    app.get<ModelRoute>(`${path}/stats`, async ({ params: { model, version = '' } }) => ({
      model_stats: getModelStatistics(models, model, version),
    }));
  }
  app.get('/v2/models/stats', async () => ({ model_stats: getModelStatistics(models, '', '') }));
  app.post('/v2/repository/index', async ({ body }) =>
    getRepositoryIndex(models, parseReadyFilter(body)),
  );
  const load = async (request: FastifyRequest<ModelRoute>): Promise<object> => {
    checkLoadParameters(parseLoadParameters(request.body).map(([name]) => name));
    await loadModel(context, getControlCaller(request), request.params.model);
    return {};
  };
  const unload = async (request: FastifyRequest<ModelRoute>): Promise<object> => {
    const withDependents = readUnloadParameters(parseLoadParameters(request.body));
    const { model } = request.params;
    await unloadModel(context, getControlCaller(request), { model, withDependents });
    return {};
  };
  app.post<ModelRoute>('/v2/repository/models/:model/load', load);
  app.post<ModelRoute>('/v2/repository/models/:model/unload', unload);
  registerSettings(app, context);
  for (const path of SHARED_MEMORY_PATHS) {
    app.all(path, async () =>
      rejectUnsupported('shared memory is not supported: send the tensors in the request'),
    );
  }
}

function registerSettings(
  app: Endpoints['http']['app'],
  { models, logger }: ProtocolContext,
): void {
  for (const path of TRACE_PATHS) {
    const check = ({ params: { model } }: FastifyRequest<{ Params: { model?: string } }>): void => {
      if (model !== undefined) models.find(model);
    };
    app.get<{ Params: { model?: string } }>(path, async (request) => {
      check(request);
      return TRACE_SETTINGS;
    });
    app.post<{ Params: { model?: string } }>(path, async (request) => {
      check(request);
      return checkTraceSettings(parseSettings(request.body));
    });
  }
  app.get('/v2/logging', async () => getLogSettings(logger));
  app.post('/v2/logging', async ({ body }) => checkLogSettings(parseSettings(body), logger));
}

/** The body and all its fields are optional. */
function parseReadyFilter(body: unknown): boolean {
  const json = parseOptionalBody(body);
  json?.rejectUnknownFields(['ready', 'repository_name']);
  return json?.optional('ready', (field) => field.boolean()) ?? false;
}

/** The parameters of a load or unload. */
function parseLoadParameters(body: unknown): readonly (readonly [string, unknown])[] {
  const json = parseOptionalBody(body);
  json?.rejectUnknownFields(['parameters']);
  const entries = json?.optional('parameters', (field) => field.entries()) ?? [];
  return entries.map(([name, field]) => [name, field.value]);
}

function parseSettings(body: unknown): readonly (readonly [string, unknown])[] {
  const entries = parseOptionalBody(body)?.entries() ?? [];
  return entries.map(([name, field]) => [name, field.value]);
}

/** @returns undefined for an empty body */
function parseOptionalBody(body: unknown): JsonReader | undefined {
  if (!(body instanceof Uint8Array) || body.length === 0) return undefined;
  return JsonReader.parse(readBodyText(body), 'body');
}

function rejectUnsupported(message: string): never {
  throw new CubeError('UNSUPPORTED', message);
}
