/** The examples of pipelines, from their files, over HTTP; TypeScript runs without a build. */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { createLogger } from '../../../lib/platform/logs.ts';
import {
  parsePipelineConfig,
  readPipelineConfig,
} from '../../../serving/config/pipeline-config.ts';
import {
  readClientVariables,
  readPipelineModels,
} from '../../../serving/config/pipeline-models.ts';
import { completeConfig } from '../../../serving/config/serving-config.ts';
import { loadPipelineModule } from '../../../serving/pipeline/module.ts';
import { startServing } from '../../../serving/server.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { waitFor } from '../../support/processes.ts';
import { connectPipelineClients, type PipelineReply } from '../support/pipeline-client.ts';

type Ask = (values: Readonly<Record<string, string>>) => Promise<PipelineReply>;

interface RunningExample {
  readonly address: string;
  readonly url: string;
  readonly ask: Ask;
}

async function startExample(t: TestContext, name: string): Promise<RunningExample> {
  const folder = join('examples', name);
  const path = join(folder, 'config.yml');
  const config = readPipelineConfig(path);
  const { models, modelOfOp } = readPipelineModels(config, path, []);
  const module = await loadPipelineModule(join(folder, 'service.ts'));
  const instances = models.map((model) => ({ ...model, instances: 1 }));
  const serving = await startServing({
    config: completeConfig({ port: 0, hasPipeline: true, models: instances }),
    logger: createLogger('test', { level: 'silent' }),
    pipeline: { config, module, modelOfOp, variables: new Map() },
  });
  t.after(() => serving.stop());
  const url = `http://${serving.address}`;
  await waitFor('the pipeline is ready', async () => (await fetch(`${url}/readyz`)).ok);
  const ask: Ask = async (values) => {
    const body = JSON.stringify({ key: Object.keys(values), value: Object.values(values) });
    const response = await fetch(`${url}/${module.name}/prediction`, { method: 'POST', body });
    return (await response.json()) as PipelineReply;
  };
  return { address: serving.address, url, ask };
}

function readAnswer({ err_no: errNo, err_msg: errMsg, key, value }: PipelineReply) {
  assert.equal(errNo, 0, errMsg);
  return Object.fromEntries(key.map((name, i) => [name, value[i] ?? '']));
}

function readNumbers(text: string): number[] {
  return (text.match(/\d[\d.e-]*/g) ?? []).slice(0, -1).map(Number);
}

test('pipeline-ctr scores Criteo rows with two models', async (t) => {
  const { address, url, ask } = await startExample(t, 'pipeline-ctr');
  const rows = readFileSync('data/demo/rows.tsv', 'utf8').split('\n').slice(0, 64);
  const { click } = readAnswer(await ask({ rows: rows.join('\n') }));
  const scores = readNumbers(click ?? '');
  assert.equal(scores.length, 64);
  // Clicked rows have the higher mean: ids and dense features reach the model as in training.
  const mean = (label: string): number => {
    const chosen = scores.filter((_, i) => rows[i]?.startsWith(label));
    return chosen.reduce((sum, score) => sum + score, 0) / chosen.length;
  };
  assert.ok(mean('1') > mean('0') + 0.1, `${mean('1')} ${mean('0')}`);
  const grpc = connectPipelineClients(t, address).calls.get('grpc')!;
  const reply = await grpc({ key: ['rows'], value: [rows.join('\n')] });
  assert.deepEqual(reply.value, [click]);
  assert.equal((await ask({ rows: 'a\tb' })).err_no, 5000);
  // The models are there one by one.
  const response = await fetch(`${url}/v2/models/dense/infer`, {
    method: 'POST',
    body: JSON.stringify({
      inputs: [{ name: 'dense', datatype: 'FP32', shape: [1, 13], data: Array(13).fill(0) }],
    }),
  });
  assert.equal(response.status, 200);
});

