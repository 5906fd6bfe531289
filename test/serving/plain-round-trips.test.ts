/** Random tensors of every type and rank through every protocol: the graph gets what was sent. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import { TENSOR_TYPE_BYTES, type TensorType } from '../../lib/core/graph-signature.ts';
import { countElements, viewElements } from '../../lib/core/tensor.ts';
import { model, node, value } from '../tools/prune-model/support/onnx-builder.ts';
import { binaryBody, OipClient, postBinary, type Tensor } from './support/kserve-client.ts';
import { connectClients, type PaddleCall, type PlainTensor } from './support/paddle-client.ts';
import { serve } from './support/plain-models.ts';
import type { ServingProcess } from './support/serving-process.ts';
import { TfsClient } from './support/tfs-client.ts';

type NumberType = Exclude<TensorType, 'BYTES'>;

interface WireNames {
  readonly onnx: number;
  /** Number of the type, and the field of typed values. */
  readonly tfs: readonly [number, string];
  /** Number of the type, and the field of answers; absent where the protocol has no type. */
  readonly paddle?: readonly [number, keyof PlainTensor];
}

const TYPES: Readonly<Record<NumberType, WireNames>> = {
  FP32: { onnx: 1, tfs: [1, 'float_val'], paddle: [1, 'float_data'] },
  UINT8: { onnx: 2, tfs: [4, 'int_val'], paddle: [7, 'tensor_content'] },
  INT8: { onnx: 3, tfs: [6, 'int_val'], paddle: [8, 'tensor_content'] },
  UINT16: { onnx: 4, tfs: [17, 'int_val'] },
  INT16: { onnx: 5, tfs: [5, 'int_val'], paddle: [4, 'tensor_content'] },
  INT32: { onnx: 6, tfs: [3, 'int_val'], paddle: [2, 'int_data'] },
  INT64: { onnx: 7, tfs: [9, 'int64_val'], paddle: [0, 'int64_data'] },
  BOOL: { onnx: 9, tfs: [10, 'bool_val'], paddle: [9, 'bool_data'] },
  FP16: { onnx: 10, tfs: [19, 'half_val'], paddle: [5, 'tensor_content'] },
  BF16: { onnx: 16, tfs: [14, 'half_val'], paddle: [6, 'tensor_content'] },
  FP64: { onnx: 11, tfs: [2, 'double_val'], paddle: [3, 'float64_data'] },
  UINT32: { onnx: 12, tfs: [22, 'uint32_val'] },
  UINT64: { onnx: 13, tfs: [23, 'uint64_val'] },
};
const NAMES = Object.keys(TYPES) as NumberType[];
const RANKS = [0, 1, 2, 3, 4, 5];
const PADDLE_RANK = 3;

/** Copies an input of every type; the first dimension is the batch, if there is one. */
function copies(rank: number): Uint8Array {
  const dims = Array.from({ length: rank }, (_, i) => (i === 0 ? 'batch' : `d${i}`));
  return model({
    inputs: NAMES.map((name) => value(`in_${name}`, TYPES[name].onnx, dims)),
    outputs: NAMES.map((name) => value(`out_${name}`, TYPES[name].onnx, dims)),
    nodes: NAMES.map((name) => node('Identity', [`in_${name}`], [`out_${name}`])),
  });
}

/** Bits of any kind, but no NaN, whose bits JavaScript may change. */
function createRaw(type: NumberType, count: number, seed: number): Buffer {
  const raw = Buffer.alloc(count * TENSOR_TYPE_BYTES[type]);
  for (let i = 0; i < raw.length; i++) raw[i] = Math.imul(seed + i, 0x9e3779b1) >>> 13;
  const elements = viewElements(type, raw);
  for (let i = 0; i < count; i++) {
    if (type === 'BOOL') elements[i] = Number(elements[i]) & 1;
    else if (type === 'FP16' || type === 'BF16') elements[i] = Number(elements[i]) & 0xbfff;
    else if (Number.isNaN(elements[i])) elements[i] = 0.5;
  }
  return raw;
}

/** The bytes of values as the protobuf library returns them. */
function toRaw(type: NumberType, values: readonly unknown[] | Buffer): Buffer {
  if (Buffer.isBuffer(values)) return values;
  const raw = Buffer.alloc(values.length * TENSOR_TYPE_BYTES[type]);
  const elements = viewElements(type, raw);
  const isWide = type.endsWith('INT64');
  values.forEach((item, i) => {
    elements[i] = isWide ? BigInt(item as string) : Number(item);
  });
  return raw;
}

/** Sends tensors. @returns the bytes of each answered type */
type RoundTrip = (rank: number, inputs: readonly Tensor[]) => Promise<Map<string, Buffer>>;

