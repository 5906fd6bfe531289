/** config.yml of a pipeline: defaults, positions of errors, explanations, the schema. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { Ajv } from 'ajv';
import { loadYaml } from '../../../lib/platform/yaml.ts';
import {
  checkPipelineConfig,
  formatPipelineReport,
  parsePipelineConfig,
} from '../../../serving/config/pipeline-config.ts';
import { Op, RequestOp, ResponseOp } from '../../../serving/pipeline/op.ts';
import { servePipeline } from '../support/served-pipeline.ts';

/** As people write it for the original: capitals, comments, empty values, quotes. */
const ENSEMBLE = `
# ports
rpc_port: 18070
http_port: 18071
worker_num: 4
build_dag_each_worker: False
dag:
    is_thread_op: True
    retry: 2
    use_profile: False
    channel_size: 0
    tracer:
        interval_s: 10
op:
    bow:
        concurrency: 3
        client_type: brpc
        timeout: 3000
        server_endpoints: ["127.0.0.1:9393"]
        client_config: "bow/serving_client_conf.prototxt"
        fetch_list: ["prediction"]
        batch_size: 4
        auto_batching_timeout: 2000
    bert:
        local_service_conf:
            client_type: local_predictor
            device_type: 1
            devices: '2'
            fetch_list:
            model_config: bert_model/
    combine:
`;

function explain(text: string): Map<string, string> {
  const { explanations } = parsePipelineConfig(text, 'config.yml');
  return new Map(explanations.map(({ field, effect }) => [field, effect]));
}

test('a config.yml of the original is read with its values; what it omits stays unset', () => {
  const config = parsePipelineConfig(ENSEMBLE, 'config.yml');
  assert.deepEqual(config.server, {
    rpc_port: 18_070,
    http_port: 18_071,
    worker_num: 4,
    build_dag_each_worker: false,
  });
  assert.deepEqual(config.dag, {
    is_thread_op: true,
    retry: 2,
    use_profile: false,
    channel_size: 0,
  });
  assert.equal(config.tracerIntervalS, 10);
  assert.deepEqual([...config.ops.keys()], ['bow', 'bert']);
  assert.deepEqual(config.ops.get('bow')?.server_endpoints, ['127.0.0.1:9393']);
  assert.equal(config.ops.get('bow')?.retry, undefined);
  assert.deepEqual(config.ops.get('bert'), {
    local_service_conf: {
      model_config: 'bert_model/',
      client_type: 'local_predictor',
      device_type: 1,
      devices: '2',
    },
  });
  checkPipelineConfig(config);
});

