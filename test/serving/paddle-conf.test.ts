/** Paddle Serving's conf folder: converted, ignored and rejected settings. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { CubeError } from '../../lib/core/errors.ts';
import { formatProvider } from '../../lib/platform/onnx-providers.ts';
import { locateConfFolder, readPaddleConf } from '../../serving/config/paddle-conf.ts';
import { completeConfig } from '../../serving/config/serving-config.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { ServingProcess } from './support/serving-process.ts';
import { exportBundle, hashKey, ToyBundle } from './support/toy-bundle.ts';

const MAIN = fileURLToPath(new URL('../../serving/main.js', import.meta.url));

/** The files of the CTR example, with settings that users commonly add. */
const FILES = {
  'gflags.conf': `# flags
--port=9393
--max_concurrency=32
--reload_interval_s=1
--num_threads=4
--request_cache_size=1048576
--max_body_size=536870
`,
  'service.prototxt': `port: 8010
services {
  name: "GeneralModelService"
  workflows: "workflow1"
}
services { name: "EchoService" workflows: "workflow2" }
`,
  'workflow.prototxt': `workflows {
  name: "workflow1"
  workflow_type: "Sequence"
  nodes { name: "general_reader_0" type: "GeneralReaderOp" }
  nodes {
    name: "general_dist_kv_infer_0"
    type: "GeneralDistKVInferOp"
    dependencies { name: "general_reader_0" mode: "RO" }
  }
  nodes {
    name: "general_response_0"
    type: "GeneralResponseOp"
    dependencies { name: "general_dist_kv_infer_0" mode: "RO" }
  }
}
workflows { name: "workflow2" nodes { name: "echo_op" type: "CommonEchoOp" } }
`,
  'resource.prototxt': `model_toolkit_path: "conf"
model_toolkit_file: "model_toolkit.prototxt"
general_model_path: "conf"
general_model_file: "general_model.prototxt"
cube_config_path: "conf" cube_config_file: "cube.conf" cube_quant_bits: 8
`,
  'model_toolkit.prototxt': `engines {
  name: "general_dist_kv_infer_0"
  type: "PADDLE_INFER"
  reloadable_meta: "ctr_model/fluid_time_file"
  reloadable_type: "timestamp_ne"
  model_dir: "ctr_model"
  gpu_ids: 0
  use_gpu: false
  runtime_thread_num: 2
  batch_infer_size: 16
  enable_overrun: false
  allow_split_request: true
  sparse_param_service_type: REMOTE
  sparse_param_service_table_name: "test_dict"
}
`,
  'general_model.prototxt': `feed_var {
  name: "C1" alias_name: "embedding_0" is_lod_tensor: true feed_type: 0 shape: -1
}
fetch_var { name: "prob" alias_name: "predict" is_lod_tensor: false fetch_type: 1 shape: 2 }
`,
};

function writeConf(t: TestContext, replaced: Record<string, string> = {}): string {
  const folder = join(temporaryFolder(t), 'conf');
  mkdirSync(folder, { recursive: true });
  for (const [name, text] of Object.entries({ ...FILES, ...replaced })) {
    writeFileSync(join(folder, name), text);
  }
  return folder;
}

test('the CTR example: every setting is converted or listed with the reason', (t) => {
  const folder = writeConf(t);
  const root = join(folder, '..');
  const { settings, ignored } = readPaddleConf(locateConfFolder(folder));
  const { models, services, port, inFlightMax, messageBytes } = completeConfig(settings);
  assert.deepEqual([port, inFlightMax, messageBytes], [8010, 32, 536_870]);
  const [service] = services;
  assert.ok(service);
  assert.deepEqual(
    services.map(({ name, model }) => [name, model]),
    [['GeneralModelService', 'general_dist_kv_infer_0']],
  );
  assert.equal(service.aliases!.get('predict'), 'prob');
  const [model] = models;
  assert.deepEqual(model!.source, {
    kind: 'folder',
    folder: join(root, 'ctr_model'),
    reload: 'timestamp_ne',
    reloadFile: 'fluid_time_file',
  });
  assert.deepEqual(model!.store, { kind: 'remote', fleetPath: join(folder, 'cube.conf') });
  assert.deepEqual(
    [model!.instances, model!.batching.maxBatch, model!.pollMs, model!.requestCacheBytes],
    [2, 16, 1_000, 1_048_576],
  );
  const lines = ignored.map(({ setting, reason }) => `${setting}: ${reason}`).join('\n');
  for (const line of [
    /service\.prototxt:6 service EchoService: its workflow only echoes/,
    /resource\.prototxt:5 cube_quant_bits: the table defines its dtype/,
    /model_toolkit\.prototxt:7 gpu_ids: without use_gpu it has no effect/,
    /:14 sparse_param_service_table_name: the bundle's name selects the dict of cube\.conf/,
  ]) {
    assert.match(lines, line);
  }
  assert.equal(ignored.length, 4, lines);
});

