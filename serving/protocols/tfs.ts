/**
 * TensorFlow Serving's REST protocol: the versions and labels (channels) of a model, its signature,
 * and `:predict` in row (`instances`) and column (`inputs`) form (docs/wire/serving.md).
 */
import type { CallGrant } from '../../lib/access/access-gate.ts';
import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import type { SlicedWork } from '../../lib/core/json-slices.ts';
import { parseNonFiniteJson } from '../../lib/core/non-finite-json.ts';
import { quoteInput } from '../../lib/core/shown-input.ts';
import type { HttpAdmit } from '../../lib/rpc/direct-routes.ts';
import type { OipScores } from '../../proto/oip.ts';
import type { LoadedVersion } from '../engine/loaded-version.ts';
import { findMissingStep, isTensorModel } from '../engine/loaded-version.ts';
import type { VersionFinder } from '../models/experiments.ts';
import { type Models, requireBundle, type VersionSelector } from '../models/model-registry.ts';
import { HttpCallContext, HttpHeadContext } from './call-context.ts';
import type { Endpoints } from './endpoints.ts';
import {
  type AnyParsedRequest,
  admitHead,
  checkModelAccess,
  handlePrediction,
  type ProtocolContext,
  readBodyText,
  runUnlessLarge,
} from './handle-prediction.ts';
import {
  getModelMetadata,
  type InferResponse,
  type TensorMetadata,
  toParsedRequest,
} from './infer.ts';
import { parseTfsGraphRequest } from './tfs-graph.ts';
import { registerTfsGrpc } from './tfs-grpc.ts';
import { parseTfsExamples, parseTfsTensors } from './tfs-tensors.ts';

/** The model of a request. In a call the last part ends in a verb: `name:predict`, `7:predict`. */
interface TargetModel {
  readonly model: string;
  readonly version?: string;
  readonly label?: string;
}

type Verb = (typeof VERBS)[number];

interface TfsRoute {
  Params: TargetModel;
}

/** What an InferRequest has and a request of TensorFlow Serving has not. */
const NO_OPTIONS = { id: '', parameters: new Map(), outputs: [] } as const;
const MODEL_PATHS = [
  '/v1/models/:model',
  '/v1/models/:model/versions/:version',
  '/v1/models/:model/labels/:label',
] as const;
const SIGNATURE = 'serving_default';
const VERBS = ['predict', 'classify', 'regress'] as const;
/** Signature names, as TensorFlow's estimators export them too. */
const SIGNATURES: Readonly<Record<Verb, readonly string[]>> = {
  predict: ['', SIGNATURE, 'predict'],
  classify: ['', SIGNATURE, 'classification', 'tensorflow/serving/classify'],
  regress: ['', SIGNATURE, 'regression', 'tensorflow/serving/regress'],
};
const DTYPES: Readonly<Record<string, string>> = {
  BF16: 'DT_BFLOAT16',
  BOOL: 'DT_BOOL',
  BYTES: 'DT_STRING',
  FP16: 'DT_HALF',
  FP32: 'DT_FLOAT',
  FP64: 'DT_DOUBLE',
};

export function registerTfs(endpoints: Endpoints, context: ProtocolContext): void {
  registerTfsGrpc(endpoints, context);
  const { app } = endpoints.http;
  const { models } = context;
  const admit: HttpAdmit = (head) =>
    admitHead(context, 'tfs', new HttpHeadContext(head), () =>
      findLoaded(models, parseCall(head.params as unknown as TargetModel).target),
    );
  for (const path of MODEL_PATHS) {
    app.get<TfsRoute>(path, async ({ params, grant }) => getVersionStatus(models, params, grant));
    app.get<TfsRoute>(`${path}/metadata`, async ({ params, grant }) =>
      getSignature(models, params, grant),
    );
    app.post<TfsRoute>(path, { config: { admit } }, async (request, reply) => {
      const { target, verb } = parseCall(request.params);
      const { headers, grant } = request;
      const call = new HttpCallContext({ headers, raw: reply.raw, grant });
      const answer = await handlePrediction(context, 'tfs', call, {
        find: (finder) => findLoaded(finder, target),
        parse: (choose) => {
          const text = readBodyText(request.body);
          return runUnlessLarge(
            parseRequest(text, { model: target.model, verb }, choose()),
            text.length,
          );
        },
      });
      if (typeof answer !== 'string') return answer;
      return reply.type('application/json').send(answer);
    });
  }
}

/** @throws CubeError UNSUPPORTED for other verbs, NOT_FOUND without one */
function parseCall(params: TargetModel): { readonly target: TargetModel; readonly verb: Verb } {
  const { model, version, label } = params;
  const last = version ?? label ?? model;
  const colon = last.lastIndexOf(':');
  const text = last.slice(colon + 1);
  const name = last.slice(0, colon);
  if (colon < 0) {
    throw new CubeError(
      'NOT_FOUND',
      `${quoteInput(last)}: the path of a call must end in ":predict", ":classify" or ` +
        '":regress"',
    );
  }
  const verb = VERBS.find((known) => known === text);
  if (verb === undefined) {
    throw new CubeError(
      'UNSUPPORTED',
      `:${text} is not supported: call :predict, :classify or :regress`,
    );
  }
  if (version !== undefined) return { verb, target: { model, version: name } };
  return { verb, target: label === undefined ? { model: name } : { model, label: name } };
}

function findLoaded(models: VersionFinder, { model, version, label }: TargetModel): LoadedVersion {
  const selector: VersionSelector = {
    ...(version === undefined ? {} : { version }),
    ...(label === undefined ? {} : { label }),
  };
  return models.find(model, selector);
}