function throughPaddle(ask: PaddleCall): RoundTrip {
  return async (rank, inputs) => {
    const tensor = inputs.map(({ name, datatype, shape, raw }): PlainTensor => {
      const type = datatype as NumberType;
      const [elem_type] = TYPES[type].paddle ?? [];
      if (elem_type !== undefined) {
        return { name, elem_type, shape, tensor_content: Buffer.from(raw) };
      }
      const values = Array.from(viewElements(type, raw) as ArrayLike<number | bigint>, String);
      // Values of UINT64 that int64_data cannot hold are no inputs of this protocol.
      return { name, shape, int64_data: type === 'UINT64' ? values.map(() => '7') : values };
    });
    const fetched = NAMES.filter((name) => TYPES[name].paddle !== undefined);
    const fetch_var_names = fetched.map((name) => `out_${name}`);
    const { outputs, err_msg } = await ask({ tensor, fetch_var_names });
    assert.equal(err_msg, '', `rank ${rank}`);
    return new Map(
      fetched.map((name, i) => {
        const [, field] = TYPES[name].paddle!;
        const values = outputs[0]!.tensor[i]![field] as readonly unknown[] | Buffer;
        return [name, toRaw(name, values)];
      }),
    );
  };
}

/** @param only serves only the model of rank PADDLE_RANK: Paddle's protocol names no model */
function connect(
  t: TestContext,
  serving: ServingProcess,
  only: ServingProcess,
): ReadonlyMap<string, RoundTrip> {
  const oip = new OipClient(serving.url);
  const tfs = new TfsClient(serving.url);
  t.after(() => {
    oip.close();
    tfs.close();
  });
  const paddle = connectClients(t, only.url);
  return new Map<string, RoundTrip>([
    [
      'KServe REST',
      async (rank, inputs) => {
        const body = binaryBody(inputs, { parameters: { binary_data_output: true } }, rank);
        const { outputs } = await postBinary(serving, `/v2/models/rank${rank}/infer`, body);
        return new Map(NAMES.map((name) => [name, outputs.get(`out_${name}`)!]));
      },
    ],
    [
      'KServe gRPC',
      async (rank, inputs) => {
        const answer = await oip.call('ModelInfer', {
          model_name: `rank${rank}`,
          inputs: inputs.map(({ raw: _, ...head }) => head),
          raw_input_contents: inputs.map(({ raw }) => raw),
        });
        return new Map(NAMES.map((name, i) => [name, answer.raw_output_contents[i]]));
      },
    ],
    [
      'TensorFlow Serving gRPC',
      async (rank, inputs) => {
        const tensors = inputs.map(({ name, datatype, shape, raw }) => {
          const [dtype] = TYPES[datatype as NumberType].tfs;
          const tensor_shape = { dim: shape.map((size) => ({ size })) };
          return [name, { dtype, tensor_shape, tensor_content: raw }];
        });
        const model_spec = { name: `rank${rank}` };
        const answer = await tfs.predict({ model_spec, inputs: Object.fromEntries(tensors) });
        return new Map(
          NAMES.map((name) => {
            const [, field] = TYPES[name].tfs;
            return [name, toRaw(name, answer.outputs[`out_${name}`][field])];
          }),
        );
      },
    ],
    ['Paddle gRPC', throughPaddle(paddle.get('gRPC')!)],
    ['Paddle baidu_std', throughPaddle(paddle.get('baidu_std')!)],
  ]);
}

test('tensors of every number type and rank come back bit by bit', async (t) => {
  const models = Object.fromEntries(RANKS.map((rank) => [`rank${rank}`, copies(rank)]));
  const { serving } = await serve(t, models);
  const { serving: only } = await serve(t, { paddle: copies(PADDLE_RANK) });
  const transports = connect(t, serving, only);
  const cases = fc.record({
    rank: fc.constantFrom(...RANKS),
    sizes: fc.array(fc.integer({ min: 1, max: 3 }), { minLength: 5, maxLength: 5 }),
    seed: fc.nat(1_000_000),
  });
  await fc.assert(
    fc.asyncProperty(cases, async ({ rank, sizes, seed }) => {
      const shape = sizes.slice(0, rank);
      const inputs = NAMES.map((datatype, i): Tensor => {
        const raw = createRaw(datatype, countElements(shape), seed + 1000 * i);
        return { name: `in_${datatype}`, datatype, shape, raw };
      });
      for (const [name, send] of transports) {
        if (name.startsWith('Paddle') && rank !== PADDLE_RANK) continue;
        const received = await send(rank, inputs);
        for (const { datatype, raw } of inputs) {
          const bytes = received.get(datatype);
          if (bytes !== undefined) assert.deepEqual([...bytes], [...raw], `${name}, ${datatype}`);
        }
      }
    }),
    { numRuns: 18 },
  );
});