test('GPU options of an engine become execution providers, with the CPU as the last', (t) => {
  const cases: [string, string[][]][] = [
    ['use_gpu: false', [['cpu']]],
    ['use_gpu: true', [['cuda', 'cpu']]],
    [
      'use_gpu: true gpu_ids: [1, 2]',
      [
        ['cuda:1', 'cpu'],
        ['cuda:2', 'cpu'],
      ],
    ],
    ['use_gpu: true gpu_ids: 1 use_trt: true', [['tensorrt:1', 'cuda:1', 'cpu']]],
  ];
  for (const [options, expected] of cases) {
    const folder = writeConf(t, {
      'model_toolkit.prototxt': FILES['model_toolkit.prototxt']
        .replace('gpu_ids: 0', '')
        .replace('use_gpu: false', options),
    });
    const [model] = completeConfig(readPaddleConf(locateConfFolder(folder)).settings).models;
    const placements = model?.placements.map((order) => order.map(formatProvider));
    assert.deepEqual(placements, expected, options);
  }
});

function workflow(text: string): Record<string, string> {
  return { 'workflow.prototxt': `workflows { name: "workflow1" ${text} }` };
}

test('workflows that cannot run as they are written are rejected', (t) => {
  const cases: [Record<string, string>, RegExp][] = [
    [workflow('workflow_type: "Tree"'), /"Tree": expected Sequence or Parallel/],
    [workflow('nodes { name: "a" type: "GeneralReaderOp" }'), /an inference operator, got 0/],
    [
      workflow(
        'nodes { name: "a" type: "GeneralInferOp" } nodes { name: "b" type: "GeneralInferOp" ' +
          'dependencies { name: "a" } }',
      ),
      /node b \(infer\) depends on infer; here it can depend on the start or read/,
    ],
    [
      workflow(
        'nodes { name: "a" type: "GeneralInferOp" dependencies { name: "startup_op" mode: "WO" } }',
      ),
      /mode "WO": expected RO or RW/,
    ],
    [
      workflow('nodes { name: "a" type: "GeneralInferOp" dependencies { name: "z" } }'),
      /no node is named z/,
    ],
    [
      workflow(
        'nodes { name: "a" type: "GeneralInferOp" } nodes { name: "b" type: "GeneralInferOp" } ' +
          'nodes { name: "c" type: "GeneralResponseOp" dependencies { name: "a" } }',
      ),
      /the response does not depend on b/,
    ],
    [
      {
        'service.prototxt':
          'services { name: "S" workflows: "workflow1" enable_map_request_to_workflow: true }',
      },
      /messages of the general model have no text field to choose a workflow by/,
    ],
    [
      { 'service.prototxt': 'services { name: "S" workflows: "workflow1" merger: "mine" }' },
      /merger "mine" is not built in/,
    ],
    [
      {
        'service.prototxt': 'services { name: "S" workflows: "workflow1" workflows: "workflow1" }',
      },
      /two nodes are named general_dist_kv_infer_0/,
    ],
  ];
  for (const [replaced, message] of cases) {
    const folder = writeConf(t, replaced);
    assert.throws(() => readPaddleConf(locateConfFolder(folder)), message);
  }
});

