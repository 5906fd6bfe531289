/**
 * The fields of a pipeline's config.yml: how each is read, its default, and what it does here. The
 * reader and `--check-config` use these tables.
 */
import { PRECISIONS, type Precision } from '../../lib/core/precisions.ts';
import type { YamlNode } from '../../lib/platform/yaml.ts';

/** What a field does: `refused` values would change the answers and end the start. */
export interface FieldEffect {
  readonly effect: 'honoured' | 'ignored' | 'refused';
  readonly reason: string;
}

export interface PipelineField<T> {
  readonly read: (node: YamlNode) => T;
  /** The default of the original; undefined: there is none. */
  readonly fallback: T | undefined;
  readonly explain: (value: T) => FieldEffect;
}

export type PipelineFields<T> = { readonly [K in keyof T]-?: PipelineField<NonNullable<T[K]>> };

const INT32_MAX = 2 ** 31 - 1;
const LIST_MAX = 1_024;
/** Values of device_type by number from -1, with what they mean to the original. */
const DEVICES = ['by `devices`', 'CPU', 'GPU', 'TensorRT', 'Arm CPU', 'Kunlun XPU'] as const;

export interface DagFields {
  is_thread_op?: boolean;
  retry?: number;
  client_type?: 'brpc' | 'grpc';
  use_profile?: boolean;
  channel_size?: number;
  channel_recv_frist_arrive?: boolean;
  enable_prometheus?: boolean;
  prometheus_port?: number;
}

export interface ServerFields {
  rpc_port?: number;
  http_port?: number;
  grpc_gateway_port?: number;
  worker_num?: number;
  build_dag_each_worker?: boolean;
}

export interface OpFields {
  concurrency?: number;
  client_type?: OpClientType;
  retry?: number;
  timeout?: number;
  server_endpoints?: readonly string[];
  client_config?: string;
  fetch_list?: readonly string[];
  batch_size?: number;
  auto_batching_timeout?: number;
  use_encryption_model?: boolean;
  encryption_key?: string;
}

export interface LocalServiceFields {
  model_config?: string;
  client_type?: OpClientType;
  fetch_list?: readonly string[];
  workdir?: string;
  thread_num?: number;
  device_type?: number;
  devices?: string;
  precision?: Precision;
  mem_optim?: boolean;
  ir_optim?: boolean;
  use_calib?: boolean;
  use_mkldnn?: boolean;
  mkldnn_cache_capacity?: number;
  mkldnn_op_list?: readonly string[];
  mkldnn_bf16_op_list?: readonly string[];
  min_subgraph_size?: number;
}

const CLIENT_TYPES = ['brpc', 'grpc', 'local_predictor', 'kserve'] as const;
export type OpClientType = (typeof CLIENT_TYPES)[number];

const LISTENS = 'serving listens here, with every protocol; 0: a free port';

export const SERVER_FIELDS: PipelineFields<ServerFields> = {
  rpc_port: honoured(integer(0, 65_535), undefined, LISTENS),
  http_port: honoured(integer(0, 65_535), undefined, LISTENS),
  grpc_gateway_port: ignored(
    integer(0, 65_535),
    undefined,
    'there is no gateway process; both ports speak HTTP',
  ),
  worker_num: honoured(
    integer(1, 100_000),
    1,
    'number of processes with build_dag_each_worker; else the length of queues without a ' +
      'channel_size: --max-in-flight limits requests',
  ),
  build_dag_each_worker: {
    read: boolean,
    fallback: false,
    explain: (on) =>
      on
        ? says('honoured', 'worker_num processes behind the same ports, each with its own DAG')
        : says('honoured', 'one process'),
  },
};

export const DAG_FIELDS: PipelineFields<DagFields> = {
  is_thread_op: {
    read: boolean,
    fallback: true,
    explain: (on) =>
      on
        ? says('honoured', 'ops run in the event loop')
        : says('honoured', 'each op runs in worker threads, as many as its concurrency'),
  },
  retry: honoured(integer(1, 1_000), 1, 'tries of the whole request; 1: no retry'),
  client_type: honoured(
    (node) => node.choice(['brpc', 'grpc']),
    'brpc',
    'the protocol of ops with server_endpoints and without a client_type',
  ),
  use_profile: {
    read: boolean,
    fallback: false,
    explain: (on) =>
      on
        ? says('honoured', 'writes PipelineServingLogs/pipeline.trace.json, a Chrome trace')
        : says('honoured', 'no profile'),
  },
  channel_size: honoured(
    integer(0, 10_000_000),
    0,
    'length of the queue before each op; 0: worker_num, else as many as requests in progress',
  ),
  channel_recv_frist_arrive: honoured(
    boolean,
    false,
    'true: an op with several predecessors takes the first output and drops the others',
  ),
  enable_prometheus: ignored(boolean, undefined, 'metrics are always at /metrics of every port'),
  prometheus_port: ignored(
    integer(0, 65_535),
    undefined,
    'metrics are at /metrics of every port; there is no port of their own',
  ),
};

/** In milliseconds: what serving uses where the original waits for ever for a whole batch. */
const AUTO_BATCHING_TIMEOUT_MS = 2;

