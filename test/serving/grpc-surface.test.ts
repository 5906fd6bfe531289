/** What every gRPC tool asks first: who is healthy, by service and by model, and what may be called. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { healthOf, reflect } from '../rpc/grpc-client.ts';
import { until } from '../rpc/one-port.ts';
import { BUNDLE, ToyBundle } from './toy-bundle.ts';
import { startLocal } from './toy-service.ts';

const OIP = 'inference.GRPCInferenceService';
const SERVICES = [
  OIP,
  'hypercube.CtrService',
  'baidu.paddle_serving.predictor.general_model.GeneralModelService',
];
const NOT_FOUND = 5;

test('health follows each model, and the process; a name that nobody has is not found', async (t) => {
  const { serving } = await startLocal(t, [new ToyBundle({ version: '1', seed: 3 })]);
  const port = Number(new URL(serving.url).port);
  const becomes = async (service: string, status: string): Promise<void> => {
    let now: unknown;
    await until(() => {
      void healthOf(port, service).then((answer) => {
        now = answer;
      });
      return now === status;
    });
  };
  for (const service of [BUNDLE, '', ...SERVICES]) await becomes(service, 'SERVING');
  assert.equal(await healthOf(port, 'other'), NOT_FOUND);
  assert.equal((await serving.post(`/v2/repository/models/${BUNDLE}/unload`, '{}')).status, 200);
  await becomes(BUNDLE, 'NOT_SERVING');
  assert.equal((await serving.post(`/v2/repository/models/${BUNDLE}/load`, '{}')).status, 200);
  await becomes(BUNDLE, 'SERVING');
  assert.equal(await serving.stop(), 0);
});

test('reflection gives each service with its messages, in both versions', async (t) => {
  const { serving } = await startLocal(t, [new ToyBundle({ version: '1', seed: 3 })]);
  const port = Number(new URL(serving.url).port);
  for (const version of ['v1', 'v1alpha']) {
    const { listServicesResponse } = await reflect(port, version, { listServices: '' });
    const names = listServicesResponse!.service.map(({ name }) => name);
    for (const service of [...SERVICES, 'grpc.health.v1.Health']) {
      assert.ok(names.includes(service), `${service} is not in ${names}`);
      const { fileDescriptorResponse } = await reflect(port, version, {
        fileContainingSymbol: service,
      });
      assert.ok(fileDescriptorResponse!.fileDescriptorProto.length > 0, service);
    }
    for (const [symbol, field] of [
      ['inference.ModelInferRequest', 'raw_input_contents'],
      ['inference.ModelConfig', 'max_batch_size'],
      ['hypercube.PredictRequest', 'row_count'],
      ['baidu.paddle_serving.predictor.general_model.Request', 'fetch_var_names'],
    ]) {
      const { fileDescriptorResponse } = await reflect(port, version, {
        fileContainingSymbol: symbol,
      });
      const files = Buffer.concat(fileDescriptorResponse!.fileDescriptorProto).toString('latin1');
      assert.ok(files.includes(field!), `${symbol} has no ${field}`);
    }
  }
  assert.equal(await serving.stop(), 0);
});
