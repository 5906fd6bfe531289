/** Hostile tensors for a plain model, over every protocol: each is refused by name. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { CubeError } from '../../lib/core/errors.ts';
import { decodeOipRequest } from '../../proto/oip.ts';
import { decodePredictRequest } from '../../proto/tensorflow-serving.ts';
import { WireWriter } from '../../proto/wire.ts';
import { binaryBody, OipClient, postBinary } from './support/kserve-client.ts';
import { connectClients } from './support/paddle-client.ts';
import { multiply, serve } from './support/plain-models.ts';
import type { ServingProcess } from './support/serving-process.ts';
import { TfsClient } from './support/tfs-client.ts';

interface HostileTensor {
  readonly name: string;
  readonly datatype: 'FP32' | 'INT32';
  readonly shape: readonly number[];
  readonly raw: Buffer;
}

/** Sends tensors as one request. @returns the error, or the values of the answer */
type Transport = (tensors: readonly HostileTensor[]) => Promise<string | number[]>;

function readFloats(bytes: Uint8Array | undefined): number[] {
  return Array.from(new Float32Array(new Uint8Array(bytes ?? []).buffer));
}

const getMessage = (error: Error): string => error.message;

function connect(t: TestContext, serving: ServingProcess): Map<string, Transport> {
  const oip = new OipClient(serving.url);
  const tfs = new TfsClient(serving.url);
  t.after(() => {
    oip.close();
    tfs.close();
  });
  const transports = new Map<string, Transport>();
  transports.set('KServe REST', async (tensors) => {
    const body = binaryBody(tensors, { parameters: { binary_data_output: true } });
    const { status, json, outputs } = await postBinary(serving, '/v2/models/double/infer', body);
    return status === 200 ? readFloats(outputs.get('y')) : json.error;
  });
  transports.set('KServe gRPC', (tensors) =>
    oip
      .call('ModelInfer', {
        model_name: 'double',
        inputs: tensors.map(({ raw: _, ...head }) => head),
        raw_input_contents: tensors.map(({ raw }) => raw),
      })
      .then(({ raw_output_contents: [raw] }) => readFloats(raw), getMessage),
  );
  transports.set('TensorFlow Serving gRPC', (tensors) => {
    const inputs = tensors.map(({ name, datatype, shape, raw }) => {
      const tensor_shape = { dim: shape.map((size) => ({ size })) };
      return [name, { dtype: datatype === 'FP32' ? 1 : 3, tensor_shape, tensor_content: raw }];
    });
    const request = { model_spec: { name: 'double' }, inputs: Object.fromEntries(inputs) };
    return tfs.predict(request).then(({ outputs }) => outputs.y.float_val, getMessage);
  });
  for (const [name, ask] of connectClients(t, serving.url)) {
    // Over HTTP, bytes that are no request are answered as JSON.
    if (name.startsWith('HTTP') || /gzip|snappy/.test(name)) continue;
    transports.set(`Paddle, ${name}`, async (tensors) => {
      const tensor = tensors.map(({ name: input, datatype, shape, raw }) => {
        const elem_type = datatype === 'FP32' ? 1 : 2;
        return { name: input, elem_type, shape, tensor_content: raw };
      });
      try {
        const { err_no, err_msg, outputs } = await ask({ tensor });
        return err_no === 0 ? outputs[0]!.tensor[0]!.float_data.slice() : err_msg;
      } catch (error) {
        return getMessage(error as Error);
      }
    });
  }
  return transports;
}

const floats = (...values: number[]): Buffer => Buffer.from(Float32Array.from(values).buffer);
const x = (shape: readonly number[], raw: Buffer): HostileTensor => {
  return { name: 'x', datatype: 'FP32', shape, raw };
};

const CASES: readonly (readonly [string, readonly HostileTensor[], RegExp])[] = [
  ['too few bytes', [x([2, 2], floats(1, 2, 3))], /"x": .*(4 values|\[2, 2\])/],
  ['too many bytes', [x([1, 1], floats(1, 2, 3))], /"x": .*(1 values|\[1, 1\])/],
  ['half an element', [x([1, 1], Buffer.alloc(3))], /"x": .*(1 values|multiple of 4)/],
  ['no bytes', [x([1, 1], Buffer.alloc(0))], /"x": .*(1 values|\[1, 1\]|neither contents)/],
  ['giant dimensions', [x([2 ** 30, 2 ** 30], floats(1))], /"x": .*(over \d+ elements|does not)/],
  ['a negative dimension', [x([-1, 4], floats(1, 2, 3, 4))], /-1/],
  ['two negative dimensions', [x([-2, -2], floats(1, 2, 3, 4))], /-2/],
  ['no rows', [x([0, 1], Buffer.alloc(0))], /at least one row|"x"/],
  ['too many dimensions', [x(new Array(17).fill(1), floats(1))], /16|17/],
  ['another rank', [x([4], floats(1, 2, 3, 4))], /"x": shape: expected \[batch, n\], got \[4\]/],
  ['another type', [{ ...x([1, 1], Buffer.alloc(4)), datatype: 'INT32' }], /"x"|INT32/],
  ['an unknown input', [{ ...x([1, 1], floats(1)), name: 'z' }], /"z"|input x too/],
  ['no input', [], /expected an input x too|at least 1/],
  ['an input twice', [x([1, 1], floats(1)), x([1, 1], floats(2))], /"x": name: .* once/],
];

