import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import {
  type GraphSignature,
  hasBatchDimension,
  type TensorDim,
  type TensorType,
  toWireShape,
} from '../../lib/core/graph-signature.ts';
import { OnnxModel } from '../../lib/platform/onnx.ts';
import { readGraphSignature } from '../../proto/onnx-signature.ts';
import { WireWriter } from '../../proto/wire.ts';
import {
  floats,
  graph,
  model,
  node,
  smallModel,
  tensor,
  value,
} from '../tools/prune-model/support/onnx-builder.ts';

/** Number in ONNX, name here, name in onnxruntime. */
const TYPES: readonly (readonly [number, TensorType, string])[] = [
  [1, 'FP32', 'float32'],
  [2, 'UINT8', 'uint8'],
  [3, 'INT8', 'int8'],
  [4, 'UINT16', 'uint16'],
  [5, 'INT16', 'int16'],
  [6, 'INT32', 'int32'],
  [7, 'INT64', 'int64'],
  [8, 'BYTES', 'string'],
  [9, 'BOOL', 'bool'],
  [10, 'FP16', 'float16'],
  [11, 'FP64', 'float64'],
  [12, 'UINT32', 'uint32'],
  [13, 'UINT64', 'uint64'],
];

test('the signature of random graphs equals the metadata of their sessions', async () => {
  const dim = fc.oneof(fc.integer({ min: 1, max: 9 }), fc.constantFrom('batch', 'n'));
  const port = fc.tuple(fc.constantFrom(...TYPES), fc.array(dim, { maxLength: 4 }));
  const graphs = fc.array(port, { minLength: 1, maxLength: 5 });
  await fc.assert(
    fc.asyncProperty(graphs, async (ports) => {
      const bytes = model({
        inputs: ports.map(([[type], dims], i) => value(`x${i}`, type, dims)),
        outputs: ports.map(([[type], dims], i) => value(`y${i}`, type, dims)),
        nodes: ports.map((_, i) => node('Identity', [`x${i}`], [`y${i}`])),
      });
      const expected = ports.map(([[, type], dims], i) => [`x${i}`, type, dims]);
      const { inputs, outputs } = readGraphSignature(bytes, 'm.onnx');
      assert.deepEqual(
        inputs.map(({ name, dataType, dims }) => [name, dataType, dims]),
        expected,
      );
      assert.deepEqual(
        outputs.map(({ name, dataType, dims }) => [name, dataType, dims]),
        expected.map(([, type, dims], i) => [`y${i}`, type, dims]),
      );
      const loaded = await OnnxModel.load(bytes);
      const session = loaded.inputs.map(({ name, dtype, shape }) => {
        return [name, TYPES.find(([, , runtime]) => runtime === dtype)?.[1], shape];
      });
      await loaded.release();
      assert.deepEqual(session, expected);
    }),
    { numRuns: 25 },
  );
});

test('constants that a file lists as inputs, too, are not inputs', () => {
  const bytes = model({
    inputs: [value('x', 1, ['batch', 2]), value('two', 1, [1])],
    outputs: [value('y', 1, ['batch', 2])],
    initializers: [floats('two', [1], [2])],
    nodes: [node('Mul', ['x', 'two'], ['y'])],
  });
  const { inputs } = readGraphSignature(bytes, 'm.onnx');
  assert.deepEqual(inputs, [{ name: 'x', dataType: 'FP32', dims: ['batch', 2] }]);
});

test('dimensions without a size or a rank are told apart from scalars', () => {
  const untyped = (shape: Uint8Array | undefined): Uint8Array => {
    const type = new WireWriter().uint(1, 1);
    if (shape !== undefined) type.bytes(2, shape);
    return new WireWriter()
      .string(1, 'x')
      .message(2, (t) => t.bytes(1, type.finish()))
      .finish();
  };
  const dims = (shape: Uint8Array | undefined): readonly TensorDim[] | undefined => {
    const bytes = model({ inputs: [untyped(shape)], outputs: [untyped(shape)], nodes: [] });
    return readGraphSignature(bytes, 'm.onnx').inputs[0]?.dims;
  };
  assert.equal(dims(undefined), undefined);
  assert.deepEqual(dims(new Uint8Array()), []);
  const negative = new WireWriter().message(1, (dim) => dim.uint(1, -1n)).message(1, () => {});
  assert.deepEqual(dims(negative.finish()), ['', '']);
  assert.deepEqual(toWireShape(['', 3, 'n']), [-1, 3, -1]);
});

test('a batch dimension is dynamic everywhere, under one name', () => {
  const spec = (...dims: TensorDim[]) => ({ name: 'x', dataType: 'FP32' as const, dims });
  const has = (inputs: GraphSignature['inputs'], outputs: GraphSignature['outputs']): boolean =>
    hasBatchDimension({ inputs, outputs });
  assert.ok(has([spec('batch', 3), spec('', 4)], [spec('other', 1)]));
  assert.ok(has([spec('batch')], [{ ...spec(), dims: undefined }]));
  assert.ok(!has([spec('batch', 3), spec('words')], [spec('batch', 1)]));
  assert.ok(!has([spec('batch', 3), spec(2)], [spec('batch', 1)]));
  assert.ok(!has([spec('batch', 3)], [spec()]));
  assert.ok(!has([spec()], [spec('batch')]));
  assert.ok(!has([], [spec('batch')]));
});

test('values that are no tensors of a supported type are refused by name', () => {
  const sequence = new WireWriter()
    .string(1, 'scores')
    .message(2, (type) => type.bytes(4, new Uint8Array()))
    .finish();
  const read = (outputs: Uint8Array[]) => () =>
    readGraphSignature(model({ inputs: [], outputs, nodes: [] }), 'm.onnx');
  assert.throws(read([sequence]), /m.onnx: output "scores" is not a tensor.*zipmap/);
  assert.throws(read([value('y', 17, [1])]), /output "y": its element type \(number 17 of ONNX\)/);
});

test('damaged and foreign bytes fail as corrupt, and never in another way', () => {
  const valid = smallModel();
  assert.throws(() => readGraphSignature(new Uint8Array(0), 'm.onnx'), /m.onnx .*it has no graph/);
  const damaged = fc.tuple(fc.nat(valid.length - 1), fc.nat(255), fc.nat(valid.length));
  fc.assert(
    fc.property(damaged, ([at, byte, length]) => {
      const bytes = Uint8Array.from(valid);
      bytes[at] = byte;
      try {
        readGraphSignature(bytes.subarray(0, length), 'm.onnx');
      } catch (error) {
        assert.ok(error instanceof CubeError, String(error));
        assert.ok(['CORRUPT', 'UNSUPPORTED'].includes(error.code), error.message);
      }
    }),
    { numRuns: 500 },
  );
  const deep = graph({ nodes: [], inputs: [tensor('x', 1, [1], new Uint8Array(4))], outputs: [] });
  const other = new WireWriter().bytes(7, deep).finish();
  assert.throws(() => readGraphSignature(other, 'm.onnx'), CubeError);
});
