/**
 * The examples of plain models: the commands of their pages, and the requests of Triton's example
 * clients (simple_http_infer_client, simple_grpc_infer_client and their variants for strings, 8-bit
 * integers and explicit contents) as tritonclient sends them.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { type Json, OipClient, postBinary, rawStrings } from './support/kserve-client.ts';
import { connectClients } from './support/paddle-client.ts';
import { ServingProcess } from './support/serving-process.ts';

const EXAMPLES = join(import.meta.dirname, '../../../examples');
const SHAPE = [1, 16];
/** 0 … 15 and sixteen times 1, as the clients send them, with their sums and differences. */
const COUNTING = Array.from({ length: 16 }, (_, i) => i);
const ONES = COUNTING.map(() => 1);
const SUMS = COUNTING.map((i) => i + 1);
const DIFFERENCES = COUNTING.map((i) => i - 1);

interface Input {
  readonly name: string;
  readonly datatype: string;
  /** Elements in JSON, or bytes after it. */
  readonly data: readonly unknown[] | Uint8Array;
}

/** A request as tritonclient's HTTP client writes it: some inputs in JSON, some as bytes. */
function makeBody(inputs: readonly Input[], more: object): Parameters<typeof postBinary>[2] {
  const heads = inputs.map(({ name, datatype, data }) => {
    const head = { name, shape: SHAPE, datatype };
    return data instanceof Uint8Array
      ? { ...head, parameters: { binary_data_size: data.length } }
      : { ...head, data };
  });
  const json = Buffer.from(JSON.stringify({ inputs: heads, ...more }));
  const bytes = inputs.flatMap(({ data }) => (data instanceof Uint8Array ? [data] : []));
  return {
    body: Buffer.concat([json, ...bytes]),
    headers: { 'inference-header-content-length': String(json.length) },
  };
}

const MIXED_OUTPUTS = {
  outputs: [
    { name: 'OUTPUT0', parameters: { binary_data: true } },
    { name: 'OUTPUT1', parameters: { binary_data: false } },
  ],
};
const BINARY_OUTPUTS = { parameters: { binary_data_output: true } };

function toInt32Bytes(values: readonly number[]): Uint8Array {
  return new Uint8Array(Int32Array.from(values).buffer);
}

function readInt32(bytes: Buffer | undefined): number[] {
  const count = (bytes?.length ?? 0) / 4;
  return Array.from({ length: count }, (_, i) => bytes?.readInt32LE(4 * i) ?? Number.NaN);
}

function readStrings(bytes: Buffer | undefined): string[] {
  const texts: string[] = [];
  for (let at = 0; bytes !== undefined && at < bytes.length; ) {
    const end = at + 4 + bytes.readUInt32LE(at);
    texts.push(bytes.toString('utf8', at + 4, end));
    at = end;
  }
  return texts;
}

/** Runs the curl commands of a page, and compares the answers with those in the page. */
function checkCommands(page: string, url: string): void {
  const text = readFileSync(join(EXAMPLES, page, 'README.md'), 'utf8');
  const pairs = [...text.matchAll(/```sh\n(curl .*)\n```\n\n```json\n(.*)\n```/g)];
  assert.ok(pairs.length > 0, page);
  for (const [, command = '', answer = ''] of pairs) {
    const local = command.replace('localhost:8080', new URL(url).host);
    const options = { cwd: join(EXAMPLES, '..'), encoding: 'utf8' } as const;
    const { stdout } = spawnSync('sh', ['-c', local], options);
    const [actual, expected] = [JSON.parse(stdout), JSON.parse(answer)];
    // Processors round products differently.
    for (const { outputs } of [actual, expected]) {
      for (const output of outputs) output.data = output.data.map((x: number) => x.toFixed(3));
    }
    assert.deepEqual(actual, expected, command);
  }
}

