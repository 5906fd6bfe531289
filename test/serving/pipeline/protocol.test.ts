/**
 * The pipeline service over gRPC, baidu_std and HTTP: what requests become in the ops, what answers
 * become in responses, recorded requests of the Python clients, hostile requests.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import {
  createTensor,
  Op,
  type OpContext,
  type OpValues,
  type PipelineTensor,
  productError,
  RequestOp,
  ResponseOp,
} from '../../../serving/pipeline/index.ts';
import type { PipelineModule } from '../../../serving/pipeline/pipeline-module.ts';
import {
  connectPipelineClients,
  decodePipelineReply,
  encodePipelineMessage,
} from '../support/pipeline-client.ts';
import { servePipeline } from '../support/served-pipeline.ts';

interface SeenRequest {
  readonly values: OpValues;
  readonly logId: bigint;
}

type Answer = (values: OpValues, context: OpContext) => OpValues | Promise<OpValues>;

interface Toy {
  readonly module: PipelineModule;
  readonly seen: SeenRequest[];
}

/** A pipeline of one op whose output `answer` makes. */
function makeToy(answer: Answer): Toy {
  const seen: SeenRequest[] = [];
  class AnswerOp extends Op {
    override async preprocess(inputs: Record<string, OpValues>, context: OpContext) {
      const values = inputs['@DAGExecutor'] ?? {};
      seen.push({ values, logId: context.logId });
      return answer(values, context);
    }
  }
  const op = new AnswerOp({ name: 'answer', inputs: [new RequestOp()] });
  return { module: { name: 'toy', ops: new ResponseOp({ inputs: [op] }) }, seen };
}

async function serveToy(
  t: TestContext,
  answer: Answer = (values) => values,
  changes: Partial<PipelineModule> = {},
) {
  const { module, seen } = makeToy(answer);
  const serving = await servePipeline(t, { ...module, ...changes });
  return { serving, seen, ...connectPipelineClients(t, serving.address) };
}

interface Recorded {
  readonly tensors: Readonly<Record<string, string>>;
  readonly plain: Readonly<Record<string, string>>;
}

function readRecorded(): Recorded {
  return JSON.parse(readFileSync('test/serving/pipeline/fixtures/python-clients.json', 'utf8'));
}

test('text goes to the ops and comes back over every protocol', async (t) => {
  const { calls, seen } = await serveToy(t);
  for (const [name, call] of calls) {
    const reply = await call({ key: ['words', 'x'], value: ['sad', 'array([1])'], logid: '17' });
    assert.equal(reply.err_no, 0, `${name}: ${reply.err_msg}`);
    assert.deepEqual(reply.key, ['words', 'x'], name);
    assert.deepEqual(reply.value, ['sad', 'array([1])'], name);
    assert.deepEqual(seen.pop(), { values: { words: 'sad', x: 'array([1])' }, logId: 17n }, name);
  }
});

test('tensors of every type reach the ops with type, shape and lod', async (t) => {
  const { calls, seen } = await serveToy(t, () => ({}));
  const shape = [1, 2];
  const cases = [
    [0, { int64_data: ['-9223372036854775808', '3'] }, 'INT64', [-(2n ** 63n), 3n]],
    [1, { float_data: [0.5, -1] }, 'FP32', [0.5, -1]],
    [2, { int_data: [-7, 8] }, 'INT32', [-7, 8]],
    [3, { float64_data: [0.1, 2] }, 'FP64', [0.1, 2]],
    [4, { int_data: [-7, 8] }, 'INT16', [-7, 8]],
    [5, { float_data: [0.5, -2] }, 'FP16', [0x3800, 0xc000]],
    [6, { uint32_data: [16_256, 0] }, 'BF16', [16_256, 0]],
    [7, { uint32_data: [255, 0] }, 'UINT8', [255, 0]],
    [8, { int_data: [-128, 1] }, 'INT8', [-128, 1]],
    [9, { bool_data: [true, false] }, 'BOOL', [1, 0]],
  ] as const;
  for (const [name, call] of calls) {
    for (const [elemType, values, dataType, expected] of cases) {
      const tensor = { name: 'x', elem_type: elemType, shape, lod: [0, 1, 1, 2], ...values };
      const reply = await call({ tensors: [tensor] });
      assert.equal(reply.err_no, 0, `${name} ${dataType}: ${reply.err_msg}`);
      const { x, 'x.lod': lod } = seen.pop()!.values as Record<string, PipelineTensor>;
      assert.equal(x?.dataType, dataType, name);
      assert.deepEqual(x?.shape, shape);
      assert.deepEqual([...(x?.data ?? [])], expected);
      assert.deepEqual(lod?.shape, [2, 2]);
      assert.deepEqual(lod?.data, Int32Array.of(0, 1, 1, 2));
    }
    await call({ tensors: [{ name: 's', elem_type: 12, str_data: ['he', 'llo'] }] });
    assert.deepEqual(seen.pop()?.values, { s: 'hello' }, name);
  }
});