export const OP_FIELDS: PipelineFields<OpFields> = {
  concurrency: honoured(integer(1, 10_000), 1, 'maximum concurrent executions of the op'),
  client_type: honoured((node) => node.choice(CLIENT_TYPES), undefined, 'how the op predicts'),
  retry: honoured(integer(1, 1_000), 1, 'tries of process; 1: no retry'),
  timeout: honoured(integer(-1, INT32_MAX), -1, 'limit of each try of process in ms; -1: none'),
  server_endpoints: honoured(texts, [], 'the servers that the op calls; empty: none'),
  client_config: honoured(
    (node) => node.string(),
    undefined,
    "the remote model's inputs and outputs, with their aliases",
  ),
  fetch_list: honoured(texts, undefined, 'the outputs to return; none given: all'),
  batch_size: honoured(integer(1, 100_000), 1, 'maximum requests in one call of process'),
  auto_batching_timeout: {
    read: integer(-1, INT32_MAX),
    fallback: -1,
    explain: (timeoutMs) =>
      says(
        'honoured',
        timeoutMs > 0
          ? 'maximum time that a request waits for others, in ms'
          : `none is set: with a batch_size above 1 a request waits ${AUTO_BATCHING_TIMEOUT_MS} ` +
              'ms for others, where the original waits for ever',
      ),
  },
  use_encryption_model: {
    read: boolean,
    fallback: false,
    explain: (on) =>
      on
        ? says('refused', 'encrypted Paddle models cannot be read; export the model in clear')
        : says('honoured', 'models are not encrypted'),
  },
  encryption_key: ignored(
    (node) => node.text(),
    undefined,
    'without use_encryption_model it has no effect',
  ),
};

export const LOCAL_SERVICE_FIELDS: PipelineFields<LocalServiceFields> = {
  model_config: honoured(
    (node) => node.text(),
    undefined,
    'a model of this process by name, a bundle folder, or an ONNX file or its folder',
  ),
  client_type: {
    read: (node) => node.choice(CLIENT_TYPES),
    fallback: undefined,
    explain: (type) =>
      type === 'local_predictor'
        ? says('honoured', 'the model runs in this process')
        : says(
            'honoured',
            'with server_endpoints, serving starts the model there as a process; without, the ' +
              'model runs in this process, with the same predictions',
          ),
  },
  fetch_list: honoured(texts, undefined, 'the outputs to return; none given: all'),
  workdir: ignored((node) => node.text(), '', 'no process is started for the model'),
  thread_num: ignored(
    integer(1, 10_000),
    2,
    'models run with as many threads as the process has cores',
  ),
  device_type: {
    read: integer(-1, 4),
    fallback: -1,
    explain: (type) => {
      const device = DEVICES[type + 1] ?? 'unknown';
      if (type === 4) {
        return says('ignored', `${device}: onnxruntime for Node has no provider for it`);
      }
      return says('honoured', `${device}: chooses the execution provider`);
    },
  },
  devices: {
    read: (node) => node.text(),
    fallback: '',
    explain: (devices) =>
      devices === ''
        ? says('honoured', 'models run on the CPU')
        : says('honoured', `GPUs ${devices}, where device_type does not choose another device`),
  },
  precision: {
    read: (node) => node.choice(PRECISIONS),
    fallback: 'fp32',
    explain: (precision) => says('honoured', `the graph is run in ${precision}`),
  },
  mem_optim: ignored(boolean, true, 'the runtime reuses memory by itself'),
  ir_optim: ignored(boolean, false, 'the runtime always optimizes the graph'),
  use_calib: {
    read: boolean,
    fallback: false,
    explain: (on) =>
      on
        ? says('refused', 'INT8 calibration of TensorRT is not supported; use precision: int8')
        : says('honoured', 'no calibration'),
  },
  use_mkldnn: ignored(boolean, false, 'the runtime chooses its CPU kernels by itself'),
  mkldnn_cache_capacity: ignored(integer(0, INT32_MAX), 0, 'there is no oneDNN cache'),
  mkldnn_op_list: ignored(texts, undefined, 'the runtime chooses its CPU kernels by itself'),
  mkldnn_bf16_op_list: {
    read: texts,
    fallback: undefined,
    explain: (ops) =>
      ops.length === 0
        ? says('ignored', 'the list is empty')
        : says('refused', 'BF16 for single operators is not supported; use precision: bf16'),
  },
  min_subgraph_size: ignored(integer(0, INT32_MAX), 3, 'there is no TensorRT'),
};

export function says(effect: FieldEffect['effect'], reason: string): FieldEffect {
  return { effect, reason };
}

function honoured<T>(
  read: (node: YamlNode) => T,
  fallback: NoInfer<T> | undefined,
  reason: string,
): PipelineField<T> {
  return { read, fallback, explain: () => says('honoured', reason) };
}

function ignored<T>(
  read: (node: YamlNode) => T,
  fallback: NoInfer<T> | undefined,
  reason: string,
): PipelineField<T> {
  return { read, fallback, explain: () => says('ignored', reason) };
}

function integer(min: number, max: number): (node: YamlNode) => number {
  return (node) => node.integer(min, max);
}

function boolean(node: YamlNode): boolean {
  return node.boolean();
}

function texts(node: YamlNode): readonly string[] {
  const items = node.itemsOrOne();
  if (items.length > LIST_MAX) node.fail(`expected at most ${LIST_MAX} items`);
  return items.map((item) => item.string());
}
