/** The HTTP operations of serving, for the OpenAPI document at /openapi.json. */
import { CONSOLE_OPERATIONS } from '../../lib/console/console-routes.ts';
import { createOpenApi, type Operation, type Operations } from '../../lib/rpc/openapi.ts';
import { GENERAL_MODEL_METHODS, GENERAL_MODEL_SERVICE } from '../../proto/general-model.ts';
import type { MessageService } from '../../proto/message-schema.ts';
import type { Endpoints } from './endpoints.ts';

/** What is served besides the protocols that every process has. */
interface ServedOperations {
  /** Names of services of the general model. */
  readonly services: readonly string[];
  readonly hasPipeline: boolean;
  readonly messages: readonly MessageService[];
  /** Files of pipelines, workflows or services can be reloaded. */
  readonly canReload: boolean;
}

const TEXT = { type: 'string' };
const OBJECT = { type: 'object' };
const NUMBERS = { type: 'array', items: { type: 'number' } };
const TENSORS = {
  type: 'array',
  items: {
    type: 'object',
    properties: {
      name: TEXT,
      datatype: TEXT,
      shape: { type: 'array', items: { type: 'integer' } },
      parameters: OBJECT,
      data: { type: 'array' },
    },
    required: ['name', 'datatype', 'shape'],
  },
};
const INFER_REQUEST = {
  type: 'object',
  properties: {
    id: TEXT,
    parameters: OBJECT,
    inputs: TENSORS,
    outputs: { type: 'array', items: OBJECT },
  },
  required: ['inputs'],
};
const INFER_ANSWER = {
  type: 'object',
  properties: {
    model_name: TEXT,
    model_version: TEXT,
    id: TEXT,
    parameters: OBJECT,
    outputs: TENSORS,
  },
};
const CTR_REQUEST = {
  type: 'object',
  properties: { rows: { type: 'array', items: OBJECT }, shared: OBJECT, experimentKey: TEXT },
  required: ['rows'],
};
const CTR_ANSWER = {
  type: 'object',
  properties: {
    model: TEXT,
    version: TEXT,
    tables_version: TEXT,
    probabilities: NUMBERS,
    unseen: { type: 'integer' },
    unavailable: { type: 'integer' },
    degraded: { type: 'boolean' },
  },
};
const TEXTS = { type: 'array', items: TEXT };
const PIPELINE_REQUEST = {
  type: 'object',
  properties: {
    key: TEXTS,
    value: TEXTS,
    tensors: { type: 'array', items: OBJECT },
    logid: { type: 'integer' },
    clientip: TEXT,
  },
};
const PIPELINE_ANSWER = {
  type: 'object',
  properties: {
    err_no: { type: 'integer' },
    err_msg: TEXT,
    key: TEXTS,
    value: TEXTS,
    tensors: { type: 'array', items: OBJECT },
  },
};
const CTR_QUERY = {
  model: 'Name of the model; needed when several are served',
  version: 'A loaded version',
  label: 'A channel, instead of a version',
  priority: '0 (highest) to 2; default 1',
  detail: 'true: add lookup outcomes per slot',
  timings: 'true: add the durations of the steps',
};
const VERSION_QUERY = { model: CTR_QUERY.model, version: CTR_QUERY.version };
const METRICS: Operation = { summary: 'Metrics in Prometheus text', answer: 'text/plain' };
const TRACE: Operation = { summary: 'Trace settings of Triton, which are off' };
const FEATURES: Operation = { summary: 'Slots, dense features and hash that requests need' };
const LIVE: Operation = { summary: 'Whether the process is alive' };
const READY: Operation = { summary: 'Whether every model serves a version; 503 if not' };

function json(summary: string, schema: Readonly<Record<string, unknown>> = OBJECT): Operation {
  return { summary, body: { 'application/json': schema } };
}

function kserveModel(path: string): Operations {
  return {
    [`GET ${path}`]: { summary: 'Inputs and outputs of a model' },
    [`GET ${path}/ready`]: { summary: 'Whether a version is loaded; 503 if not' },
    [`GET ${path}/config`]: { summary: "Configuration in Triton's form" },
    [`GET ${path}/stats`]: { summary: "Statistics in Triton's form" },
    [`POST ${path}/infer`]: {
      summary: 'Predict rows given as tensors (KServe v2)',
      body: {
        'application/json': INFER_REQUEST,
        'application/octet-stream': {
          type: 'string',
          contentMediaType: 'application/octet-stream',
        },
      },
      answer: INFER_ANSWER,
    },
  };
}

function tfsModel(path: string): Operations {
  const examples = { type: 'object', required: ['examples'] };
  return {
    [`GET ${path}`]: { summary: 'Loaded versions (TensorFlow Serving)' },
    [`GET ${path}/metadata`]: { summary: 'Signature of the model (TensorFlow Serving)' },
    [`POST ${path}:predict`]: json('Predict instances or inputs (TensorFlow Serving)'),
    [`POST ${path}:classify`]: json('Score each class of examples (TensorFlow Serving)', examples),
    [`POST ${path}:regress`]: json('Click probability of examples (TensorFlow Serving)', examples),
  };
}