async function checkHttpClients(t: TestContext, serving: ServingProcess): Promise<void> {
  const post = (model: string, inputs: readonly Input[], more: object) =>
    postBinary(serving, `/v2/models/${model}/infer?test_1=1&test_2=2`, makeBody(inputs, more));

  await t.test('simple_http_infer_client', async () => {
    const negated = COUNTING.map(() => -1);
    const inputs = [
      { name: 'INPUT0', datatype: 'INT32', data: COUNTING },
      { name: 'INPUT1', datatype: 'INT32', data: toInt32Bytes(negated) },
    ];
    const mixed = await post('simple', inputs, MIXED_OUTPUTS);
    assert.deepEqual(readInt32(mixed.outputs.get('OUTPUT0')), DIFFERENCES);
    assert.deepEqual(mixed.json.outputs[1].data, SUMS);
    const binary = await post('simple', inputs, BINARY_OUTPUTS);
    assert.deepEqual(readInt32(binary.outputs.get('OUTPUT0')), DIFFERENCES);
    assert.deepEqual(readInt32(binary.outputs.get('OUTPUT1')), SUMS);
    const { body: statistics } = await serving.get('/v2/models/simple/stats');
    assert.equal(statistics.model_stats.length, 1);
    const unknown = await post('wrong_model_name', inputs, MIXED_OUTPUTS);
    assert.match(unknown.json.error, /^Request for unknown model/);
  });

  await t.test('simple_http_string_infer_client', async () => {
    const inputs = [
      { name: 'INPUT0', datatype: 'BYTES', data: rawStrings(COUNTING.map(String)) },
      { name: 'INPUT1', datatype: 'BYTES', data: ONES.map(String) },
    ];
    const { outputs, json } = await post('simple_string', inputs, MIXED_OUTPUTS);
    assert.deepEqual(readStrings(outputs.get('OUTPUT0')), SUMS.map(String));
    assert.deepEqual(json.outputs[1].data, DIFFERENCES.map(String));
    const bad = [{ ...inputs[0], data: rawStrings(COUNTING.map(() => 'x')) } as Input, inputs[1]!];
    assert.equal((await post('simple_string', bad, MIXED_OUTPUTS)).status >= 400, true);
  });

  await t.test('strings with NUL pass simple_identity as bytes and as JSON', async () => {
    for (const text of ['he\0llo', '\0\x01\x02\x03']) {
      const texts = COUNTING.map(() => text);
      for (const isBinary of [true, false]) {
        const data = isBinary ? rawStrings(texts) : texts;
        const output = { name: 'OUTPUT0', parameters: { binary_data: isBinary } };
        const inputs = [{ name: 'INPUT0', datatype: 'BYTES', data }];
        const answer = await post('simple_identity', inputs, { outputs: [output] });
        const received = isBinary
          ? readStrings(answer.outputs.get('OUTPUT0'))
          : answer.json.outputs[0].data;
        assert.deepEqual(received, texts);
      }
    }
    const reserved = COUNTING.map(() => '\u{10ffff}');
    const inputs = [{ name: 'INPUT0', datatype: 'BYTES', data: rawStrings(reserved) }];
    const refused = await post('simple_identity', inputs, BINARY_OUTPUTS);
    assert.match(refused.json.error, /U\+10FFFF, which stands for NUL/);
  });
}

async function checkGrpcClients(t: TestContext, serving: ServingProcess): Promise<void> {
  const client = new OipClient(serving.url);
  t.after(() => client.close());
  const infer = (model: string, datatype: string, contents: readonly Json[], raw: Uint8Array[]) =>
    client.call('ModelInfer', {
      model_name: model,
      inputs: contents.map((each, i) => ({ name: `INPUT${i}`, datatype, shape: SHAPE, ...each })),
      outputs: contents.map((_, i) => ({ name: `OUTPUT${i}` })),
      raw_input_contents: raw,
    });

  await t.test('simple_grpc_infer_client and its string variant', async () => {
    const raw = [toInt32Bytes(COUNTING), toInt32Bytes(ONES)];
    const sums = await infer('simple', 'INT32', [{}, {}], raw);
    assert.deepEqual(sums.raw_output_contents.map(readInt32), [SUMS, DIFFERENCES]);
    const texts = [rawStrings(COUNTING.map(String)), rawStrings(ONES.map(String))];
    const strings = await infer('simple_string', 'BYTES', [{}, {}], texts);
    const expected = [SUMS.map(String), DIFFERENCES.map(String)];
    assert.deepEqual(strings.raw_output_contents.map(readStrings), expected);
    await assert.rejects(infer('wrong_model_name', 'INT32', [{}, {}], raw), {
      details: /^Request for unknown model/,
    });
  });

  await t.test('the clients with explicit contents of integers, bytes and text', async () => {
    const contents = [COUNTING, ONES].map((values) => ({ contents: { int_contents: values } }));
    const sums = await infer('simple', 'INT32', contents, []);
    assert.deepEqual(sums.raw_output_contents.map(readInt32), [SUMS, DIFFERENCES]);
    const small = await infer('simple_int8', 'INT8', contents, []);
    const bytes = small.raw_output_contents.map((one: Buffer) => [...new Int8Array(one)]);
    assert.deepEqual(bytes, [SUMS, DIFFERENCES]);
    const texts = [COUNTING, ONES].map((values) => {
      return { contents: { bytes_contents: values.map((one) => Buffer.from(String(one))) } };
    });
    const strings = await infer('simple_string', 'BYTES', texts, []);
    assert.deepEqual(strings.raw_output_contents.map(readStrings)[0], SUMS.map(String));
  });
}