test('arrays come back as NumPy text, or as tensors where the pipeline says so', async (t) => {
  const scores = { scores: createTensor('FP32', [1, 2], Float32Array.of(0.1, 2)) };
  const answer = (): OpValues => ({ ...scores, ids: BigInt64Array.of(5n), note: 'ok' });
  const asText = await serveToy(t, answer);
  const asTensors = await serveToy(t, answer, { packTensors: true });
  for (const [name, call] of asText.calls) {
    const reply = await call({});
    assert.deepEqual(reply.key, ['scores', 'ids', 'note'], name);
    assert.deepEqual(reply.value, ['array([[0.1, 2.]], dtype=float32)', 'array([5])', 'ok'], name);
  }
  for (const [name, call] of asTensors.calls) {
    const reply = await call({});
    assert.deepEqual([reply.key, reply.value], [['note'], ['ok']], name);
    const [first, second] = reply.tensors;
    assert.deepEqual([first?.name, first?.elem_type, first?.shape], ['scores', 1, [1, 2]], name);
    assert.deepEqual(first?.float_data?.map(Math.fround), [Math.fround(0.1), 2], name);
    assert.deepEqual([second?.name, second?.int64_data], ['ids', ['5']], name);
  }
});

test('answers that a response cannot hold are err_no 7000 with the name', async (t) => {
  const answers: readonly OpValues[] = [
    { score: 0.5 },
    { list: [1, 2] },
    { nothing: null },
    { lying: { dataType: 'FP32', shape: [3], data: Float32Array.of(1) } },
  ];
  for (const answer of answers) {
    const { calls } = await serveToy(t, () => answer);
    for (const call of calls.values()) {
      const reply = await call({});
      assert.equal(reply.err_no, 7000);
      assert.ok(reply.err_msg.includes(Object.keys(answer)[0] ?? '?'), reply.err_msg);
    }
  }
});

test('a request for another service is err_no 3002; over gRPC the name may be empty', async (t) => {
  const { calls, serving } = await serveToy(t);
  for (const name of ['grpc', 'baidu_std']) {
    const call = calls.get(name)!;
    assert.equal((await call({ name: 'other', method: 'prediction' })).err_no, 3002, name);
    assert.equal((await call({ name: 'toy', method: 'prediction' })).err_no, 0, name);
    assert.equal((await call({})).err_no, 0, name);
  }
  const http = calls.get('http')!;
  assert.equal((await http({}, 'other')).err_no, 3002);
  // The path binds the name, whatever the body says.
  assert.equal((await http({ name: 'other' })).err_no, 0);
  const response = await fetch(`http://${serving.address}/v1/unknown/path/here`, {
    method: 'POST',
  });
  assert.equal(response.status, 404);
});

test('product errors, thrown errors and the limit of the caller have their codes', async (t) => {
  const codes: Record<string, (context: OpContext) => OpValues | Promise<OpValues>> = {
    product: () => productError(77, 'no such user') as unknown as OpValues,
    thrown: () => {
      throw new Error('out of luck');
    },
    slow: ({ signal }) =>
      new Promise((resolve) => signal.addEventListener('abort', () => resolve({}))),
  };
  const { calls, serving, raw } = await serveToy(t, ({ kind }, context) => {
    return codes[String(kind)]?.(context) ?? {};
  });
  for (const call of calls.values()) {
    const product = await call({ key: ['kind'], value: ['product'] });
    assert.deepEqual([product.err_no, product.err_msg], [77, 'no such user']);
    const thrown = await call({ key: ['kind'], value: ['thrown'] });
    assert.equal(thrown.err_no, 10_000);
    assert.match(thrown.err_msg, /answer.*out of luck/);
  }
  const slow = await fetch(`http://${serving.address}/toy/prediction`, {
    method: 'POST',
    headers: { 'timeout-ms': '20' },
    body: JSON.stringify({ key: ['kind'], value: ['slow'] }),
  });
  assert.equal(slow.status, 200);
  assert.equal(((await slow.json()) as { err_no: number }).err_no, 6000);
  assert.equal((await raw(encodePipelineMessage({}))).code, 0);
});