/** @param services names of the general model service */
function paddleServices(services: readonly string[]): Operations {
  return Object.fromEntries(
    services.flatMap((service) =>
      GENERAL_MODEL_METHODS.map((method) => [
        `POST /${service}/${method}`,
        json(`Call ${method} of the general model service (Paddle Serving)`),
      ]),
    ),
  );
}

const PROCESS_OPERATIONS: Operations = {
  'GET /healthz': LIVE,
  'GET /v2/health/live': LIVE,
  'GET /readyz': READY,
  'GET /v2/health/ready': READY,
  'GET /v1/status': { summary: 'Models, versions and what is loading' },
  'GET /v1/shadows': { summary: 'Answers to copied requests compared, by shadow and version' },
  'GET /metrics': METRICS,
  'GET /monitoring/prometheus/metrics': METRICS,
  'GET /openapi.json': { summary: 'This document' },
};

const RELOAD = json('Reload pipelines, workflows and services; needs the control token');

/**
 * @param services configured names of the general model service, besides its own two
 */
function listOperations({
  services,
  hasPipeline,
  messages,
  canReload,
}: ServedOperations): Operations {
  const short = GENERAL_MODEL_SERVICE.slice(GENERAL_MODEL_SERVICE.lastIndexOf('.') + 1);
  return {
    'POST /v1/ctr:predict': {
      summary: 'Predict the click probabilities of rows',
      query: CTR_QUERY,
      body: {
        'application/json': CTR_REQUEST,
        'text/tab-separated-values': TEXT,
        'application/x-ndjson': TEXT,
      },
      answer: CTR_ANSWER,
    },
    'GET /v2': { summary: 'Name, version and extensions of the server (KServe v2)' },
    'GET /v2/models': { summary: 'Names of the models' },
    'GET /v2/models/stats': { summary: 'Statistics of all models' },
    ...kserveModel('/v2/models/{model}'),
    ...kserveModel('/v2/models/{model}/versions/{version}'),
    'GET /v1/models/{model}/features': FEATURES,
    'GET /v1/models/{model}/versions/{version}/features': FEATURES,
    ...tfsModel('/v1/models/{model}'),
    ...tfsModel('/v1/models/{model}/versions/{version}'),
    ...tfsModel('/v1/models/{model}/labels/{label}'),
    'POST /v2/repository/index': json('Models and their states'),
    'POST /v2/repository/models/{model}/load': json('Load a model; needs the control token'),
    'POST /v2/repository/models/{model}/unload': json('Unload a model; needs the control token'),
    'GET /v2/trace/setting': TRACE,
    'POST /v2/trace/setting': json('Refuse changes of trace settings'),
    'GET /v2/models/{model}/trace/setting': TRACE,
    'POST /v2/models/{model}/trace/setting': json('Refuse changes of trace settings'),
    'GET /v2/logging': { summary: "Log settings in Triton's form" },
    'POST /v2/logging': json('Refuse changes of log settings'),
    ...paddleServices([GENERAL_MODEL_SERVICE, short, ...services]),
    ...(hasPipeline && {
      'POST /{name}/{method}': {
        summary: 'Call the pipeline (Pipeline Serving); failures are err_no with status 200',
        body: { 'application/json': PIPELINE_REQUEST },
        answer: PIPELINE_ANSWER,
      },
    }),
    ...listMessageOperations(messages),
    ...(canReload && { 'POST /v1/reload': RELOAD }),
    ...CONSOLE_OPERATIONS,
    'GET /v1/console/examples': {
      summary: 'Example rows of a model, for the form of the console',
      query: VERSION_QUERY,
    },
    'GET /v1/console/row': {
      summary: 'The rows of a key, or of a feature of a slot, with the shard of the key',
      query: {
        ...VERSION_QUERY,
        slot: 'Slot of the feature',
        feature: 'Feature to hash to a key',
        key: 'Key instead of a slot and a feature: decimal, or 0x and hex digits',
        table: 'Table to look up in; default: all that take the slot',
      },
    },
    'GET /v1/console/table': {
      summary: 'Layouts and load factor of a table, and the norms of a sample of its rows',
      query: { ...VERSION_QUERY, table: 'Name of the table' },
    },
    ...PROCESS_OPERATIONS,
  };
}

/** The methods of services with messages of their own. */
function listMessageOperations(services: readonly MessageService[]): Operations {
  const operations: Record<string, Operation> = {};
  for (const { name, shortName, methods } of services) {
    for (const { name: method, request, response } of methods) {
      const operation = {
        summary: `${method} of ${name}: ${request.name} to ${response.name}, as JSON or protobuf`,
        body: { 'application/json': OBJECT },
        answer: OBJECT,
      };
      operations[`POST /${name}/${method}`] = operation;
      operations[`POST /${shortName}/${method}`] = operation;
    }
  }
  return operations;
}

export function registerOpenApi({ http: { app } }: Endpoints, served: ServedOperations): void {
  let document: object | undefined;
  app.get('/openapi.json', async () => {
    document ??= createOpenApi('Hypercube serving', listOperations(served));
    return document;
  });
}
