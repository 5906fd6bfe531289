/**
 * The fields of Triton's model configuration (config.pbtxt), by Triton's public model_config.proto:
 * the effect of each field here, or the reason why it has none or is refused.
 */
import {
  anything,
  flag,
  group,
  ignore,
  integer,
  list,
  type MessageFields,
  map,
  message,
  names,
  number,
  refuse,
  text,
} from './triton-fields.ts';

/** The names of data types; the position is the number in the protocol. */
export const DATA_TYPES = [
  'TYPE_INVALID',
  'TYPE_BOOL',
  'TYPE_UINT8',
  'TYPE_UINT16',
  'TYPE_UINT32',
  'TYPE_UINT64',
  'TYPE_INT8',
  'TYPE_INT16',
  'TYPE_INT32',
  'TYPE_INT64',
  'TYPE_FP16',
  'TYPE_FP32',
  'TYPE_FP64',
  'TYPE_STRING',
  'TYPE_BF16',
] as const;

export const INSTANCE_KINDS = ['KIND_AUTO', 'KIND_GPU', 'KIND_CPU', 'KIND_MODEL'] as const;
export const TIMEOUT_ACTIONS = ['REJECT', 'DELAY'] as const;

const TENSORRT_ONLY = 'only TensorRT models have it; remove the field';
const NO_CUDA = 'onnxruntime-node has no such option of a GPU provider';
const NO_METRIC_OPTIONS = 'metrics have fixed names, labels and buckets';

const TENSOR: MessageFields = {
  name: text,
  data_type: names(...DATA_TYPES),
  dims: list(integer),
  reshape: message({ shape: list(integer) }),
  is_shape_tensor: refuse(TENSORRT_ONLY, flag),
  is_non_linear_format_io: refuse(TENSORRT_ONLY, flag),
};

const INPUT: MessageFields = {
  ...TENSOR,
  format: ignore(
    'a request must have the layout of the graph, as with Triton',
    names('FORMAT_NONE', 'FORMAT_NHWC', 'FORMAT_NCHW'),
  ),
  allow_ragged_batch: refuse(
    'requests of different shapes run in different batches; remove the field',
    flag,
  ),
  optional: flag,
};

const OUTPUT: MessageFields = { ...TENSOR, label_filename: text };

const INSTANCE_GROUP: MessageFields = {
  name: ignore('instances have no names here', text),
  kind: names(...INSTANCE_KINDS),
  count: integer,
  gpus: list(integer),
  rate_limiter: ignore(
    'there is no rate limiter: an idle instance takes the next batch',
    message({
      resources: list(message({ name: text, global: flag, count: integer })),
      priority: integer,
    }),
  ),
  secondary_devices: refuse('there are no such devices here; remove the field', list(anything)),
  profile: refuse(TENSORRT_ONLY, list(text)),
  passive: refuse('every instance takes requests; remove the group', flag),
  host_policy: ignore('instances are not bound to processors', text),
};

const PINNED_MEMORY = ignore(NO_CUDA, message({ enable: flag }));
const ACCELERATORS = list(message({ name: text, parameters: ignore(NO_CUDA, map(text)) }));

const OPTIMIZATION: MessageFields = {
  graph: message({ level: integer }),
  priority: ignore(
    'all instances have the priority of the process',
    names('PRIORITY_DEFAULT', 'PRIORITY_MAX', 'PRIORITY_MIN'),
  ),
  cuda: ignore(NO_CUDA, anything),
  execution_accelerators: message({
    gpu_execution_accelerator: ACCELERATORS,
    cpu_execution_accelerator: ignore(
      'onnxruntime-node has no such accelerator; its CPU provider gives the same results',
      ACCELERATORS,
    ),
  }),
  input_pinned_memory: PINNED_MEMORY,
  output_pinned_memory: PINNED_MEMORY,
  gather_kernel_buffer_threshold: ignore(NO_CUDA, integer),
  eager_batching: ignore('batches are always assembled while all instances are busy', flag),
};

