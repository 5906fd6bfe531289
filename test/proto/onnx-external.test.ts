/** The files with external data that a model names: wherever a tensor may be, and hostile bytes. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import { listExternalFiles } from '../../proto/onnx-external.ts';
import { WireWriter } from '../../proto/wire.ts';
import {
  externalFloats,
  FLOAT,
  floats,
  graph,
  model,
  node,
  value,
} from '../tools/prune-model/support/onnx-builder.ts';

const PORTS = { inputs: [value('x', FLOAT, [1])], outputs: [value('y', FLOAT, [1])] };
const IDENTITY = node('Identity', ['x'], ['y']);

test('files are found in weights, attributes, branches and functions, each once', () => {
  const external = (location: string): Uint8Array => externalFloats('w', [1], location);
  const branch = graph({
    ...PORTS,
    nodes: [node('Constant', [], ['c'], { attributes: { value: { tensor: external('c.bin') } } })],
    initializers: [external('b.bin'), external('a.bin')],
  });
  const body = new WireWriter()
    .string(1, 'f')
    .bytes(7, node('Constant', [], ['c'], { attributes: { value: { tensor: external('d') } } }))
    .finish();
  const bytes = model({
    ...PORTS,
    nodes: [node('If', ['x'], ['y'], { attributes: { then_branch: { graph: branch } } })],
    initializers: [external('a.bin'), floats('inside', [1], [1])],
    functions: [body],
  });
  assert.deepEqual(listExternalFiles(bytes, 'm.onnx').sort(), ['a.bin', 'b.bin', 'c.bin', 'd']);
});

test('a tensor whose data is inside names no file', () => {
  const entry = (location: number | undefined): Uint8Array => {
    const writer = new WireWriter().uint(1, 1).uint(2, FLOAT).string(8, 'w');
    writer.message(13, (pair) => pair.string(1, 'location').string(2, 'old.bin'));
    return location === undefined ? writer.finish() : writer.uint(14, location).finish();
  };
  const initializers = [entry(undefined), entry(0)];
  assert.deepEqual(
    listExternalFiles(model({ ...PORTS, nodes: [IDENTITY], initializers }), 'm'),
    [],
  );
});

test('bytes that are not a model are CORRUPT and take bounded depth', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 64 }), (bytes) => {
      try {
        assert.ok(Array.isArray(listExternalFiles(bytes, 'm.onnx')));
      } catch (error) {
        assert.ok(error instanceof CubeError);
        assert.equal(error.code, 'CORRUPT');
        assert.match(error.message, /^m\.onnx is not a valid ONNX model: /);
      }
    }),
  );
  let nested = graph({ ...PORTS, nodes: [] });
  for (let depth = 0; depth < 1_000; depth++) {
    const nodes = [node('If', ['x'], ['y'], { attributes: { then_branch: { graph: nested } } })];
    nested = graph({ ...PORTS, nodes });
  }
  const bytes = new WireWriter().bytes(7, nested).finish();
  assert.throws(() => listExternalFiles(bytes, 'm'), /m is not a valid .* nest too deep/);
});