test('settings that would change predictions are rejected with file, line and name', (t) => {
  const toolkit = (from: string, to: string): Record<string, string> => ({
    'model_toolkit.prototxt': FILES['model_toolkit.prototxt'].replace(from, to),
  });
  const cases: [Record<string, string>, RegExp][] = [
    [
      workflow('nodes { name: "x" type: "MyFilterOp" }'),
      /workflow\.prototxt:1:\d+: .*operator MyFilterOp is not built in/,
    ],
    [
      { 'service.prototxt': 'services { name: "S" workflows: "other" }' },
      /service\.prototxt:1:\d+: service S: no workflow other/,
    ],
    [toolkit('"timestamp_ne"', '"hourly"'), /reloadable_type: expected one of timestamp_ne/],
    [toolkit('REMOTE', 'NEARBY'), /expected NONE, LOCAL or REMOTE, got NEARBY/],
    [toolkit('gpu_ids: 0', 'encrypted_model: true'), /encrypted models are not supported/],
    [{ 'gflags.conf': '--port=many' }, /gflags\.conf:1: expected an integer/],
    [{ 'gflags.conf': '--flagfile=gflags.conf' }, /nested too deeply or circular/],
    [{ 'resource.prototxt': 'cube_config_path: "conf"' }, /model_toolkit_file are missing/],
  ];
  for (const [replaced, message] of cases) {
    const folder = writeConf(t, replaced);
    assert.throws(
      () => readPaddleConf(locateConfFolder(folder)),
      (error: unknown) => {
        assert.ok(error instanceof CubeError);
        assert.match(error.message, message);
        return true;
      },
    );
  }
  const folder = writeConf(t);
  const model = join(folder, '..', 'ctr_model');
  mkdirSync(model);
  writeFileSync(join(model, '__model__'), '');
  assert.throws(
    () => readPaddleConf(locateConfFolder(folder)),
    /a model in Paddle.s own format; convert it to a bundle \(prune-model --model \S+ --to onnx/,
  );
});

test('engine types name the device and where a Paddle model has its parameters', (t) => {
  const folder = writeConf(t);
  const toolkit = join(folder, 'model_toolkit.prototxt');
  const read = (type: string) => {
    const text = FILES['model_toolkit.prototxt']
      .replace('PADDLE_INFER', type)
      .replace('use_gpu: false', '');
    writeFileSync(toolkit, text);
    const [model] = readPaddleConf(locateConfFolder(folder)).settings.models;
    return model?.provider ?? [];
  };
  const types = ['CPU', 'GPU'].flatMap((device) =>
    ['NATIVE', 'ANALYSIS', 'NATIVE_DIR', 'ANALYSIS_DIR'].map((rest) => `FLUID_${device}_${rest}`),
  );
  for (const type of types) {
    assert.deepEqual(read(type), type.includes('GPU') ? ['cuda', 'cpu'] : [], type);
  }
  assert.throws(
    () => read('FLUID_CPU_NATIVE_DIR_SIGMOID'),
    /model_toolkit\.prototxt:1:9: engine type FLUID_CPU_NATIVE_DIR_SIGMOID is not supported \(/,
  );
  assert.throws(() => read('FLUID_CPU_ANALYSYS'), /did you mean "FLUID_CPU_ANALYSIS"\?/);
  const model = join(folder, '..', 'ctr_model');
  mkdirSync(model);
  writeFileSync(join(model, '__model__'), '');
  for (const type of types) {
    const place = type.endsWith('_DIR')
      ? `parameters in separate files; convert it to a bundle (prune-model --model ${model} --to`
      : `parameters in one file; convert it to a bundle (prune-model --model ${model}/__model__ ` +
        `--params ${model}/__params__ --to`;
    assert.throws(
      () => read(type),
      (error: CubeError) => error.message.includes(place),
    );
  }
});

test('older names are read, and not beside the current ones', (t) => {
  const older = {
    'resource.prototxt': 'model_manager_path: ./conf\nmodel_manager_file: model_toolkit.prototxt\n',
    'model_toolkit.prototxt':
      'engines { name: general_dist_kv_infer_0 model_data_path: ./m sparse_param_service_type: 1 }',
  };
  const { settings } = readPaddleConf(locateConfFolder(writeConf(t, older)));
  assert.match(settings.models[0]?.bundleDir ?? '', /\/m$/);
  for (const [file, text, message] of [
    [
      'resource.prototxt',
      `${older['resource.prototxt']} model_toolkit_path: "conf"`,
      /model_manager_path is the older name of model_toolkit_path: give only one of them/,
    ],
    [
      'model_toolkit.prototxt',
      older['model_toolkit.prototxt'].replace('./m', './m model_dir: "n"'),
      /model_data_path is the older name of model_dir/,
    ],
  ] as const) {
    const folder = writeConf(t, { ...older, [file]: text });
    assert.throws(() => readPaddleConf(locateConfFolder(folder)), message);
  }
});

test('batch_infer_size may be 0 and has no effect without runtime_thread_num', (t) => {
  const toolkit = (threads: number, size: number): string =>
    FILES['model_toolkit.prototxt']
      .replace('runtime_thread_num: 2', `runtime_thread_num: ${threads}`)
      .replace('batch_infer_size: 16', `batch_infer_size: ${size}`);
  const read = (threads: number, size: number, flags = '') => {
    const files = { 'model_toolkit.prototxt': toolkit(threads, size), 'gflags.conf': flags };
    const { settings, ignored } = readPaddleConf(locateConfFolder(writeConf(t, files)));
    const [model] = settings.models;
    const isListed = ignored.some(({ reason }) => /without runtime_thread_num/.test(reason));
    return [model?.instances, model?.maxBatch, isListed];
  };
  assert.deepEqual(read(0, 0), [undefined, undefined, true]);
  assert.deepEqual(read(0, 32), [undefined, undefined, true]);
  assert.deepEqual(read(3, 8), [3, 8, false]);
  assert.throws(() => read(3, 0), /batch_infer_size: expected an integer in 1\.\.4096, got "0"/);
  // The threads of the original server run the model, each one for itself.
  assert.deepEqual(read(0, 0, '--num_threads=1'), [1, undefined, true]);
  assert.deepEqual(read(3, 8, '--num_threads=1'), [3, 8, false]);
});

test('flag files: another file, negated flags, misspelled flags', (t) => {
  const folder = writeConf(t, {
    'gflags.conf': '--flagfile=conf/more.conf,conf/last.conf\n--max_concurency=9\n',
    'more.conf': '--noenable_prometheus\n--max_concurrency=3\n--use_calib=False\n',
    'last.conf': '--max_concurrency=7\n--enable_protocol_list=nshead baidu_std\n',
  });
  const { settings, ignored } = readPaddleConf(locateConfFolder(folder));
  assert.equal(settings.maxInFlight, 7);
  assert.deepEqual(settings.protocols, ['http', 'grpc', 'baidu_std']);
  const lines = ignored.map(({ setting, reason }) => `${setting}: ${reason}`).join('\n');
  assert.equal(settings.metricNames, undefined);
  assert.match(
    lines,
    /gflags\.conf:2 --max_concurency: unknown flag; did you mean "max_concurrency"\?/,
  );
  assert.match(lines, /last\.conf:2 --enable_protocol_list nshead: not a protocol of this server/);
});

test('--enable_prometheus adds the metrics under the names of Paddle Serving', (t) => {
  const read = (line: string) =>
    readPaddleConf(locateConfFolder(writeConf(t, { 'gflags.conf': `${line}\n` })));
  assert.deepEqual(read('--enable_prometheus').settings.metricNames, ['paddle']);
  assert.equal(read('--enable_prometheus=false').settings.metricNames, undefined);
  assert.throws(() => read('--enable_prometheus=maybe'), /gflags\.conf:1: expected true or false/);
  const [port] = read('--prometheus_port=19393').ignored;
  assert.match(
    `${port?.setting} ${port?.reason}`,
    /prometheus_port .*serving port has the metrics/,
  );
});

/** One row by client names: an alias of the configuration, slots, and scaled dense features. */
const request = {
  tensor: [
    ...['embedding_0', 'C2', 'C3'].map((name, slot) => ({
      name,
      elem_type: 0,
      shape: [1, 1],
      int64_data: [String(hashKey(slot, ['a', 'b', 'c'][slot]!))],
    })),
    { name: 'dense_input', elem_type: 1, shape: [1, 2], float_data: [-0.625, -0.125] },
  ],
  fetch_var_names: ['predict'],
};

test('a conf folder is served unchanged, under its service name', async (t) => {
  const folder = writeConf(t, {
    'model_toolkit.prototxt': FILES['model_toolkit.prototxt']
      .replace('REMOTE', 'LOCAL')
      .replace('ctr_model/fluid_time_file', 'ctr_model/manifest.json'),
    'gflags.conf': '--reload_interval_s=1\n',
  });
  const checked = spawnSync(process.execPath, [MAIN, '--conf-dir', folder, '--check-config'], {
    encoding: 'utf8',
  });
  assert.equal(checked.status, 0, checked.stderr);
  assert.match(checked.stdout, /^ignored: .*gpu_ids \(without use_gpu it has no effect\)$/m);
  const toy = new ToyBundle({ version: '1', seed: 61 });
  exportBundle(toy, join(folder, '..', 'ctr_model'), 'layers');
  const serving = await ServingProcess.start(t, ['--conf-dir', folder]);
  await serving.waitUntilReady();
  const { body } = await serving.post('/GeneralModelService/inference', JSON.stringify(request));
  assert.equal(body.err_no ?? 0, 0, JSON.stringify(body));
  const score = toy.score({ dense: [Number.NaN, Number.NaN], categorical: ['a', 'b', 'c'] })[1];
  assert.ok(Math.abs(body.outputs[0].tensor[0].float_data[1] - score) < 1e-5);
  assert.equal(await serving.stop(), 0);
});

/** The conf folder of the original's ensemble: a reader, two models, a response. */
const ENSEMBLE = {
  'service.prototxt': `services { name: "GeneralModelService" workflows: "both" workflows: "third" }
services { name: "OnlyBow" workflows: "bow" merger: "default" }
`,
  'workflow.prototxt': `workflows {
  name: "both" workflow_type: "Parallel"
  nodes { name: "reader" type: "GeneralReaderOp" }
  nodes { name: "bow" type: "GeneralInferOp" dependencies { name: "reader" mode: "RO" } }
  nodes { name: "cnn" type: "GeneralInferOp" dependencies { name: "reader" mode: "RW" } }
  nodes {
    name: "response" type: "GeneralResponseOp"
    dependencies { name: "bow" mode: "RO" } dependencies { name: "cnn" mode: "RO" }
  }
}
workflows { name: "third" nodes { name: "lstm" type: "GeneralInferOp" } }
workflows { name: "bow" nodes { name: "bow" type: "GeneralInferOp" } }
`,
  'model_toolkit.prototxt': ['bow', 'cnn', 'lstm']
    .map((name) => `engines { name: "${name}" type: "PADDLE_INFER" model_dir: "${name}" }\n`)
    .join(''),
};

test('a service with several models answers an output of each, named after its node', async (t) => {
  const folder = writeConf(t, ENSEMBLE);
  const toys = ['bow', 'cnn', 'lstm'].map((name, i) => {
    const toy = new ToyBundle({ version: `${i + 1}`, seed: 71 + i });
    exportBundle(toy, join(folder, '..', name), 'layers');
    return [name, toy] as const;
  });
  const serving = await ServingProcess.start(t, ['--conf-dir', folder], {
    hasSeveralModels: true,
  });
  await serving.waitUntilReady();
  const ask = async (service: string) => {
    const { body } = await serving.post(`/${service}/inference`, JSON.stringify(request));
    assert.equal(body.err_no ?? 0, 0, JSON.stringify(body));
    return body.outputs as { engine_name: string; tensor: { float_data: number[] }[] }[];
  };
  const outputs = await ask('GeneralModelService');
  assert.deepEqual(
    outputs.map(({ engine_name: name }) => name),
    toys.map(([name]) => name),
  );
  const scores = outputs.map(({ tensor: [tensor] }) => tensor?.float_data[0] ?? 0);
  assert.equal(new Set(scores).size, 3);
  const [bow] = await ask('OnlyBow');
  assert.deepEqual(bow?.tensor, outputs[0]?.tensor);
  // Each output is that of its model alone.
  for (const [i, [name]] of toys.entries()) {
    const { body } = await serving.get(`/v2/models/${name}`);
    assert.equal(body.name, name);
    assert.ok(scores[i]);
  }
});

test('services of the general model reload as one unit', async (t) => {
  const folder = writeConf(t, ENSEMBLE);
  for (const [i, name] of ['bow', 'cnn', 'lstm'].entries()) {
    exportBundle(new ToyBundle({ version: '1', seed: 81 + i }), join(folder, '..', name), 'layers');
  }
  const serving = await ServingProcess.start(t, ['--conf-dir', folder], {
    hasSeveralModels: true,
  });
  await serving.waitUntilReady();
  const ask = async (service: string) => {
    const { status, body } = await serving.post(`/${service}/inference`, JSON.stringify(request));
    return status === 200
      ? body.outputs.map(({ engine_name: name }: { engine_name?: string }) => name)
      : status;
  };
  const write = (services: string) => {
    writeFileSync(join(folder, 'service.prototxt'), services);
    return serving.post('/v1/reload', '');
  };
  const all = await ask('GeneralModelService');
  assert.deepEqual(all, ['bow', 'cnn', 'lstm']);
  const general = 'services { name: "GeneralModelService" workflows: "third" workflows: "both" }';
  const wrong = await write(`${general} services { name: "OnlyBow" workflows: "none" }`);
  assert.ok(wrong.status >= 400);
  assert.match(wrong.body.error, /service OnlyBow: no workflow none/);
  const added = await write(`${general} services { name: "Another" workflows: "bow" }`);
  assert.match(added.body.error, /cannot change the new service Another; restart/);
  // Nothing of a change that is refused is active.
  assert.deepEqual(await ask('GeneralModelService'), all);
  const changed = await write(`${general} services { name: "OnlyBow" workflows: "both" }`);
  assert.equal(changed.status, 200, JSON.stringify(changed.body));
  assert.deepEqual(await ask('GeneralModelService'), ['lstm', 'bow', 'cnn']);
  assert.deepEqual(await ask('OnlyBow'), ['bow', 'cnn']);
  assert.equal((await write(general)).status, 200);
  assert.equal(await ask('OnlyBow'), 404);
});