const QUEUE_POLICY: MessageFields = {
  timeout_action: names(...TIMEOUT_ACTIONS),
  default_timeout_microseconds: integer,
  allow_timeout_override: flag,
  max_queue_size: integer,
};

const DYNAMIC_BATCHING: MessageFields = {
  preferred_batch_size: list(integer),
  max_queue_delay_microseconds: integer,
  preserve_ordering: flag,
  priority_levels: integer,
  default_priority_level: integer,
  default_queue_policy: message(QUEUE_POLICY),
  priority_queue_policy: map(message(QUEUE_POLICY), integer),
};

const ENSEMBLE: MessageFields = {
  step: list(
    message({
      model_name: text,
      model_version: integer,
      input_map: map(text),
      output_map: map(text),
      model_namespace: refuse('models have no namespaces here; remove the field', text),
    }),
  ),
  max_inflight_requests: ignore('the limits of the process and of the steps apply', integer),
};

const WARM_UP: MessageFields = {
  name: text,
  batch_size: integer,
  inputs: map(
    message({
      data_type: names(...DATA_TYPES),
      dims: list(integer),
      zero_data: group('data', flag),
      random_data: group('data', flag),
      input_data_file: group('data', text),
    }),
  ),
  count: integer,
};

const METRICS: MessageFields = {
  metric_control: list(
    message({
      metric_identifier: message({ family: text }),
      histogram_options: message({ buckets: list(number) }),
    }),
  ),
};

export const MODEL_FIELDS: MessageFields = {
  name: text,
  platform: text,
  backend: text,
  runtime: refuse('models of libraries and scripts are not served; remove the field', text),
  version_policy: message({
    latest: group('version_policy', message({ num_versions: integer })),
    all: group('version_policy', message({})),
    specific: group('version_policy', message({ versions: list(integer) })),
  }),
  max_batch_size: integer,
  input: list(message(INPUT)),
  output: list(message(OUTPUT)),
  batch_input: refuse('batches have no added inputs here; remove the field', list(anything)),
  batch_output: refuse('batches have no added outputs here; remove the field', list(anything)),
  optimization: message(OPTIMIZATION),
  dynamic_batching: group('scheduling', message(DYNAMIC_BATCHING)),
  sequence_batching: group(
    'scheduling',
    refuse('sequences are not supported, because models keep no state; remove the field', anything),
  ),
  ensemble_scheduling: group('scheduling', message(ENSEMBLE)),
  instance_group: list(message(INSTANCE_GROUP)),
  default_model_filename: text,
  cc_model_filenames: ignore(NO_CUDA, map(text)),
  metric_tags: ignore(NO_METRIC_OPTIONS, map(text)),
  parameters: map(message({ string_value: text })),
  model_warmup: list(message(WARM_UP)),
  model_operations: message({
    op_library_filename: refuse(
      'onnxruntime-node loads no libraries with operators; use operators of ONNX',
      list(text),
    ),
  }),
  model_transaction_policy: message({
    decoupled: refuse('a request has exactly one response; remove the field', flag),
  }),
  model_repository_agents: refuse(
    'repository agents are not supported; remove the field',
    anything,
  ),
  response_cache: message({ enable: flag }),
  model_metrics: ignore(NO_METRIC_OPTIONS, message(METRICS)),
};

/** Parameters of the onnxruntime backend that concern only GPUs or memory. */
export const IGNORED_PARAMETERS: ReadonlyMap<string, string> = new Map([
  ['memory.enable_memory_arena_shrinkage', 'onnxruntime-node has no such option'],
  ['session.use_device_allocator_for_initializers', 'onnxruntime-node has no such option'],
  ['cudnn_conv_algo_search', NO_CUDA],
  ['cudnn_conv_use_max_workspace', NO_CUDA],
  ['gpu_mem_limit', NO_CUDA],
  ['arena_extend_strategy', NO_CUDA],
  ['do_copy_in_default_stream', NO_CUDA],
]);