/** @throws CubeError NOT_FOUND, DENIED */
function getVersionStatus(
  models: Models,
  target: TargetModel,
  grant: CallGrant | undefined,
): object {
  const { model, version, label } = target;
  const status = models.status().find((candidate) => candidate.model === model);
  // findLoaded throws for an unknown model; a model that is still loading has a state to report.
  if (status === undefined || version !== undefined || label !== undefined) {
    const loaded = checkModelAccess(models, grant, findLoaded(models, target));
    return { model_version_status: [formatLoadedState(loaded)] };
  }
  grant?.principal.checkModel(model);
  const states = status.held.map((held) =>
    formatLoadedState(models.find(model, { version: held })),
  );
  if (status.loading !== undefined) states.push(formatVersionState(status.loading, 'LOADING'));
  return { model_version_status: states };
}

/** An ensemble without one of its steps has the state of a version that failed. */
function formatLoadedState(loaded: LoadedVersion): object {
  const reason = findMissingStep(loaded);
  if (reason === undefined) return formatVersionState(loaded.version, 'AVAILABLE');
  const status = { error_code: 'UNAVAILABLE', error_message: reason };
  return { version: loaded.version, state: 'END', status };
}

function formatVersionState(version: string, state: 'AVAILABLE' | 'LOADING'): object {
  return { version, state, status: { error_code: 'OK', error_message: '' } };
}

function getSignature(models: Models, target: TargetModel, grant: CallGrant | undefined): object {
  const loaded = checkModelAccess(models, grant, findLoaded(models, target));
  const { inputs, outputs } = getModelMetadata(target.model, loaded);
  const definition = {
    inputs: formatTensorInfos(inputs),
    outputs: formatTensorInfos(outputs),
    method_name: 'tensorflow/serving/predict',
  };
  return {
    model_spec: { name: target.model, signature_name: '', version: loaded.version },
    metadata: { signature_def: { signature_def: { [SIGNATURE]: definition } } },
  };
}

function formatTensorInfos(tensors: readonly TensorMetadata[]): object {
  return Object.fromEntries(
    tensors.map(({ name, datatype, shape }) => {
      const dim = shape.map((size) => ({ size: String(size), name: '' }));
      const dtype = DTYPES[datatype] ?? `DT_${datatype}`;
      const info = { dtype, tensor_shape: { dim, unknown_rank: false }, name };
      return [name, info];
    }),
  );
}

/** @throws CubeError INVALID_ARGUMENT naming the field */
function* parseRequest(
  text: string,
  { model, verb }: { readonly model: string; readonly verb: Verb },
  loaded: LoadedVersion,
): SlicedWork<AnyParsedRequest<object | string>> {
  const body = yield* JsonReader.parseInSlices(text, 'body', parseNonFiniteJson);
  body.optional('signature_name', (field) => field.choice(SIGNATURES[verb]));
  if (verb === 'predict' && isTensorModel(loaded)) {
    return yield* parseTfsGraphRequest(body, model, loaded);
  }
  const bundle = requireBundle(loaded);
  if (verb !== 'predict') {
    const request = { ...NO_OPTIONS, inputs: yield* parseTfsExamples(body, bundle) };
    const format = verb === 'classify' ? formatClasses : formatClicks;
    return toParsedRequest(request, { model, bundle }, (response) => ({
      results: format(response, bundle.plan.clickColumn),
    }));
  }
  const { inputs, isByRow } = yield* parseTfsTensors(body, model, bundle);
  return toParsedRequest({ ...NO_OPTIONS, inputs }, { model, bundle }, (response) =>
    isByRow ? { predictions: formatByRow(response) } : { outputs: formatByColumn(response) },
  );
}

/** The click probability of each row. */
function formatClicks({ outputs }: InferResponse<OipScores>, clickColumn: number): number[] {
  const { shape, data } = requireDefined(outputs[0], 'the click output');
  const [rowCount = 0, width = 1] = shape;
  return Array.from(
    { length: rowCount },
    (_, row) => data[row * width + clickColumn] ?? Number.NaN,
  );
}

/**
 * Label and score of each class of each row. An output with one column is the probability of class
 * 1.
 */
function formatClasses(
  response: InferResponse<OipScores>,
  clickColumn: number,
): [string, number][][] {
  const { shape, data } = requireDefined(response.outputs[0], 'the click output');
  const rows =
    shape[1] === 1
      ? formatClicks(response, clickColumn).map((score) => [1 - score, score])
      : splitRows(shape, data);
  return rows.map((scores) => scores.map((score, label) => [String(label), score]));
}

/** A list per row; with several outputs, an object of lists per row. */
function formatByRow({ outputs }: InferResponse<OipScores>): unknown[] {
  const columns = outputs.map(({ name, shape, data }) => ({ name, rows: splitRows(shape, data) }));
  const [first, ...others] = columns;
  if (first === undefined) return [];
  if (others.length === 0) return first.rows;
  return first.rows.map((_, row) =>
    Object.fromEntries(columns.map(({ name, rows }) => [name, rows[row]])),
  );
}

function formatByColumn({ outputs }: InferResponse<OipScores>): unknown {
  const columns = outputs.map(({ name, shape, data }) => [name, splitRows(shape, data)] as const);
  const [first, ...others] = columns;
  const [, rows] = first ?? [];
  return others.length === 0 ? rows : Object.fromEntries(columns);
}

function splitRows([rowCount = 0, width = 0]: readonly number[], data: Float32Array): number[][] {
  return Array.from({ length: rowCount }, (_, row) =>
    Array.from(data.subarray(row * width, (row + 1) * width)),
  );
}