test("Triton's example clients and the commands of the examples get right answers", async (t) => {
  const yaml = readFileSync(join(EXAMPLES, 'plain-models.yaml'), 'utf8');
  const config = join(temporaryFolder(t), 'serving.yaml');
  const local = yaml.replaceAll('model: ', `model: ${EXAMPLES}/`).replace('port: 8080', 'port: 0');
  writeFileSync(config, `${local}timeout-ms: 30000\n`);
  const serving = await ServingProcess.start(t, ['--config', config]);
  await serving.waitFor('/readyz', ({ status }) => status === 200);
  for (const page of ['sentiment', 'image-classifier', 'triton-clients']) {
    checkCommands(page, serving.url);
  }
  await checkHttpClients(t, serving);
  await checkGrpcClients(t, serving);
});

test('the conf folder of the sentiment example serves sequences with a lod', async (t) => {
  const conf = join(EXAMPLES, 'sentiment', 'conf');
  const flags = ['--conf-dir', conf, '--timeout-ms', '30000'];
  const serving = await ServingProcess.start(t, flags, { hasSeveralModels: true });
  await serving.waitFor('/readyz', ({ status }) => status === 200);
  const words = [44, 2, 12, 21, 16, 24];
  const input = { int64_data: words, shape: [words.length, 1], lod: [0, words.length] };
  const expected = async (model: string): Promise<number[]> => {
    const inputs = [{ name: 'words', datatype: 'INT64', shape: [1, words.length], data: words }];
    const { body } = await serving.post(`/v2/models/${model}/infer`, JSON.stringify({ inputs }));
    return body.outputs[0].data;
  };
  const scores = { bow: await expected('bow'), cnn: await expected('cnn') };
  assert.ok(scores.bow[1]! > 0.9 && scores.cnn[0]! > 0.9);
  for (const model of ['bow', 'cnn'] as const) {
    const service = `${model[0]!.toUpperCase()}${model.slice(1)}Service`;
    const tensor = [{ ...input, alias_name: 'word_ids' }];
    const body = JSON.stringify({ tensor, fetch_var_names: ['prob'] });
    const answer = await serving.post(`/${service}/inference`, body);
    const [output] = answer.body.outputs[0].tensor;
    assert.deepEqual([output.alias_name, output.shape], ['prob', [1, 2]]);
    assert.deepEqual(output.float_data, scores[model]);
  }
  for (const [name, ask] of connectClients(t, serving.url)) {
    const answer = await ask({ tensor: [{ ...input, name: 'words' }] });
    const received = answer.outputs[0]!.tensor[0]!.float_data;
    assert.deepEqual(received.map(Math.fround), scores.cnn.map(Math.fround), name);
  }
});

test('the model repository of the clients serves the ensemble and identity too', async (t) => {
  const folder = join(EXAMPLES, 'triton-clients', 'models');
  const serving = await ServingProcess.start(t, ['--model-repository', folder]);
  await serving.waitUntilReady();
  const client = new OipClient(serving.url);
  t.after(() => client.close());
  const names = ['INPUT0', 'INPUT1'];
  const inputs = names.map((name) => ({ name, datatype: 'INT32', shape: SHAPE }));
  const raw = [toInt32Bytes(COUNTING), toInt32Bytes(ONES)];
  const request = { model_name: 'simple_ensemble', inputs, raw_input_contents: raw };
  const doubled = [COUNTING, ONES].map((values) => values.map((x) => 2 * x));
  const answer = await client.call('ModelInfer', request);
  assert.deepEqual(answer.raw_output_contents.map(readInt32), doubled);
  const body = makeBody(
    names.map((name, i) => ({ name, datatype: 'INT32', data: raw[i]! })),
    BINARY_OUTPUTS,
  );
  const http = await postBinary(serving, '/v2/models/simple_ensemble/infer', body);
  assert.deepEqual([...http.outputs.values()].map(readInt32), doubled);

  const texts = COUNTING.map((i) => `text ${i}`);
  const identity = await client.call('ModelInfer', {
    model_name: 'simple_identity',
    inputs: [{ name: 'INPUT0', datatype: 'BYTES', shape: SHAPE }],
    raw_input_contents: [rawStrings(texts)],
  });
  assert.deepEqual(identity.raw_output_contents.map(readStrings), [texts]);
});
