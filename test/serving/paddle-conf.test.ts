/** Paddle Serving's conf folder as its users have it: what becomes of every setting, and what is refused by its name. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { it, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { CubeError } from '../../lib/core/errors.ts';
import { readPaddleConf } from '../../serving/config/paddle-conf.ts';
import { completeConfig } from '../../serving/config/serving-config.ts';
import { temporaryFolder } from '../repository/fixtures.ts';
import { ServingProcess } from './serving-process.ts';
import { exportTo, keyOf, ToyBundle } from './toy-bundle.ts';

const MAIN = fileURLToPath(new URL('../../serving/main.js', import.meta.url));

/** The CTR example's files, with what its users have added over the years. */
const FILES = {
  'gflags.conf': `# flags
--port=9393
--max_concurrency=32
--reload_interval_s=1
--num_threads=4
--request_cache_size=1048576
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
  'general_model.prototxt': `feed_var { name: "C1" alias_name: "embedding_0" is_lod_tensor: true feed_type: 0 shape: -1 }
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

it('the CTR example: every setting becomes one of ours, or is listed with why', (t) => {
  const folder = writeConf(t);
  const root = join(folder, '..');
  const { settings, ignored } = readPaddleConf(folder);
  const { models, services, port, inFlightMax } = completeConfig(settings);
  assert.deepEqual([port, inFlightMax], [8010, 32]);
  const [service] = services;
  assert.deepEqual(
    services.map(({ name, model }) => [name, model]),
    [['GeneralModelService', 'general_dist_kv_infer_0']],
  );
  assert.equal(service!.aliases!.get('predict'), 'prob');
  const [model] = models;
  assert.deepEqual(model!.source, {
    ...{ kind: 'folder', folder: join(root, 'ctr_model') },
    ...{ reload: 'timestamp_ne', reloadFile: 'fluid_time_file' },
  });
  assert.deepEqual(model!.store, { kind: 'remote', fleetPath: join(folder, 'cube.conf') });
  assert.deepEqual(
    [model!.instances, model!.batching.maxBatch, model!.pollMs, model!.requestCacheBytes],
    [2, 16, 1_000, 1_048_576],
  );
  const lines = ignored.map(({ setting, why }) => `${setting}: ${why}`).join('\n');
  for (const line of [
    /gflags\.conf:5 --num_threads: /,
    /service\.prototxt:6 service EchoService: its workflow only echoes/,
    /resource\.prototxt:5 cube_quant_bits: tables say their own dtype/,
    /model_toolkit\.prototxt:7 gpu_ids: CPU only/,
    /model_toolkit\.prototxt:8 use_gpu: CPU only/,
  ]) {
    assert.match(lines, line);
  }
  assert.equal(ignored.length, 5, lines);
});

it('what would change answers is refused, with file, line and name', (t) => {
  const workflow = (text: string): Record<string, string> => ({
    'workflow.prototxt': `workflows { name: "workflow1" ${text} }`,
  });
  const toolkit = (from: string, to: string): Record<string, string> => ({
    'model_toolkit.prototxt': FILES['model_toolkit.prototxt'].replace(from, to),
  });
  const cases: [Record<string, string>, RegExp][] = [
    [
      workflow('nodes { name: "x" type: "MyFilterOp" }'),
      /workflow\.prototxt:1:\d+: .*operator MyFilterOp is not built in/,
    ],
    [workflow('workflow_type: "Parallel"'), /"Parallel" was never executed/],
    [workflow('nodes { name: "a" type: "GeneralReaderOp" }'), /one inferring operator, got 0/],
    [
      { 'service.prototxt': 'services { name: "S" workflows: "other" }' },
      /service\.prototxt:1:\d+: service S: there is no workflow other/,
    ],
    [toolkit('"timestamp_ne"', '"hourly"'), /reloadable_type: expected one of timestamp_ne/],
    [toolkit('REMOTE', 'NEARBY'), /expected NONE, LOCAL or REMOTE, got NEARBY/],
    [toolkit('gpu_ids: 0', 'encrypted_model: true'), /encrypted models are not read/],
    [
      toolkit('batch_infer_size: 16', 'batch_infer_size: 0'),
      /batch_infer_size: expected an integer in 1\.\.4096/,
    ],
    [{ 'gflags.conf': '--port=many' }, /gflags\.conf:1: expected an integer/],
    [{ 'gflags.conf': '--flagfile=gflags.conf' }, /in a circle/],
    [{ 'resource.prototxt': 'cube_config_path: "conf"' }, /model_toolkit_file are missing/],
  ];
  for (const [replaced, message] of cases) {
    const folder = writeConf(t, replaced);
    assert.throws(
      () => readPaddleConf(folder),
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
    () => readPaddleConf(folder),
    /a model in Paddle.s own format; make a bundle of it \(prune-model --to onnx/,
  );
});

/** One row by the names that callers use: an alias of the configuration, slots, the dense features as the graph takes them. */
const request = {
  tensor: [
    ...['embedding_0', 'C2', 'C3'].map((name, slot) => ({
      ...{ name, elem_type: 0, shape: [1, 1] },
      int64_data: [String(keyOf(slot, ['a', 'b', 'c'][slot]!))],
    })),
    { name: 'dense_input', elem_type: 1, shape: [1, 2], float_data: [-0.625, -0.125] },
  ],
  fetch_var_names: ['predict'],
};

it('a conf folder is served as it is, by its service’s name', async (t) => {
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
  assert.match(checked.stdout, /^ignored: .*use_gpu \(CPU only\)$/m);
  const toy = new ToyBundle({ version: '1', seed: 61 });
  exportTo(toy, join(folder, '..', 'ctr_model'), 'layers');
  const serving = await ServingProcess.start(t, ['--conf-dir', folder]);
  await serving.untilReady();
  const { body } = await serving.post('/GeneralModelService/inference', JSON.stringify(request));
  assert.equal(body.err_no ?? 0, 0, JSON.stringify(body));
  const score = toy.score({ dense: [Number.NaN, Number.NaN], categorical: ['a', 'b', 'c'] })[1];
  assert.ok(Math.abs(body.outputs[0].tensor[0].float_data[1] - score) < 1e-5);
  assert.equal(await serving.stop(), 0);
});
