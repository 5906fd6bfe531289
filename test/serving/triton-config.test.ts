/** Triton's config.pbtxt: every field honoured, ignored or refused, and completion from graphs. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import type { GraphSignature } from '../../lib/core/graph-signature.ts';
import { CPU_ONLY, formatProvider } from '../../lib/platform/onnx-providers.ts';
import type { IgnoredSetting } from '../../serving/config/config-report.ts';
import { completeTritonConfig } from '../../serving/config/triton-completion.ts';
import {
  createDefaultConfig,
  readTritonConfig,
  type TritonModelConfig,
} from '../../serving/config/triton-model-config.ts';

const PATH = 'models/simple/config.pbtxt';

function read(text: string, ignored: IgnoredSetting[] = []): TritonModelConfig {
  return readTritonConfig({ text, path: PATH }, 'simple', ignored);
}

const FULL = `
name: "simple"
platform: "onnxruntime_onnx"   # comment
max_batch_size: 8;
input [
  { name: "TEXT" data_type: TYPE_STRING dims: [ 4, -1 ], optional: true },
  < name: 'IMAGE' data_type: 2 dims: 3 dims: 32 dims: 32 reshape { shape: [ 3072 ] } >
]
output { name: "SCORES" data_type: TYPE_FP32 dims: [ 10 ] label_filename: "labels.txt" }
default_model_filename: "net.onnx"
version_policy: { specific { versions: [ 1, 3 ] } }
instance_group [ { count: 2 kind: KIND_CPU }, { kind: KIND_AUTO } ]
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 100
  preserve_ordering: true
  priority_levels: 2
  default_priority_level: 2
  default_queue_policy { default_timeout_microseconds: 5000 max_queue_size: 10 }
}
model_warmup [
  {
    name: "zeros" batch_size: 2 count: 3
    inputs { key: "TEXT" value { data_type: TYPE_STRING dims: [4, 2] random_data: true } }
    inputs {
      key: "IMAGE" value { data_type: TYPE_UINT8 dims: [3, 32, 32] input_data_file: "cat.raw" }
    }
  },
  { name: "one" inputs { key: "TEXT" value { data_type: TYPE_STRING dims: [4, 1] zero_data: 1 } } }
]
response_cache { enable: true }
optimization { graph { level: 1 } }
parameters { key: "intra_op_thread_count" value: { string_value: "3" } }
parameters: { key: "execution_mode", value { string_value: "1" } }
parameters { key: "enable_mem_arena" value { string_value: "0" } }
`;

test('reads every honoured field', () => {
  const ignored: IgnoredSetting[] = [];
  const config = read(FULL, ignored);
  assert.deepEqual(ignored, []);
  assert.deepEqual(
    [config.maxBatch, config.modelFile, config.usesResponseCache],
    [8, 'net.onnx', true],
  );
  assert.deepEqual(config.instances, [CPU_ONLY, CPU_ONLY, CPU_ONLY]);
  assert.deepEqual(config.inputs, [
    { name: 'TEXT', datatype: 'BYTES', dims: [4, -1], location: `${PATH}:6`, optional: true },
    {
      name: 'IMAGE',
      datatype: 'UINT8',
      dims: [3, 32, 32],
      reshape: [3072],
      location: `${PATH}:7`,
      optional: false,
    },
  ]);
  assert.equal(config.outputs[0]?.labelFile, 'labels.txt');
  assert.deepEqual(config.versionPolicy, { kind: 'specific', versions: ['1', '3'] });
  const policy = {
    timeoutAction: 'reject',
    timeoutMs: 5,
    allowsShorterTimeout: false,
    requestsMax: 10,
  };
  assert.deepEqual(config.dynamicBatching, {
    preferredSizes: [4, 8],
    maxQueueDelayMicros: 100,
    preserveOrdering: true,
    priorityLevels: 2,
    defaultPriorityLevel: 2,
    queuePolicies: [policy, policy],
  });
  assert.deepEqual(
    config.warmUps.map(({ name, rows, count, inputs }) => [name, rows, count, [...inputs]]),
    [
      [
        'zeros',
        2,
        3,
        [
          ['TEXT', { datatype: 'BYTES', dims: [4, 2], data: { kind: 'random' } }],
          [
            'IMAGE',
            { datatype: 'UINT8', dims: [3, 32, 32], data: { kind: 'file', name: 'cat.raw' } },
          ],
        ],
      ],
      ['one', 0, 1, [['TEXT', { datatype: 'BYTES', dims: [4, 1], data: { kind: 'zeros' } }]]],
    ],
  );
  assert.deepEqual(config.session, {
    optimizationLevel: 'extended',
    intraOpThreads: 3,
    executionMode: 'parallel',
    useMemoryArena: false,
  });
});

test('fields that only steps of an ensemble have are listed', () => {
  const ignored: IgnoredSetting[] = [];
  read(
    `platform: "ensemble" response_cache { enable: true } default_model_filename: "m.onnx"
    input { name: "RAW" data_type: TYPE_STRING dims: 1 }
    output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
    ensemble_scheduling { step { model_name: "a" model_version: -1
      input_map { key: "x" value: "RAW" } output_map { key: "y" value: "OUT" } } }`,
    ignored,
  );
  assert.deepEqual(
    ignored.map(({ setting }) => setting),
    [`${PATH}:1 response_cache`, `${PATH}:1 default_model_filename`],
  );
});

test('reads the steps of an ensemble', () => {
  const config = read(`
    platform: "ensemble"
    input { name: "RAW" data_type: TYPE_STRING dims: 1 }
    output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
    ensemble_scheduling { step [
      { model_name: "a" model_version: -1 input_map { key: "x" value: "RAW" }
        output_map { key: "y" value: "mid" } },
      { model_name: "b" model_version: 3 input_map { key: "x" value: "mid" }
        output_map { key: "y" value: "OUT" } } ] }`);
  const steps = config.ensemble?.map(({ model, version, inputMap, outputMap }) => [
    model,
    version,
    [...inputMap].flat(),
    [...outputMap].flat(),
  ]);
  assert.deepEqual(steps, [
    ['a', undefined, ['x', 'RAW'], ['y', 'mid']],
    ['b', '3', ['x', 'mid'], ['y', 'OUT']],
  ]);
});

test('an instance group becomes execution providers, one instance for each count and GPU', () => {
  const cases: [string, string[]][] = [
    ['instance_group { count: 2 kind: KIND_CPU }', ['cpu', 'cpu']],
    ['instance_group { count: 2 }', ['cpu', 'cpu']],
    ['instance_group { gpus: 1 }', ['cuda:1,cpu']],
    [
      'instance_group { count: 2 kind: KIND_GPU gpus: [0, 3] }',
      ['cuda:0', 'cuda:0', 'cuda:3', 'cuda:3'],
    ],
    ['instance_group [{ kind: KIND_GPU gpus: 1 }, { kind: KIND_CPU }]', ['cuda:1', 'cpu']],
    [
      'instance_group { kind: KIND_GPU gpus: 0 } optimization { execution_accelerators { ' +
        'gpu_execution_accelerator { name: "tensorrt" } } }',
      ['tensorrt:0,cuda:0'],
    ],
  ];
  for (const [text, expected] of cases) {
    const orders = read(text).instances ?? [];
    const shown = orders.map((order) => order.map(formatProvider).join());
    assert.deepEqual(shown, expected, text);
  }
});

test('a priority level has its own queue policy, or the default one', () => {
  const { dynamicBatching } = read(`dynamic_batching {
    priority_levels: 3 default_priority_level: 2
    default_queue_policy { default_timeout_microseconds: 100 }
    priority_queue_policy { key: 2 value {
      timeout_action: DELAY default_timeout_microseconds: 2500 allow_timeout_override: true
      max_queue_size: 7 } }
    priority_queue_policy { key: 3 }
  }`);
  const byDefault = {
    timeoutAction: 'reject',
    timeoutMs: 0.1,
    allowsShorterTimeout: false,
    requestsMax: 0,
  };
  assert.deepEqual(dynamicBatching?.queuePolicies, [
    byDefault,
    { timeoutAction: 'delay', timeoutMs: 2.5, allowsShorterTimeout: true, requestsMax: 7 },
    { ...byDefault, timeoutMs: 0 },
  ]);
  assert.equal(read('dynamic_batching {}').dynamicBatching?.queuePolicies, undefined);
});

test('lists the fields without effect, with the reason', () => {
  const cases: [string, string, RegExp][] = [
    ['instance_group { kind: KIND_GPU }', 'instance_group.kind', /instances run on GPU 0/],
    [
      'instance_group { rate_limiter { priority: 2 } }',
      'instance_group.rate_limiter',
      /rate limit/,
    ],
    ['instance_group { host_policy: "numa0" }', 'instance_group.host_policy', /not bound/],
    ['cc_model_filenames { key: "7.5" value: "m" }', 'cc_model_filenames', /GPU/],
    ['metric_tags { key: "a" value: "b" }', 'metric_tags', /metrics/],
    ['optimization { cuda { graphs: true } }', 'optimization.cuda', /GPU/],
    [
      'optimization { input_pinned_memory { enable: true } }',
      'optimization.input_pinned_memory',
      /GPU/,
    ],
    [
      'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }',
      'optimization.execution_accelerators.cpu_execution_accelerator',
      /CPU provider/,
    ],
    [
      'parameters { key: "intra_op_thread_cnt" value { string_value: "2" } }',
      'parameters.intra_op_thread_cnt',
      /did you mean "intra_op_thread_count"/,
    ],
    [
      'parameters { key: "gpu_mem_limit" value { string_value: "1" } }',
      'parameters.gpu_mem_limit',
      /GPU/,
    ],
  ];
  for (const [text, name, reason] of cases) {
    const ignored: IgnoredSetting[] = [];
    read(text, ignored);
    assert.equal(ignored.length, 1, text);
    assert.equal(ignored[0]?.setting, `${PATH}:1 ${name}`);
    assert.match(ignored[0]?.reason ?? '', reason, text);
  }
});

const TENSOR = 'name: "a" data_type: TYPE_FP32 dims: [1]';

test('refuses wrong fields with their place', () => {
  const cases: [string, RegExp][] = [
    ['name: "other"', /config\.pbtxt:1:1: name is other, but the model's folder is simple/],
    ['max_batchsize: 8', /1:1: unknown field max_batchsize; did you mean "max_batch_size"\?/],
    ['input { nam: "x" }', /1:9: unknown field input\.nam; did you mean "name"/],
    ['max_batch_size: 8 max_batch_size: 4', /max_batch_size is given 2 times/],
    ['max_batch_size: -1', /expected an integer in 0\.\.4096, got "-1"/],
    ['max_batch_size: "8"', /expected an integer/],
    ['platform: "tensorflow_savedmodel"', /platform tensorflow_savedmodel is not supported/],
    ['backend: "python"', /backend python is not supported .* export the model to ONNX/],
    ['platform: "ensemble"', /needs ensemble_scheduling/],
    ['ensemble_scheduling { step { model_name: "a" } }', /step a has no input_map/],
    ['input { data_type: TYPE_FP32 dims: 1 }', /a tensor has no name/],
    ['input { name: "a" dims: 1 }', /a: data_type is missing/],
    [
      'input { name: "a" data_type: TYPE_F32 dims: 1 }',
      /unknown value TYPE_F32; did you mean "TYPE_FP32"/,
    ],
    ['input { name: "a" data_type: TYPE_FP32 }', /a: dims is missing/],
    ['input { name: "a" data_type: TYPE_FP32 dims: 0 }', /a dimension is 0/],
    [`input { ${TENSOR} } input { ${TENSOR} }`, /input a is declared twice/],
    [`input { ${TENSOR} reshape { shape: [2] } }`, /different numbers of elements/],
    [`input { ${TENSOR} is_shape_tensor: true }`, /only TensorRT models have it/],
    [`input { ${TENSOR} allow_ragged_batch: true }`, /allow_ragged_batch: requests of different/],
    [`output { ${TENSOR} label_filename: "../x" }`, /expected the name of a file/],
    ['instance_group { kind: KIND_GPU gpus: -1 }', /expected an integer in 0\.\.63, got "-1"/],
    ['instance_group { kind: KIND_MODEL }', /use KIND_CPU or KIND_GPU/],
    ['instance_group { kind: KIND_CPU gpus: 0 }', /KIND_CPU has no gpus/],
    ['instance_group { count: 0 }', /count: expected an integer in 1\.\.256/],
    ['instance_group { passive: true }', /passive: every instance takes requests/],
    ['version_policy { latest {} all {} }', /latest and all: give one of them|all and latest/],
    ['version_policy { latest { num_versions: 0 } }', /num_versions: expected an integer in 1/],
    ['version_policy { specific {} }', /specific has no versions/],
    ['sequence_batching {}', /sequences are not supported/],
    ['dynamic_batching {} sequence_batching {}', /give one of them/],
    [
      'max_batch_size: 4 dynamic_batching { preferred_batch_size: 8 }',
      /8 is more than max_batch_size 4/,
    ],
    ['dynamic_batching { priority_levels: 2 }', /default_priority_level: expected 1\.\.2, got 0/],
    ['dynamic_batching { default_priority_level: 1 }', /needs priority_levels/],
    ['dynamic_batching { priority_queue_policy { key: 1 } }', /1: it needs priority_levels/],
    [
      'dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { ' +
        'key: 3 } }',
      /priority_queue_policy 3: expected a level in 1\.\.2/,
    ],
    ['dynamic_batching { default_queue_policy { timeout_action: DROP } }', /unknown value DROP/],
    ['model_warmup { batch_size: 1 }', /the entry has no name/],
    ['model_warmup { name: "w" }', /w has no inputs/],
    [
      'model_warmup { name: "w" inputs { key: "a" value { data_type: TYPE_FP32 dims: -1 } } }',
      /dimensions of warm-up data must be known/,
    ],
    [
      'model_warmup { name: "w" inputs { key: "a" value { data_type: TYPE_FP32 dims: 1 } } }',
      /give zero_data, random_data or input_data_file/,
    ],
    ['parameters { key: "execution_mode" value { string_value: "2" } }', /unknown value "2"/],
    ['parameters { key: "a" } parameters { key: "a" }', /the key a comes twice/],
    ['optimization { graph { level: 3 } }', /level: expected an integer in -1\.\.2/],
    ['model_operations { op_library_filename: "x.so" }', /loads no libraries/],
    ['model_transaction_policy { decoupled: true }', /a request has exactly one response/],
    ['model_repository_agents { agents { name: "x" } }', /not supported/],
    ['runtime: "model.py"', /not served/],
    ['batch_input { kind: BATCH_ELEMENT_COUNT }', /no added inputs/],
  ];
  for (const [text, message] of cases) assert.throws(() => read(text), message, text);
});

test('values that are the default have no effect and are not refused', () => {
  const ignored: IgnoredSetting[] = [];
  read(
    `model_transaction_policy { decoupled: false } input { ${TENSOR} is_shape_tensor: false } ` +
      'optimization { priority: PRIORITY_DEFAULT eager_batching: false }',
    ignored,
  );
  assert.deepEqual(ignored, []);
});

const GRAPH: GraphSignature = {
  inputs: [
    { name: 'ids', dataType: 'INT64', dims: ['n', 16] },
    { name: 'weight', dataType: 'FP32', dims: ['n'] },
  ],
  outputs: [{ name: 'score', dataType: 'FP32', dims: ['n', ''] }],
};
const FIXED: GraphSignature = {
  inputs: [{ name: 'x', dataType: 'FP32', dims: [2, 3] }],
  outputs: [{ name: 'y', dataType: 'FP32', dims: [2] }],
};

test('a model without configuration is completed from its graph', () => {
  const config = createDefaultConfig('simple', 'models/simple');
  const complete = completeTritonConfig(config, GRAPH, 'm.onnx');
  assert.equal(complete.maxBatch, 4);
  const shown = [...complete.inputs, ...complete.outputs].map(
    ({ name, datatype, dims, reshape }) => [name, datatype, dims, reshape],
  );
  assert.deepEqual(shown, [
    ['ids', 'INT64', [16], undefined],
    ['weight', 'FP32', [1], []],
    ['score', 'FP32', [-1], undefined],
  ]);
  const fixed = completeTritonConfig(config, FIXED, 'm.onnx');
  assert.deepEqual([fixed.maxBatch, fixed.inputs[0]?.dims], [0, [2, 3]]);
});

test('a declared whole shape means that there is no batch', () => {
  const config = read('output { name: "score" data_type: TYPE_FP32 dims: [-1, -1] }');
  assert.equal(completeTritonConfig(config, GRAPH, 'm.onnx').maxBatch, 0);
});

test('a configuration that contradicts its graph names both', () => {
  const both = 'input { name: "ids" data_type: TYPE_INT64 dims: 16 }';
  const weight = 'input { name: "weight" data_type: TYPE_FP32 dims: 1 reshape { shape: [] } }';
  const cases: [string, GraphSignature, RegExp][] = [
    ['max_batch_size: 8', FIXED, /config\.pbtxt: max_batch_size is 8, but m\.onnx has no batch: x/],
    [`max_batch_size: 8 ${both}`, GRAPH, /the input weight of m\.onnx is not declared/],
    [
      `max_batch_size: 8 input { name: "idz" data_type: TYPE_INT64 dims: 16 } ${weight}`,
      GRAPH,
      /config\.pbtxt:1: input idz is not in m\.onnx; did you mean "ids"/,
    ],
    [
      `max_batch_size: 8 input { name: "ids" data_type: TYPE_INT32 dims: 16 } ${weight}`,
      GRAPH,
      /input ids is INT32, but INT64 in m\.onnx/,
    ],
    [
      `max_batch_size: 8 input { name: "ids" data_type: TYPE_INT64 dims: 15 } ${weight}`,
      GRAPH,
      /has dims \[15\], but m\.onnx has \[16\] after the batch/,
    ],
    ['output { name: "z" data_type: TYPE_FP32 dims: 2 }', FIXED, /output z is not in m\.onnx/],
    [
      'model_warmup { name: "w" inputs { key: "y" value { data_type: TYPE_FP32 dims: 1 ' +
        'zero_data: true } } }',
      FIXED,
      /model_warmup w: there is no input y/,
    ],
  ];
  for (const [text, graph, message] of cases) {
    assert.throws(() => completeTritonConfig(read(text), graph, 'm.onnx'), message, text);
  }
});

test('random changes of a configuration give a configuration or an error, never a crash', () => {
  const property = fc.property(
    fc.nat(FULL.length),
    fc.nat(40),
    fc.string({ maxLength: 12 }),
    (at, removed, added) => {
      try {
        read(FULL.slice(0, at) + added + FULL.slice(at + removed));
      } catch (error) {
        assert.ok(error instanceof CubeError, String(error));
      }
    },
  );
  fc.assert(property, { numRuns: 500 });
});