test('every field is explained with its effect, its value and where it was given', () => {
  const effects = explain(ENSEMBLE);
  assert.equal(effects.get('op.bow.timeout'), 'honoured');
  assert.equal(effects.get('op.bert.local_service_conf.devices'), 'honoured');
  assert.equal(effects.get('op.bert.local_service_conf.device_type'), 'honoured');
  assert.equal(effects.get('op.bert.local_service_conf.mem_optim'), 'ignored');
  assert.equal(effects.get('dag.tracer.interval_s'), 'honoured');
  assert.equal(effects.get('dag.use_profile'), 'honoured');
  assert.equal(effects.get('worker_num'), 'honoured');
  const processes = explain('rpc_port: 1\nbuild_dag_each_worker: true\ndag: {is_thread_op: false}');
  assert.equal(processes.get('build_dag_each_worker'), 'honoured');
  assert.equal(processes.get('dag.is_thread_op'), 'honoured');
  const report = formatPipelineReport(parsePipelineConfig(ENSEMBLE, 'config.yml'));
  assert.match(report, /^honoured: op\.bow\.timeout = 3000 \(config\.yml:18:\d+; limit /m);
  assert.match(report, /^honoured: op\.bow\.retry = 1 \(default; /m);
  // The documented defaults.
  assert.match(report, /local_service_conf\.mem_optim = true \(default/);
  assert.match(report, /local_service_conf\.ir_optim = false \(default/);
  assert.match(report, /local_service_conf\.min_subgraph_size = 3 \(default/);
  assert.match(report, /op\.bert\.auto_batching_timeout = -1 \(default; .*for ever/);
  const cpu = explain('rpc_port: 1\nop: {a: {local_service_conf: {model_config: m}}}');
  assert.equal(cpu.get('op.a.local_service_conf.device_type'), 'honoured');
});

test('values that would change answers are refused by name', () => {
  for (const [field, value] of [
    ['use_calib', 'true'],
    ['mkldnn_bf16_op_list', '[conv2d]'],
  ]) {
    const text = `rpc_port: 1\nop:\n  a:\n    local_service_conf:\n      ${field}: ${value}\n`;
    const config = parsePipelineConfig(text, 'config.yml');
    assert.throws(() => checkPipelineConfig(config), {
      code: 'INVALID_ARGUMENT',
      message: new RegExp(`^config\\.yml:5:\\d+: op\\.a\\.local_service_conf\\.${field}: `),
    });
  }
  const encrypted = parsePipelineConfig(
    'rpc_port: 1\nop: {a: {use_encryption_model: true}}',
    'config.yml',
  );
  assert.throws(() => checkPipelineConfig(encrypted), /encrypted Paddle models/);
});

test('errors name the position and the nearest field', () => {
  const cases: readonly (readonly [string, RegExp])[] = [
    ['worker_num: 2\n', /rpc_port and http_port are missing/],
    ['rpc_port: 70000\n', /config\.yml:1:11: rpc_port: expected an integer in 0\.\.65535/],
    ['rpc_port: 1\ndag: {client_type: http}\n', /dag\.client_type: expected one of brpc, grpc/],
    ['rpc_port: 1\ndag: {chanel_size: 1}\n', /unknown field "chanel_size" .*channel_size/],
    ['rpc_port: 1\nop: {a: {concurrency: 0}}\n', /op\.a\.concurrency: expected an integer/],
    [
      'rpc_port: 1\nop: {a: {local_service_conf: {precision: fp8}}}\n',
      /precision: expected one of/,
    ],
    ['rpc_port: 1\nop: {a: {}, a: {}}\n', /unique/i],
  ];
  for (const [text, message] of cases) {
    assert.throws(() => parsePipelineConfig(text, 'config.yml'), message);
  }
});

test('the schema accepts what the reader accepts, and has the same fields', () => {
  const schema = JSON.parse(readFileSync('docs/schemas/pipeline.schema.json', 'utf8'));
  const validate = new Ajv({ allErrors: true, allowUnionTypes: true }).compile(schema);
  assert.ok(validate(loadYaml().parse(ENSEMBLE)), JSON.stringify(validate.errors));
  for (const text of ['worker_num: 1', 'rpc_port: 70000', 'rpc_port: 1\nop: {a: {retrys: 1}}']) {
    assert.equal(validate(loadYaml().parse(text)), false, text);
    assert.throws(() => parsePipelineConfig(text, 'config.yml'));
  }
  const { properties } = schema;
  const op = properties.op.additionalProperties.properties;
  const local = op.local_service_conf.properties;
  const named = (fields: object, prefix: string): string[] =>
    Object.keys(fields)
      .filter((name) => !['dag', 'op', 'tracer', 'local_service_conf'].includes(name))
      .map((name) => `${prefix}${name}`);
  const fields: string[] = [
    ...named(properties, ''),
    ...named(properties.dag.properties, 'dag.'),
    'dag.tracer.interval_s',
    ...named(op, 'op.a.'),
    ...named(local, 'op.a.local_service_conf.'),
  ];
  // Each field of the schema is known to the reader: an unknown one would be named.
  for (const field of fields) {
    const value = field.split('.').reduceRight<unknown>((inner, name) => ({ [name]: inner }), null);
    parsePipelineConfig(
      loadYaml().stringify({ rpc_port: 1, http_port: 1, ...(value as object) }),
      'config.yml',
    );
  }
});

test('an endpoint that is none is refused with the name of its op', async (t) => {
  const op = new Op({ name: 'rank', inputs: [new RequestOp()] });
  const ops = new ResponseOp({ inputs: [op] });
  const config = 'op: {rank: {server_endpoints: [nohost]}}';
  await assert.rejects(
    servePipeline(t, { ops }, { config }),
    /op rank: server_endpoints: .*expected host:port, got "nohost"/,
  );
});
