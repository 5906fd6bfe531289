import assert from 'node:assert/strict';
import { renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { openRepository } from '../../lib/repository/repository.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { runCommand } from '../support/commands.ts';
import { FLOAT, model, node, value } from '../tools/prune-model/support/onnx-builder.ts';
import {
  binaryBody,
  type Json,
  OipClient,
  postBinary,
  rawStrings,
} from './support/kserve-client.ts';
import { everyType, multiply, serve, TYPES } from './support/plain-models.ts';
import { ServingProcess } from './support/serving-process.ts';
import { TfsClient } from './support/tfs-client.ts';

/** JSON; answers have 64-bit integers as numbers with all digits. */
function toJson(values: readonly unknown[], datatype: string): string {
  return datatype.endsWith('INT64') ? `[${values.join()}]` : JSON.stringify(values);
}

test('every type passes as JSON, as binary data and over gRPC', async (t) => {
  const { serving } = await serve(t, { types: everyType });
  const inputs = TYPES.map(([, datatype, data]) => {
    return { name: `in_${datatype}`, datatype, shape: [1, 2], data };
  });
  const body = JSON.stringify({ id: '7', inputs });
  const response = await fetch(`${serving.url}/v2/models/types/infer`, { method: 'POST', body });
  const text = await response.text();
  assert.equal(response.status, 200, text);
  for (const [, datatype, values] of TYPES) {
    const output = `{"name":"out_${datatype}","datatype":"${datatype}","shape":[1,2],"data":`;
    assert.ok(text.includes(output + toJson(values, datatype)), `${datatype}: ${text}`);
  }

  const client = new OipClient(serving.url);
  t.after(() => client.close());
  const field: Record<string, string> = {
    BOOL: 'bool',
    BYTES: 'bytes',
    FP32: 'fp32',
    FP64: 'fp64',
  };
  const contentsField = (datatype: string): string => {
    const kind = datatype.startsWith('U') ? 'uint' : 'int';
    return `${field[datatype] ?? (datatype.endsWith('64') ? `${kind}64` : kind)}_contents`;
  };
  const typed = TYPES.map(([, datatype, values]) => {
    const sent = datatype === 'BYTES' ? values.map((x) => Buffer.from(String(x))) : values;
    const contents = { [contentsField(datatype)]: sent };
    return { name: `in_${datatype}`, datatype, shape: [1, 2], contents };
  });
  const parameters = { binary_data_output: { bool_param: false } };
  const request = { model_name: 'types', inputs: typed, parameters };
  const { outputs } = await client.call('ModelInfer', request);
  for (const [i, [, datatype, values]] of TYPES.entries()) {
    assert.equal(outputs[i].datatype, datatype);
    const received = outputs[i].contents[contentsField(datatype)];
    const expected = datatype === 'BYTES' ? values.map((x) => Buffer.from(String(x))) : values;
    assert.deepEqual(received, expected);
  }
});

test('half floats and strings pass as binary data, bit by bit', async (t) => {
  const bytes = model({
    inputs: [value('h', 10, ['batch', 2]), value('s', 8, ['batch'])],
    outputs: [value('h2', 10, ['batch', 2]), value('s2', 8, ['batch'])],
    nodes: [node('Identity', ['h'], ['h2']), node('Identity', ['s'], ['s2'])],
  });
  const { serving } = await serve(t, { half: bytes });
  const half = Buffer.from([1, 60, 0, 124, 255, 255, 0, 0]);
  const texts = rawStrings(['tab\there', '']);
  const inputs = [
    { name: 'h', datatype: 'FP16', shape: [2, 2], raw: half },
    { name: 's', datatype: 'BYTES', shape: [2], raw: texts },
  ];
  const path = '/v2/models/half/infer';
  for (const pad of [0, 1, 2, 3]) {
    const more = { parameters: { binary_data_output: true } };
    const answer = await postBinary(serving, path, binaryBody(inputs, more, pad));
    assert.equal(answer.status, 200, JSON.stringify(answer.json));
    assert.deepEqual(answer.outputs.get('h2'), half);
    assert.deepEqual(answer.outputs.get('s2'), Buffer.from(texts));
  }
  const asJson = await postBinary(serving, path, binaryBody(inputs));
  assert.equal(asJson.status, 400);
  assert.match(asJson.json.error, /output "h2": FP16 has no form in JSON; ask for binary data/);
  const one = await postBinary(serving, path, binaryBody(inputs, { outputs: [{ name: 's2' }] }));
  assert.deepEqual(one.json.outputs, [
    { name: 's2', datatype: 'BYTES', shape: [2], data: ['tab\there', ''] },
  ]);
});

test('metadata, configuration, statistics and readiness describe a plain model', async (t) => {
  const { serving } = await serve(t, { types: everyType, double: multiply(2) });
  const { body: metadata } = await serving.get('/v2/models/double');
  assert.deepEqual(metadata.inputs, [{ name: 'x', datatype: 'FP32', shape: [-1, -1] }]);
  assert.deepEqual(metadata.versions, ['1']);
  const { body: config } = await serving.get('/v2/models/types/config');
  const strings = config.input.find(({ name }: { name: string }) => name === 'in_BYTES');
  assert.deepEqual(strings, { name: 'in_BYTES', data_type: 'TYPE_STRING', dims: [2] });
  const request = { inputs: [{ name: 'x', datatype: 'FP32', shape: [3, 1], data: [1, 2, 'NaN'] }] };
  const text = JSON.stringify(request).replace('"NaN"', 'NaN');
  const answer = await fetch(`${serving.url}/v2/models/double/infer`, {
    method: 'POST',
    body: text,
  });
  assert.match(await answer.text(), /"data":\[2,4,NaN\]/);
  const { body: stats } = await serving.get('/v2/models/double/stats');
  assert.equal(stats.model_stats[0].inference_count, 3);
  assert.equal(stats.model_stats[0].execution_count, 1);
  const { body: index } = await serving.post('/v2/repository/index', '');
  assert.deepEqual(
    index.map(({ name, state }: Record<string, string>) => [name, state]),
    [
      ['types', 'READY'],
      ['double', 'READY'],
    ],
  );
  const ctr = await serving.postTsv('1\t2\n', 'double');
  assert.equal(ctr.status, 400);
  assert.match(
    ctr.body.error,
    /double takes tensors, not rows of features: call it over KServe v2/,
  );
  const metrics = await (await fetch(`${serving.url}/metrics`)).text();
  assert.match(metrics, /hypercube_engine_rows_total\{model="double",version="1"\} 3/);
});

test('a file that changes is served as the next version; a damaged one is not', async (t) => {
  const { serving, folder } = await serve(t, { double: multiply(2) });
  const ask = async (): Promise<[string, number]> => {
    const inputs = [{ name: 'x', datatype: 'FP32', shape: [1, 1], data: [1] }];
    const { body } = await serving.post('/v2/models/double/infer', JSON.stringify({ inputs }));
    return [body.model_version, body.outputs[0].data[0]];
  };
  assert.deepEqual(await ask(), ['1', 2]);
  const replace = (bytes: Uint8Array): void => {
    writeFileSync(join(folder, 'new'), bytes);
    renameSync(join(folder, 'new'), join(folder, 'double.onnx'));
  };
  replace(multiply(2).subarray(0, 60));
  await serving.waitFor('/v1/status', ({ body }) => body.models[0].failed.length > 0);
  assert.deepEqual(await ask(), ['1', 2]);
  replace(multiply(30));
  await serving.waitFor('/v1/status', ({ body }) => body.models[0].active === '3');
  assert.deepEqual(await ask(), ['3', 30]);
});

test('hostile tensors are refused with the name of the input', async (t) => {
  const { serving } = await serve(t, { types: everyType, double: multiply(2) });
  const refuse = async (input: object, message: RegExp, name = 'double'): Promise<void> => {
    const body = JSON.stringify({ inputs: [{ name: 'x', datatype: 'FP32', ...input }] });
    const answer = await serving.post(`/v2/models/${name}/infer`, body);
    assert.equal(answer.status, 400, JSON.stringify(answer.body));
    assert.match(answer.body.error, message);
  };
  await refuse({ shape: [1], data: [1] }, /input "x": shape: expected \[batch, n\], got \[1\]/);
  await refuse({ shape: [-1, 1], data: [] }, /shape/);
  await refuse({ shape: [2 ** 40, 2 ** 40], data: [] }, /input "x": shape: over \d+ elements/);
  await refuse({ shape: [2, 2], data: [1, 2, 3] }, /input "x": data: expected 4 values/);
  await refuse({ shape: [1, 1], data: ['1'] }, /input x, value 0/);
  await refuse({ shape: [1, 1], datatype: 'INT32', data: [1] }, /expected FP32, got INT32/);
  await refuse({ shape: [1, 1], datatype: 'FLOAT', data: [1] }, /datatype: expected one of/);
  await refuse({ shape: [1, 1], data: [1], name: 'z' }, /expected an input x too/);
  const raw = async (datatype: string, bytes: Uint8Array, message: RegExp): Promise<void> => {
    const inputs = [{ name: `in_${datatype}`, datatype, shape: [1, 2], raw: bytes }];
    const answer = await postBinary(serving, '/v2/models/types/infer', binaryBody(inputs));
    assert.equal(answer.status, 400);
    assert.match(answer.json.error, message);
  };
  await raw('BOOL', Uint8Array.of(1, 2), /input "in_BOOL": value 1: expected 0 or 1, got 2/);
  await raw('BYTES', Uint8Array.of(9, 0, 0, 0, 65, 0, 0, 0), /input "in_BYTES": data: .* end/);
  await raw(
    'BYTES',
    Uint8Array.of(1, 0, 0, 0, 255, 0, 0, 0, 0),
    /input "in_BYTES": value 0: not UTF-8/,
  );
  await raw('INT64', new Uint8Array(15), /input "in_INT64": data: expected 2 values of 8 bytes/);
});

test('a published plain model follows its channel, forward and back', async (t) => {
  const folder = temporaryFolder(t);
  const repo = join(folder, 'repo');
  const factors = { 1: 2, 2: 30 };
  for (const [version, factor] of Object.entries(factors)) {
    writeFileSync(join(folder, 'model.onnx'), multiply(factor));
    const flags = ['graph', '--plain', '--model', join(folder, 'model.onnx'), '--bundle', 'double'];
    const target = ['--output-path', repo, '--cur-version', version];
    const { code, stderr } = await runCommand('tools/cube-builder/main.js', ...flags, ...target);
    assert.equal(code, 0, stderr);
  }
  const channels = openRepository(repo);
  const activate = (version: string): Promise<unknown> =>
    channels.activate('double', 'stable', { version, by: 'test', reason: 'test' });
  await activate('1');
  const flags = ['--repository', repo, '--bundle', 'double', '--instances', '1'];
  const serving = await ServingProcess.start(t, flags);
  const ask = async (version: string): Promise<number> => {
    await serving.waitFor('/v1/status', ({ body }) => body.models[0].active === version);
    const inputs = [{ name: 'x', datatype: 'FP32', shape: [1, 1], data: [1] }];
    const { body } = await serving.post('/v2/models/double/infer', JSON.stringify({ inputs }));
    assert.equal(body.model_version, version);
    return body.outputs[0].data[0];
  };
  assert.equal(await ask('1'), 2);
  await activate('2');
  assert.equal(await ask('2'), 30);
  await channels.rollback('double', 'stable', 'test', 'test');
  assert.equal(await ask('1'), 2);
});

test('TensorFlow Serving clients send and get nested lists of any type', async (t) => {
  const bytes = model({
    inputs: [
      value('m', FLOAT, ['batch', 2, 'n']),
      value('s', 8, ['batch']),
      value('b', 9, ['batch']),
    ],
    outputs: [
      value('m2', FLOAT, ['batch', 2, 'n']),
      value('s2', 8, ['batch']),
      value('b2', 9, ['batch']),
    ],
    nodes: ['m', 's', 'b'].map((name) => node('Identity', [name], [`${name}2`])),
  });
  const { serving } = await serve(t, { mixed: bytes, double: multiply(2) });
  const call = async (name: string, body: string): Promise<{ status: number; text: string }> => {
    const init = { method: 'POST', body };
    const response = await fetch(`${serving.url}/v1/models/${name}:predict`, init);
    return { status: response.status, text: await response.text() };
  };
  const rows = [
    { m: [[1.5], [2]], s: 'é', b: true },
    { m: [[3], [-4]], s: { b64: 'dGV4dA==' }, b: false },
  ];
  const byRow = await call('mixed', JSON.stringify({ instances: rows }));
  assert.equal(byRow.status, 200, byRow.text);
  assert.deepEqual(JSON.parse(byRow.text).predictions, [
    { m2: [[1.5], [2]], s2: 'é', b2: true },
    { m2: [[3], [-4]], s2: 'text', b2: false },
  ]);
  const inputs = { m: rows.map(({ m }) => m), s: ['a', ''], b: [false, true] };
  const byColumn = await call('mixed', JSON.stringify({ inputs }));
  assert.deepEqual(JSON.parse(byColumn.text).outputs, {
    m2: inputs.m,
    s2: ['a', ''],
    b2: inputs.b,
  });
  assert.deepEqual(await call('double', '{"instances":[[1,2],[3,NaN]]}'), {
    status: 200,
    text: '{"predictions":[[2,4],[6,NaN]]}',
  });
  const empty = rows.map((row) => ({ ...row, m: [[], []] }));
  const { predictions } = JSON.parse(
    (await call('mixed', JSON.stringify({ instances: empty }))).text,
  );
  assert.deepEqual(predictions[1], { m2: [[], []], s2: 'text', b2: false });
  assert.equal((await call('double', '{"instances":[[],[]]}')).text, '{"predictions":[[],[]]}');
  const refuse = async (name: string, body: object, message: RegExp): Promise<void> => {
    const { status, text } = await call(name, JSON.stringify(body));
    assert.equal(status, 400, text);
    assert.match(text, message);
  };
  await refuse('double', { instances: [[1, 2], [3]] }, /input x: lists of different lengths/);
  await refuse('double', { instances: [[1], [[2]]] }, /input x: /);
  await refuse('double', { inputs: { z: [[1]] } }, /input z: expected one of x/);
  await refuse('double', { instances: [['1']] }, /input x/);
  await refuse('mixed', { instances: [{ m: [[1], [2]] }] }, /an input s too/);
  const { body } = await serving.get('/v1/models/mixed/metadata');
  const { inputs: infos } = body.metadata.signature_def.signature_def.serving_default;
  assert.deepEqual(
    Object.values(infos as Record<string, { dtype: string }>).map(({ dtype }) => dtype),
    ['DT_FLOAT', 'DT_STRING', 'DT_BOOL'],
  );
});

test('a plain model that cannot have the precision is not served, with the reason', async (t) => {
  const file = join(temporaryFolder(t), 'double.onnx');
  writeFileSync(file, multiply(2));
  const serving = await ServingProcess.start(t, ['--model', file, '--precision', 'int8']);
  const reason = /double 1: model.onnx: precision int8 changes nothing/;
  await serving.waitFor('/v1/status', ({ body }) => reason.test(JSON.stringify(body)));
});

test('Predict of TensorFlow Serving over gRPC passes every type, and scalars', async (t) => {
  const bytes = model({
    inputs: [
      value('i', 7, ['batch', 2]),
      value('s', 8, ['batch']),
      value('h', 10, ['batch']),
      value('b', 16, ['batch']),
    ],
    outputs: [
      value('i2', 7, ['batch', 2]),
      value('s2', 8, ['batch']),
      value('h2', 10, ['batch']),
      value('b2', 16, ['batch']),
    ],
    nodes: ['i', 's', 'h', 'b'].map((name) => node('Identity', [name], [`${name}2`])),
  });
  const scalar = model({
    inputs: [value('x', FLOAT, [])],
    outputs: [value('y', FLOAT, [])],
    nodes: [node('Neg', ['x'], ['y'])],
  });
  const { serving } = await serve(t, { mixed: bytes, scalar });
  const client = new TfsClient(serving.url);
  t.after(() => client.close());
  const shape = (...dims: number[]): object => ({ dim: dims.map((size) => ({ size })) });
  const inputs = {
    i: { dtype: 9, tensor_shape: shape(1, 2), int64_val: ['-9007199254740993', '4'] },
    s: { dtype: 7, tensor_shape: shape(1), string_val: [Buffer.from('é')] },
    h: { dtype: 19, tensor_shape: shape(1), half_val: [0x3c00] },
    b: { dtype: 14, tensor_shape: shape(1), half_val: [0xbf81] },
  };
  const ask = async (own: object): Promise<Json> => {
    return (await client.predict({ model_spec: { name: 'mixed' }, inputs: own })).outputs;
  };
  const raw = Buffer.alloc(16);
  raw.writeBigInt64LE(-9_007_199_254_740_993n);
  raw.writeBigInt64LE(4n, 8);
  const content = { dtype: 9, tensor_shape: shape(1, 2), tensor_content: raw };
  for (const given of [inputs, { ...inputs, i: content }]) {
    const { i2, s2, h2, b2 } = await ask(given);
    assert.deepEqual(i2.int64_val, ['-9007199254740993', '4']);
    assert.equal(s2.string_val[0].toString(), 'é');
    assert.deepEqual(h2.half_val, [0x3c00]);
    assert.deepEqual([b2.dtype, b2.half_val], ['DT_BFLOAT16', [0xbf81]]);
  }
  const x = { dtype: 1, float_val: [2.5] };
  const { outputs } = await client.predict({ model_spec: { name: 'scalar' }, inputs: { x } });
  assert.deepEqual(outputs.y.float_val, [-2.5]);
  await assert.rejects(ask({ ...inputs, i: { ...content, dtype: 3 } }), /input "i"/);
});

test('metadata over gRPC, of both protocols, has types and dynamic dimensions', async (t) => {
  const { serving } = await serve(t, { types: everyType, double: multiply(2) });
  const tfs = new TfsClient(serving.url);
  const oip = new OipClient(serving.url);
  t.after(() => {
    tfs.close();
    oip.close();
  });
  const ask = (field: string, name = 'types'): Promise<Json> =>
    tfs.getSignature({ model_spec: { name }, metadata_field: [field] });
  const { model_spec, signature_def } = await ask('signature_def');
  assert.deepEqual([model_spec.name, model_spec.version.value], ['types', '1']);
  const { inputs, outputs, method_name } = signature_def.serving_default;
  assert.equal(method_name, 'tensorflow/serving/predict');
  assert.equal(inputs.in_INT64.dtype, 'DT_INT64');
  assert.equal(outputs.out_BYTES.dtype, 'DT_STRING');
  const sizes = inputs.in_BOOL.tensor_shape.dim.map(({ size }: Json) => size);
  assert.deepEqual(sizes, ['-1', '2']);
  await assert.rejects(ask('other'), /metadata_field: expected signature_def, got "other"/);
  await assert.rejects(ask('signature_def', 'none'), /unknown model/);

  const metadata = await oip.call('ModelMetadata', { name: 'types' });
  assert.deepEqual(
    metadata.inputs.map(({ datatype, shape }: Json) => [datatype, shape]),
    TYPES.map(([, datatype]) => [datatype, ['-1', '2']]),
  );
  const { config } = await oip.call('ModelConfig', { name: 'types' });
  assert.deepEqual(
    config.input.map(({ data_type }: Json) => data_type),
    TYPES.map(([, datatype]) => `TYPE_${datatype === 'BYTES' ? 'STRING' : datatype}`),
  );
});

test('a stream answers every request of a plain model, in order, also failing ones', async (t) => {
  const { serving } = await serve(t, { double: multiply(2) });
  const client = new OipClient(serving.url);
  t.after(() => client.close());
  const requests = Array.from({ length: 20 }, (_, i) => ({
    model_name: i === 7 ? 'none' : 'double',
    id: `${i}`,
    inputs: [{ name: 'x', datatype: i === 3 ? 'INT32' : 'FP32', shape: [1, 1] }],
    raw_input_contents: [Buffer.from(Float32Array.of(i).buffer)],
  }));
  const answers = await client.stream(requests);
  assert.deepEqual(
    answers.map(({ infer_response: { id } }) => id),
    requests.map(({ id }) => id),
  );
  for (const [i, { error_message, infer_response }] of answers.entries()) {
    if (i === 3) assert.match(error_message, /input "x": datatype: expected FP32, got INT32/);
    else if (i === 7) assert.match(error_message, /unknown model/);
    else assert.equal(infer_response.raw_output_contents[0].readFloatLE(0), 2 * i);
  }
});