test('pipeline-sentiment answers the mean of both models', async (t) => {
  const { url, ask } = await startExample(t, 'pipeline-sentiment');
  const words = 'the film was not very good';
  const { prediction } = readAnswer(await ask({ words }));
  const [negative = 0, positive = 0] = readNumbers(prediction ?? '');
  assert.ok(Math.abs(negative + positive - 1) < 1e-5);
  const ids = [44, 2, 12, 21, 16, 24];
  const inputs = [{ name: 'words', datatype: 'INT64', shape: [1, ids.length], data: ids }];
  const single = async (model: string): Promise<number> => {
    const body = JSON.stringify({ inputs });
    const response = await fetch(`${url}/v2/models/${model}/infer`, { method: 'POST', body });
    const { outputs } = (await response.json()) as { outputs: { data: number[] }[] };
    return outputs[0]?.data[0] ?? Number.NaN;
  };
  const expected = ((await single('bow')) + (await single('cnn'))) / 2;
  assert.ok(Math.abs(negative - expected) < 1e-6, `${negative} ${expected}`);
  assert.equal((await ask({ words: '!' })).err_no, 5000);
});

test('pipeline-funnel ranks 200 candidates and obeys its rules', async (t) => {
  const { ask } = await startExample(t, 'pipeline-funnel');
  const features = '0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8';
  const answer = readAnswer(await ask({ user: 'ada', features, blocked: '1,2' }));
  const ids = (answer['ids'] ?? '').split(',');
  const scores = (answer['scores'] ?? '').split(',').map(Number);
  assert.equal(ids.length, 10);
  assert.equal(new Set(ids).size, 10);
  assert.deepEqual(
    scores,
    scores.toSorted((a, b) => b - a),
  );
  assert.ok((scores[0] ?? 0) > (scores[9] ?? 1));
  const all = Array.from({ length: 12 }, (_, category) => category).join(',');
  const nothing = await ask({ user: 'ada', features, blocked: all });
  assert.deepEqual([nothing.err_no, nothing.err_msg], [61, 'the user has blocked every category']);
  assert.equal((await ask({ user: 'ada', features: '1' })).err_no, 5000);
});

async function startModel(t: TestContext, name: string): Promise<string> {
  const serving = await startServing({
    config: completeConfig({
      port: 0,
      models: [{ name, model: `examples/sentiment/models/${name}/1/model.onnx`, instances: 1 }],
    }),
    logger: createLogger('test', { level: 'silent' }),
  });
  t.after(() => serving.stop());
  await waitFor('the model is ready', async () => {
    return (await fetch(`http://${serving.address}/readyz`)).ok;
  });
  return serving.address;
}

test('server_endpoints: ops call remote models, with the aliases of client_config', async (t) => {
  const [bow, cnn] = await Promise.all([startModel(t, 'bow'), startModel(t, 'cnn')]);
  const folder = temporaryFolder(t);
  const path = join(folder, 'config.yml');
  // The names of the op are aliases, which the request of brpc translates.
  writeFileSync(
    join(folder, 'serving_client_conf.prototxt'),
    'feed_var { name: "words" alias_name: "words" } ' +
      'fetch_var { name: "prediction" alias_name: "prediction" }',
  );
  const text = `rpc_port: 0
op:
  bow: { server_endpoints: ["${bow}"], client_type: kserve, fetch_list: [prediction] }
  cnn: { server_endpoints: ["${cnn}"], client_config: ".", fetch_list: [prediction] }
`;
  const config = parsePipelineConfig(text, path);
  const serving = await startServing({
    config: completeConfig({ port: 0, hasPipeline: true, models: [] }),
    logger: createLogger('test', { level: 'silent' }),
    pipeline: {
      config,
      module: await loadPipelineModule('examples/pipeline-sentiment/service.ts'),
      modelOfOp: new Map(),
      variables: readClientVariables(config, path),
    },
  });
  t.after(() => serving.stop());
  const body = JSON.stringify({ key: ['words'], value: ['the film was not very good'] });
  const response = await fetch(`http://${serving.address}/imdb/prediction`, {
    method: 'POST',
    body,
  });
  const { prediction } = readAnswer((await response.json()) as PipelineReply);
  const [negative = 0] = readNumbers(prediction ?? '');
  assert.ok(Math.abs(negative - 0.5139274) < 1e-4, prediction);
});
