/** Ops that call other serving processes. */
import assert from 'node:assert/strict';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import { CubeError } from '../../../lib/core/errors.ts';
import { PIPELINE_ERROR } from '../../../proto/pipeline.ts';
import { Op, RequestOp, ResponseOp } from '../../../serving/pipeline/op.ts';
import type { PipelineTensor } from '../../../serving/pipeline/pipeline-tensor.ts';
import { RemoteClient, type RemoteClientOptions } from '../../../serving/pipeline/remote-client.ts';
import { PipelineServer } from '../../../serving/pipeline/server.ts';
import { VariableNames } from '../../../serving/pipeline/variable-names.ts';
import { multiply, serve } from '../support/plain-models.ts';

const names = new VariableNames({
  feeds: new Map([['in', 'x']]),
  fetches: new Map([['out', 'y']]),
  fetchList: ['out'],
});

async function start(
  t: TestContext,
  options: RemoteClientOptions,
  batchSize = 1,
  timeoutMs = -1,
): Promise<PipelineServer> {
  const client = new RemoteClient(options);
  const inputs = [new RequestOp()];
  const op = new Op({
    name: 'rank',
    inputs,
    client,
    concurrency: 8,
    batchSize,
    timeoutMs,
    autoBatchingTimeoutMs: 5_000,
  });
  const server = new PipelineServer(new ResponseOp({ inputs: [op] }));
  await server.start();
  t.after(() => server.stop());
  return server;
}

function tensor(...data: number[]): PipelineTensor {
  return { dataType: 'FP32', shape: [data.length, 1], data: Float32Array.from(data) };
}

/** host:port of a server that accepts connections and says nothing. */
async function startSilent(t: TestContext): Promise<string> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return `127.0.0.1:${(server.address() as AddressInfo).port}`;
}

test('brpc, grpc and kserve answer batches, also when a server is killed', async (t) => {
  const one = (await serve(t, { twice: multiply(2) })).serving;
  const two = (await serve(t, { twice: multiply(2) }, [], true)).serving;
  const endpoints = [one, two].map(({ url }) => new URL(url).host);
  const options = { endpoints, names, policy: { backupRequest: 'never' } } as const;
  const kserve = await start(t, { ...options, protocol: 'kserve', model: 'twice' }, 3);
  const servers = [
    await start(t, { ...options, protocol: 'brpc' }, 3),
    await start(t, { ...options, protocol: 'grpc' }, 3),
    kserve,
  ];
  const predict = async (server: PipelineServer, round: number): Promise<void> => {
    const inputs = [[1 + round], [2, 3], [4]];
    const answers = await Promise.all(
      inputs.map((data) => server.run({ values: { in: tensor(...data) }, logId: 9n })),
    );
    for (const [at, answer] of answers.entries()) {
      assert.equal(answer.errMsg, '');
      assert.deepEqual(answer.versions, server === kserve ? { twice: '1' } : {});
      const expected = tensor(...(inputs[at] ?? []).map((x) => 2 * x));
      assert.deepEqual(answer.values, { out: expected });
    }
  };
  for (const server of servers) await predict(server, 0);
  two.child.kill('SIGKILL');
  for (let round = 1; round < 6; round++) {
    for (const server of servers) await predict(server, round);
  }
});

test('errors of the caller are answered as such; a silent server times out', async (t) => {
  const { serving } = await serve(t, { twice: multiply(2) });
  const live = new URL(serving.url).host;
  const silent = await startSilent(t);
  for (const protocol of ['brpc', 'grpc', 'kserve'] as const) {
    const options = { protocol, ...(protocol === 'kserve' ? { model: 'twice' } : {}) };
    const good = await start(t, { endpoints: [live], ...options });
    const bad = await good.run({ values: { unknown: tensor(1) } });
    assert.equal(bad.errNo, PIPELINE_ERROR.INPUT_PARAMS_ERROR, bad.errMsg);
    const slow = await start(t, { endpoints: [silent], ...options }, 1, 20);
    const late = await slow.run({ values: { x: tensor(1) } });
    assert.equal(late.errNo, PIPELINE_ERROR.TIMEOUT, late.errMsg);
  }
});

test('options that cannot work are refused', () => {
  const refuse = (options: RemoteClientOptions, message: RegExp): void => {
    assert.throws(
      () => new RemoteClient(options),
      (error) => error instanceof CubeError && message.test(error.message),
    );
  };
  refuse({ endpoints: [], protocol: 'brpc' }, /no endpoints/);
  refuse({ endpoints: ['localhost:1'], protocol: 'kserve' }, /model/);
});
