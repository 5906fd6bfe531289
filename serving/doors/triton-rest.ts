/** Triton's extensions of KServe v2 over HTTP: repository, configuration, statistics; and a word where there is nothing. */
import type { FastifyRequest } from 'fastify';
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { callerOf } from '../../lib/rpc/control-caller.ts';
import { textOf } from './answer.ts';
import type { DoorContext, Fronts } from './fronts.ts';
import { MODEL_PATHS, type ModelRoute, requireModel } from './kserve-rest.ts';
import { loadModel, modelConfig, modelStatistics, repositoryIndex, unloadModel } from './triton.ts';

/** Nothing is traced here, whatever is asked for. */
const TRACE_SETTING = {
  trace_level: ['OFF'],
  trace_rate: '0',
  trace_count: '0',
  log_frequency: '0',
  trace_file: '',
  trace_mode: '',
};
const SHARED_MEMORY_PATHS = ['/v2/systemsharedmemory/*', '/v2/cudasharedmemory/*'] as const;

export function addTritonRest({ http: { app } }: Fronts, context: DoorContext): void {
  const { models } = context;
  for (const path of MODEL_PATHS) {
    app.get<ModelRoute>(`${path}/config`, async (request) =>
      modelConfig(request.params.model, requireModel(models, request)),
    );
    app.get<ModelRoute>(`${path}/stats`, async ({ params: { model, version = '' } }) => ({
      model_stats: modelStatistics(models, model, version),
    }));
  }
  app.get('/v2/models/stats', async () => ({ model_stats: modelStatistics(models, '', '') }));
  app.post('/v2/repository/index', async ({ body }) => repositoryIndex(models, onlyReady(body)));
  const change =
    (act: typeof loadModel) =>
    async (request: FastifyRequest<ModelRoute>): Promise<object> => {
      await act(context, callerOf(request), request.params.model);
      return {};
    };
  app.post<ModelRoute>('/v2/repository/models/:model/load', change(loadModel));
  app.post<ModelRoute>('/v2/repository/models/:model/unload', change(unloadModel));
  for (const path of ['/v2/trace/setting', '/v2/models/:model/trace/setting']) {
    app.get(path, async () => TRACE_SETTING);
    app.post(path, async () => refuse('traces are not recorded here'));
  }
  for (const path of SHARED_MEMORY_PATHS) {
    app.all(path, async () => refuse('shared memory is not supported: send tensors themselves'));
  }
}

/** The body is optional, and so is everything in it. */
function onlyReady(body: unknown): boolean {
  if (!(body instanceof Uint8Array) || body.length === 0) return false;
  const json = JsonReader.parse(textOf(body), 'body');
  return json.optional('ready', (field) => field.boolean()) ?? false;
}

function refuse(what: string): never {
  throw new CubeError('UNSUPPORTED', what);
}