test('the signal of a request aborts when its HTTP connection is reset', async (t) => {
  for (const [type, method] of [
    ['application/json', 'prediction'],
    ['text/plain', 'prediction'],
    ['application/json', 'another'],
  ] as const) {
    let begin: (signal: AbortSignal) => void = () => undefined;
    const started = new Promise<AbortSignal>((resolve) => {
      begin = resolve;
    });
    const { serving } = await serveToy(t, (_values, { signal }) => {
      begin(signal);
      return new Promise((resolve) => signal.addEventListener('abort', () => resolve({})));
    });
    const { hostname: host, port } = new URL(`http://${serving.address}`);
    const caller = connect({ host, port: Number(port) });
    const lines = [`POST /toy/${method} HTTP/1.1`, 'host: x', `content-type: ${type}`];
    caller.write(`${lines.join('\r\n')}\r\ncontent-length: 2\r\n\r\n{}`);
    const signal = await started;
    assert.equal(signal.aborted, false);
    // A caller that only closes its side still gets the response.
    caller.resetAndDestroy();
    if (!signal.aborted) await once(signal, 'abort');
  }
});

test('pipeline.profile answers with the times of the ops and is no value', async (t) => {
  const { calls, seen } = await serveToy(t);
  for (const call of calls.values()) {
    const reply = await call({ key: ['a', 'pipeline.profile'], value: ['b', '1'] });
    assert.deepEqual(reply.key, ['a', 'pipeline.profile']);
    assert.match(reply.value[1] ?? '', /^\nPROFILE\tpid:\d+\tanswer_0:\d{16} answer_1:\d{16} \n$/);
    assert.deepEqual(seen.pop()?.values, { a: 'b' });
    assert.deepEqual((await call({ key: ['pipeline.profile'], value: ['0'] })).key, []);
    seen.pop();
  }
});

test('recorded requests of the Python clients are read, in both layouts', async (t) => {
  const { raw, seen } = await serveToy(t, () => ({ ok: 'yes' }));
  const { tensors, plain } = readRecorded();
  const send = async (base64: string): Promise<SeenRequest> => {
    const { bytes, code, details } = await raw(Buffer.from(base64, 'base64'));
    assert.equal(code, 0, details);
    assert.equal(decodePipelineReply(bytes).err_no, 0, decodePipelineReply(bytes).err_msg);
    return seen.pop()!;
  };
  const text = { values: { words: 'i am very sad | 0' }, logId: 7n };
  assert.deepEqual(await send(tensors['text']!), text);
  // The old client takes the id from its feed; the new one overwrites it by its argument.
  assert.deepEqual(await send(plain['text']!), { ...text, logId: 11n });
  for (const layout of [tensors, plain]) {
    const { values } = await send(layout['array as text']!);
    assert.equal(values['x'], 'array([[ 1.5 , -2.25],\n       [ 0.1 ,  3.  ]], dtype=float32)');
    assert.equal(values['ids'], 'array([1, 2, 3])');
    assert.deepEqual((await send(layout['profile']!)).values, { words: 'good' });
    assert.match(String((await send(layout['long array as text']!)).values['x']), /38, 39\]\)$/);
  }
  const types: Record<string, string> = {
    int64: 'INT64',
    float32: 'FP32',
    int32: 'INT32',
    float64: 'FP64',
    int16: 'INT16',
    float16: 'FP16',
    uint16: 'BF16',
    uint8: 'UINT8',
    int8: 'INT8',
    bool: 'BOOL',
  };
  const half = 0x3c00;
  let npyCases = 0;
  for (const [name, dataType] of Object.entries(types)) {
    for (const kind of ['tensor', 'npy']) {
      const recorded = tensors[`${kind} ${name}`];
      if (recorded === undefined) continue;
      if (kind === 'npy') npyCases++;
      const { x } = (await send(recorded)).values as { x: PipelineTensor };
      assert.equal(x.dataType, dataType, name);
      assert.deepEqual(x.shape, [2, 2]);
      const one = name === 'float16' ? half : 1;
      assert.deepEqual(Array.from(x.data as Float32Array, Number), [one, 0, one, one], name);
    }
  }
  assert.equal(npyCases, 6);
  assert.deepEqual((await send(tensors['tensor string']!)).values, { s: 'hello' });
  const withLod = await send(tensors['tensor lod']!);
  assert.equal(withLod.logId, 9n);
  assert.deepEqual((withLod.values['x.lod'] as PipelineTensor).data, Int32Array.of(0, 1, 1, 3));
});