test('hostile tensors are refused by name over every protocol', async (t) => {
  const { serving } = await serve(t, { double: multiply(2) });
  const unexpected: string[] = [];
  for (const [protocol, send] of connect(t, serving)) {
    for (const [what, tensors, message] of CASES) {
      // A map has each name once.
      if (protocol.startsWith('TensorFlow') && what === 'an input twice') continue;
      // Integers are numbers that Paddle's callers may send for floats.
      if (protocol.startsWith('Paddle') && what === 'another type') continue;
      const answer = await send(tensors);
      if (typeof answer === 'string' && message.test(answer)) continue;
      unexpected.push(`${protocol}, ${what}: ${answer}`);
    }
    const values = await send([x([1, 4], floats(Number.NaN, Infinity, -Infinity, -0))]);
    const numbers = (values as number[]).map(Number);
    assert.deepEqual(numbers, [Number.NaN, Infinity, -Infinity, -0], protocol);
  }
  assert.deepEqual(unexpected, []);
  assert.equal(await serving.stop(), 0);
});

test('hostile lists of TensorFlow Serving REST and KServe JSON are refused', async (t) => {
  const { serving } = await serve(t, { double: multiply(2) });
  const refuse = async (path: string, body: string, message: RegExp): Promise<void> => {
    const answer = await serving.post(path, body);
    assert.equal(answer.status, 400, body.slice(0, 100));
    assert.match(answer.body.error, message);
  };
  const predict = '/v1/models/double:predict';
  const deep = `${'['.repeat(18)}1${']'.repeat(18)}`;
  await refuse(predict, `{"inputs":{"x":${deep}}}`, /input x: over 16 dimensions/);
  await refuse(predict, '{"instances":[]}', /at least one row/);
  await refuse(predict, '{"inputs":{"x":[]}}', /input "x": shape/);
  await refuse(predict, '{"inputs":{"x":[[1],[[2]]]}}', /input x/);
  await refuse(predict, '{"inputs":{"x":[["1"]]}}', /input x, value 0: expected a number/);
  await refuse(predict, '{"inputs":{"x":[[{"b64":"AAAA"}]]}}', /b64 is only for text/);
  await refuse(predict, '{"instances":[{"x":[1]},{"y":[1]}]}', /only the inputs x/);
  await refuse(predict, '{"instances":[[1]],"inputs":{"x":[[1]]}}', /either "instances"/);
  const infer = '/v2/models/double/infer';
  const input = (more: object): string =>
    JSON.stringify({ inputs: [{ name: 'x', datatype: 'FP32', shape: [1, 1], ...more }] });
  await refuse(infer, input({}), /inputs\[0\]\.data is missing; expected an array/);
  await refuse(infer, input({ data: [null] }), /input x, value 0: expected a number/);
  await refuse(infer, input({ data: [1], shape: [1.5, 1] }), /shape\[0\]/);
  await refuse(infer, input({ data: [1], shape: [1, 1e300] }), /shape/);
  await refuse(infer, input({ parameters: { binary_data_size: 4 } }), /Inference-Header/);
});

test('values with a tag each are limited before they cost memory', () => {
  const count = (1 << 20) + 1;
  const values = (field: number): Uint8Array => {
    const [tag = 0] = new WireWriter().tag(field, 0).finish();
    return new Uint8Array(2 * count).map((_, i) => (i % 2 === 0 ? tag : 1));
  };
  const refused = (decode: () => unknown): void =>
    assert.throws(decode, (error) => error instanceof CubeError && error.code === 'TOO_LARGE');
  const oip = new WireWriter().message(5, (input) =>
    input.string(1, 'x').string(2, 'BOOL').bytes(5, values(1)),
  );
  refused(() => decodeOipRequest(oip.finish()));
  const tfs = new WireWriter().message(2, (entry) =>
    entry.string(1, 'x').message(2, (tensor) => tensor.uint(1, 10).raw(values(11))),
  );
  refused(() => decodePredictRequest(tfs.finish()));
});
