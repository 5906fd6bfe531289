/** PipelineClient against a real server: text, arrays, product errors, several servers. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { test } from 'node:test';
import { formatClientMetrics } from '../../lib/client/client-metrics.ts';
import { PipelineClient } from '../../lib/client/pipeline-client.ts';
import { createTensor } from '../../lib/core/pipeline-tensor.ts';
import {
  Op,
  type OpValues,
  productError,
  RequestOp,
  ResponseOp,
} from '../../serving/pipeline/index.ts';
import { servePipeline } from '../serving/support/served-pipeline.ts';

/** Answers its request, or a product error for the key `fail`. */
class Echo extends Op {
  override preprocess({ '@DAGExecutor': values = {} }: Record<string, OpValues>) {
    return 'fail' in values ? productError(51, 'as asked') : values;
  }
}

function makeEcho(packTensors = false) {
  const echo = new Echo({ name: 'echo', inputs: [new RequestOp()], concurrency: 4 });
  return { ops: new ResponseOp({ inputs: [echo] }), packTensors };
}

test('text and arrays go there and back, as text and as tensors', async (t) => {
  const values = {
    words: 'a b',
    ids: BigInt64Array.of(1n, -2n),
    scores: createTensor('FP32', [2, 1], Float32Array.of(0.1, 2)),
  };
  const ids = createTensor('INT64', [2], values.ids);
  for (const packTensors of [false, true]) {
    const { address } = await servePipeline(t, makeEcho(packTensors));
    const client = PipelineClient.connect(address);
    t.after(() => client.close());
    const sent = await client.predict(values, { packTensors: true, name: 'toy', logId: 5n });
    assert.deepEqual([sent.errNo, sent.errMsg], [0, '']);
    assert.deepEqual(sent.values, { ...values, ids });
    const { values: some, profile } = await client.predict(
      { words: 'x', more: 'y' },
      { fetch: ['more'], profile: true },
    );
    assert.deepEqual(some, { more: 'y' });
    assert.match(profile ?? '', /PROFILE.*echo_0/);
    const failed = await client.predict({ fail: '' });
    assert.deepEqual([failed.errNo, failed.errMsg, failed.values], [51, 'as asked', {}]);
    assert.equal((await client.predict({}, { name: 'other' })).errNo, 3002);
  }
});

test('a server that is gone is skipped; without any the call fails', async (t) => {
  const gone = await servePipeline(t, makeEcho());
  const there = await servePipeline(t, makeEcho());
  await gone.stop();
  const client = PipelineClient.connect([gone.address, there.address], { timeoutMs: 60_000 });
  const none = PipelineClient.connect(gone.address);
  t.after(() => [client, none].map((one) => one.close()));
  const answers = await Promise.all(['a', 'b', 'c', 'd'].map((x) => client.predict({ x })));
  assert.deepEqual(
    answers.map(({ values }) => values['x']),
    ['a', 'b', 'c', 'd'],
  );
  await assert.rejects(none.predict({ x: 'a' }), { code: 'UNAVAILABLE' });
  const { retries, replicas, calls, requests } = client.stats;
  assert.ok(retries >= 1 && retries <= 2, `${retries} retries`);
  assert.deepEqual([calls, requests], [4, 4 + retries]);
  assert.deepEqual(
    replicas.map(({ state }) => state),
    ['failed', 'answering'],
  );
  const text = formatClientMetrics({ pipeline: client.stats });
  assert.match(text, new RegExp(`client_retries_total{client="pipeline"} ${retries}\n`));
  const limit = /client_concurrency_limit{client="pipeline",server="127\.0\.0\.1:\d+"} 64\n/g;
  assert.equal(text.match(limit)?.length, 2);
  assert.match(text, /client_server_share{client="pipeline",server="[^"]+"} 1\n/);
  assert.throws(() => PipelineClient.connect('http://localhost:1'), /expected host:port/);
});

test('a cancelled call rejects with the reason, and a policy limits calls', async (t) => {
  const silent = createServer((socket) => socket.on('error', () => undefined).resume());
  await once(silent.listen(0, '127.0.0.1'), 'listening');
  t.after(() => silent.close());
  const { port } = silent.address() as AddressInfo;
  const policy = { concurrencyLimit: 'refuse' } as const;
  const client = PipelineClient.connect(`127.0.0.1:${port}`, { timeoutMs: 600_000, policy });
  t.after(() => client.close());
  const aborts = Array.from({ length: 64 }, () => new AbortController());
  const calls = aborts.map(({ signal }) => client.predict({ x: 'a' }, { signal }));
  const outcomes = Promise.allSettled(calls);
  await assert.rejects(client.predict({ x: 'a' }), { code: 'OVERLOADED' });
  assert.equal(client.stats.concurrencyRefusals, 1);
  for (const abort of aborts) abort.abort(new Error('no longer needed'));
  for (const outcome of await outcomes) {
    assert.equal(outcome.status === 'rejected' && outcome.reason.message, 'no longer needed');
  }
});
