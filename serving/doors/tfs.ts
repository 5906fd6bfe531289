/**
 * TensorFlow Serving's REST door: a model's versions and labels (channels), its signature, and `:predict` in row (`instances`) and
 * column (`inputs`) form (docs/wire/serving.md).
 */
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import type { LoadedBundle } from '../models/bundle.ts';
import type { Models, Which } from '../models/models.ts';
import { answer, httpCall, type Question, textOf } from './answer.ts';
import type { DoorContext, Fronts } from './fronts.ts';
import { type InferAnswer, modelMetadata, questionOf, type TensorMetadata } from './infer.ts';
import { readTfsTensors } from './tfs-tensors.ts';

/** Of a call the last part ends in its verb: `name:predict`, `7:predict`. */
interface Target {
  readonly model: string;
  readonly version?: string;
  readonly label?: string;
}

interface TfsRoute {
  Params: Target;
}

const PATHS = [
  '/v1/models/:model',
  '/v1/models/:model/versions/:version',
  '/v1/models/:model/labels/:label',
] as const;
const SIGNATURE = 'serving_default';
const DTYPES: Readonly<Record<string, string>> = {
  BYTES: 'DT_STRING',
  FP32: 'DT_FLOAT',
  INT64: 'DT_INT64',
};

export function addTfsDoor({ http: { app } }: Fronts, context: DoorContext): void {
  const { models } = context;
  for (const path of PATHS) {
    app.get<TfsRoute>(path, async ({ params }) => versionStatus(models, params));
    app.get<TfsRoute>(`${path}/metadata`, async ({ params }) => signature(models, params));
    app.post<TfsRoute>(path, async (request, reply) => {
      const target = predictTarget(request.params);
      return answer(context, 'tfs', httpCall(request.headers, reply.raw), () =>
        askedOf(textOf(request.body), target, models),
      );
    });
  }
}

/** @throws CubeError UNSUPPORTED for other verbs, NOT_FOUND without one */
function predictTarget(params: Target): Target {
  const { model, version, label } = params;
  const last = version ?? label ?? model;
  const colon = last.lastIndexOf(':');
  const verb = last.slice(colon + 1);
  const name = last.slice(0, colon);
  if (colon < 0) {
    throw new CubeError('NOT_FOUND', `${JSON.stringify(last)}: a call ends in ":predict"`);
  }
  if (verb !== 'predict') {
    throw new CubeError(
      'UNSUPPORTED',
      `:${verb} is not answered here: call :predict, whose output is the click probability`,
    );
  }
  if (version !== undefined) return { model, version: name };
  return label === undefined ? { model: name } : { model, label: name };
}

function find(models: Models, { model, version, label }: Target): LoadedBundle {
  const which: Which = {
    ...(version === undefined ? {} : { version }),
    ...(label === undefined ? {} : { label }),
  };
  return models.find(model, which);
}

/** @throws CubeError NOT_FOUND */
function versionStatus(models: Models, target: Target): object {
  const { model, version, label } = target;
  const status = models.status().find((candidate) => candidate.model === model);
  // Throws for a model that is not known; one that is not loaded yet has a state to tell.
  if (status === undefined || version !== undefined || label !== undefined) {
    return { model_version_status: [stateOf(find(models, target).version, 'AVAILABLE')] };
  }
  const states = status.held.map((held) => stateOf(held, 'AVAILABLE'));
  if (status.loading !== undefined) states.push(stateOf(status.loading, 'LOADING'));
  return { model_version_status: states };
}

function stateOf(version: string, state: 'AVAILABLE' | 'LOADING'): object {
  return { version, state, status: { error_code: 'OK', error_message: '' } };
}

function signature(models: Models, target: Target): object {
  const bundle = find(models, target);
  const { inputs, outputs } = modelMetadata(target.model, bundle);
  const definition = {
    inputs: tensorInfos(inputs),
    outputs: tensorInfos(outputs),
    method_name: 'tensorflow/serving/predict',
  };
  return {
    model_spec: { name: target.model, signature_name: '', version: bundle.version },
    metadata: { signature_def: { signature_def: { [SIGNATURE]: definition } } },
  };
}

function tensorInfos(tensors: readonly TensorMetadata[]): object {
  return Object.fromEntries(
    tensors.map(({ name, datatype, shape }) => {
      const dim = shape.map((size) => ({ size: String(size), name: '' }));
      const info = { dtype: DTYPES[datatype], tensor_shape: { dim, unknown_rank: false }, name };
      return [name, info];
    }),
  );
}

/** @throws CubeError INVALID_ARGUMENT naming the place */
function askedOf(text: string, target: Target, models: Models): Question<object> {
  const bundle = find(models, target);
  const body = JsonReader.parse(text, 'body');
  body.optional('signature_name', (field) => field.oneOf(['', SIGNATURE]));
  const { inputs, isByRow } = readTfsTensors(body, target.model, bundle);
  const request = { id: '', parameters: new Map(), inputs, outputs: [] };
  return questionOf(request, { model: target.model, bundle }, (written) =>
    isByRow ? { predictions: byRow(written) } : { outputs: byColumn(written) },
  );
}

/** A list for each row; of several outputs an object for each, by their names. */
function byRow({ outputs }: InferAnswer): unknown[] {
  const columns = outputs.map(({ name, shape, data }) => ({ name, rows: rowsOf(shape, data) }));
  const [first, ...others] = columns;
  if (others.length === 0) return first!.rows;
  return first!.rows.map((_, row) =>
    Object.fromEntries(columns.map(({ name, rows }) => [name, rows[row]])),
  );
}

function byColumn({ outputs }: InferAnswer): unknown {
  const columns = outputs.map(({ name, shape, data }) => [name, rowsOf(shape, data)] as const);
  return columns.length === 1 ? columns[0]![1] : Object.fromEntries(columns);
}

function rowsOf([rowCount = 0, width = 0]: readonly number[], data: Float32Array): number[][] {
  return Array.from({ length: rowCount }, (_, row) =>
    Array.from(data.subarray(row * width, (row + 1) * width)),
  );
}
