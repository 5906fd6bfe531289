/** The gRPC health and reflection services. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { waitUntil } from '../rpc/support/echo-server.ts';
import { callReflection, checkGrpcHealth } from '../rpc/support/grpc-client.ts';
import { BUNDLE, ToyBundle } from './support/toy-bundle.ts';
import { startLocal } from './support/toy-service.ts';

const OIP = 'inference.GRPCInferenceService';
const SERVICES = [
  OIP,
  'hypercube.CtrService',
  'tensorflow.serving.PredictionService',
  'baidu.paddle_serving.predictor.general_model.GeneralModelService',
];
const NOT_FOUND = 5;

test('health is reported per model and for the process; unknown names are not found', async (t) => {
  const { serving } = await startLocal(t, [new ToyBundle({ version: '1', seed: 3 })]);
  const port = Number(new URL(serving.url).port);
  const becomes = async (service: string, status: string): Promise<void> => {
    let now: unknown;
    await waitUntil(() => {
      void checkGrpcHealth(port, service).then((answer) => {
        now = answer;
      });
      return now === status;
    });
  };
  for (const service of [BUNDLE, '', ...SERVICES]) await becomes(service, 'SERVING');
  assert.equal(await checkGrpcHealth(port, 'other'), NOT_FOUND);
  assert.equal((await serving.post(`/v2/repository/models/${BUNDLE}/unload`, '{}')).status, 200);
  await becomes(BUNDLE, 'NOT_SERVING');
  assert.equal((await serving.post(`/v2/repository/models/${BUNDLE}/load`, '{}')).status, 200);
  await becomes(BUNDLE, 'SERVING');
  assert.equal(await serving.stop(), 0);
});

test('reflection describes each service and its messages, in both versions', async (t) => {
  const { serving } = await startLocal(t, [new ToyBundle({ version: '1', seed: 3 })]);
  const port = Number(new URL(serving.url).port);
  for (const version of ['v1', 'v1alpha']) {
    const { listServicesResponse } = await callReflection(port, version, { listServices: '' });
    assert.ok(listServicesResponse);
    const names = listServicesResponse.service.map(({ name }) => name);
    for (const service of [...SERVICES, 'grpc.health.v1.Health']) {
      assert.ok(names.includes(service), `${service} is not in ${names}`);
      const { fileDescriptorResponse } = await callReflection(port, version, {
        fileContainingSymbol: service,
      });
      assert.ok(fileDescriptorResponse);
      assert.ok(fileDescriptorResponse.fileDescriptorProto.length > 0, service);
    }
    for (const [symbol, field] of [
      ['inference.ModelInferRequest', 'raw_input_contents'],
      ['inference.ModelConfig', 'max_batch_size'],
      ['hypercube.PredictRequest', 'row_count'],
      ['tensorflow.serving.PredictRequest', 'output_filter'],
      ['tensorflow.serving.GetModelMetadataRequest', 'metadata_field'],
      ['baidu.paddle_serving.predictor.general_model.Request', 'fetch_var_names'],
    ]) {
      const { fileDescriptorResponse } = await callReflection(port, version, {
        fileContainingSymbol: symbol,
      });
      assert.ok(fileDescriptorResponse);
      const files = Buffer.concat(fileDescriptorResponse.fileDescriptorProto).toString('latin1');
      assert.ok(files.includes(field!), `${symbol} has no ${field}`);
    }
  }
  assert.equal(await serving.stop(), 0);
});