test('requests whose parts contradict each other are err_no 5000 and name the part', async (t) => {
  const { calls, raw, seen } = await serveToy(t);
  const cases = [
    [{ key: ['a', 'b'], value: ['1'] }, /2 keys and 1 values/],
    [{ key: ['a', 'a'], value: ['1', '2'] }, /"a" is there twice/],
    [{ tensors: [{ name: '', elem_type: 0 }] }, /shape \[\] does not fit 0 values/],
    [{ tensors: [{ name: 'x', elem_type: 1, shape: [3], float_data: [1] }] }, /shape \[3\]/],
    [{ tensors: [{ name: 'x', elem_type: 1, shape: [-1], float_data: [1] }] }, /shape \[-1\]/],
    [{ tensors: [{ name: 'x', elem_type: 0, shape: [1], float_data: [1] }] }, /elem_type 0/],
    [{ tensors: [{ name: 'x', elem_type: 7, shape: [1], uint32_data: [300] }] }, /300 .*UINT8/],
    [{ tensors: [{ name: 'x', elem_type: 13, byte_data: Buffer.from('hello') }] }, /NUMPY/],
    [
      { tensors: [{ name: 'x', elem_type: 1, shape: [1], float_data: [1], lod: [1] }] },
      /1 values of lod/,
    ],
  ] as const;
  for (const [request, message] of cases) {
    for (const [name, call] of calls) {
      const reply = await call(request);
      assert.equal(reply.err_no, 5000, `${name}: ${JSON.stringify(request)} ${reply.err_msg}`);
      assert.match(reply.err_msg, message, name);
    }
  }
  for (const elemType of [10, 11, 14, -1]) {
    const reply = await calls.get('grpc')!({ tensors: [{ name: 'x', elem_type: elemType }] });
    assert.equal(reply.err_no, 3000, `${elemType}`);
  }
  assert.deepEqual(seen, []);
  await fc.assert(
    fc.asyncProperty(fc.uint8Array({ maxLength: 60 }), async (bytes) => {
      assert.equal((await raw(bytes)).code, 0);
    }),
    { numRuns: 200 },
  );
});

test('both ports speak every protocol', async (t) => {
  const { module } = makeToy((values) => values);
  const serving = await servePipeline(t, module, { secondPort: 0 });
  assert.equal(serving.addresses.length, 2);
  assert.notEqual(serving.addresses[0], serving.addresses[1]);
  for (const address of serving.addresses) {
    for (const [name, call] of connectPipelineClients(t, address).calls) {
      assert.deepEqual((await call({ key: ['a'], value: ['b'] })).value, ['b'], name);
    }
  }
});

test('requests above the limit are refused by the protocol and retryable', async (t) => {
  let release: () => void = () => undefined;
  const held = new Promise<void>((resolve) => {
    release = resolve;
  });
  const { module, seen } = makeToy(async (values) => {
    await held;
    return values;
  });
  const serving = await servePipeline(t, module, { maxInFlight: 1 });
  const { calls, raw } = connectPipelineClients(t, serving.address);
  const first = calls.get('grpc')!({ key: ['a'], value: ['b'] });
  while (seen.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
  assert.equal((await raw(encodePipelineMessage({}))).cubeCode, 'OVERLOADED');
  const response = await fetch(`http://${serving.address}/toy/prediction`, {
    method: 'POST',
    body: '{}',
  });
  assert.equal(response.status, 429);
  release();
  assert.deepEqual((await first).value, ['b']);
});
