/**
 * Patterns of rows and graphs: served scores equal those of the unpruned graph or of manual
 * pooling.
 */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import fc from 'fast-check';
import type { FeatureRows, LabelledFeatureRows } from '../../lib/core/feature-rows.ts';
import { f16ToNumber, f32BitsToF16 } from '../../lib/core/half-floats.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { parseJsonRows } from '../../lib/core/json-rows.ts';
import { decodeRows, encodeRows } from '../../lib/core/row-codec.ts';
import { POOLINGS, type Pooling } from '../../lib/core/slots.ts';
import { OnnxModel, type OnnxTensor } from '../../lib/platform/onnx.ts';
import {
  FLOAT,
  FLOAT16,
  floats,
  INT64,
  model,
  node,
  ramp,
  value,
} from '../tools/prune-model/support/onnx-builder.ts';
import { assertClose, ServedModel } from './support/served-model.ts';
import { DIM, ROWS, TABLE, THREE, WEIGHTS } from './support/three-slots.ts';

const RAW = { scheme: 'raw', seed: '0', modulo: '0' };
const plain = (name: string): object => ({ name, missing: 0, log: false, shift: 0, scale: 1 });

function int64(data: readonly number[], dims: readonly number[]): OnnxTensor {
  return { dtype: 'int64', data: BigInt64Array.from(data, BigInt), dims };
}

function float32(data: readonly number[], dims: readonly number[]): OnnxTensor {
  return { dtype: 'float32', data: Float32Array.from(data), dims };
}

async function unpruned(
  bytes: Uint8Array,
  feeds: Readonly<Record<string, OnnxTensor>>,
): Promise<Readonly<Record<string, OnnxTensor>>> {
  const full = await OnnxModel.load(bytes);
  const outputs = await full.run(feeds);
  await full.release();
  return outputs;
}

function pool(ids: readonly number[], pooling: Pooling): number[] {
  const rows = ids.map((id) => TABLE.slice(id * DIM, (id + 1) * DIM));
  return Array.from({ length: DIM }, (_, d) => {
    const column = rows.map((row) => row[d]!);
    if (column.length === 0) return 0;
    if (pooling === 'max') return Math.max(...column);
    const sum = column.reduce((total, x) => total + x, 0);
    if (pooling === 'sum') return sum;
    return sum / (pooling === 'mean' ? column.length : Math.sqrt(column.length));
  });
}

test('slots with several values are pooled, also with a shared user', async (t) => {
  for (const pooling of POOLINGS) {
    const served = await ServedModel.load(t, THREE, {
      format: 1,
      hash: RAW,
      slots: [
        { name: 'user', index: 0, pooling: 'sum' },
        { name: 'tags', index: 1, pooling },
        { name: 'item', index: 2 },
      ],
      click: { output: 'logit', column: 0 },
      ids: [{ input: 'ids', slots: ['user', 'tags', 'item'] }],
    });
    const id = fc.nat(ROWS - 1);
    const bag = fc.array(id, { maxLength: 9 });
    const batch = fc.array(fc.tuple(bag, bag, id), { minLength: 1, maxLength: 150 });
    const score = ([user, tags, item]: readonly [number[], number[], number]): number =>
      [...pool(user, 'sum'), ...pool(tags, pooling), ...pool([item], 'sum')].reduce(
        (sum, x, i) => sum + x * WEIGHTS[i]!,
        0,
      );
    const parse = (body: object): FeatureRows => {
      const json = JsonReader.of(body, 'body');
      const rows = parseJsonRows(
        json.field('rows'),
        served.bundles[0]!.features,
        1000,
        json.field('shared'),
      );
      return rows as LabelledFeatureRows;
    };
    const property = fc.asyncProperty(batch, async (rows) => {
      const own = rows.map(([user, tags, item]) => ({ user, tags, item }));
      await served.check(parse({ rows: own }), rows.map(score));
      const user = rows[0]![0];
      const candidates = rows.map(([, tags, item]) => ({ tags, item }));
      const scores = rows.map(([, tags, item]) => score([user, tags, item]));
      await served.check(parse({ shared: { user }, rows: candidates }), scores);
    });
    await fc.assert(property, { numRuns: 8 });
    // More values than the initial buffers hold, so that they grow.
    const long = Array.from({ length: 1000 }, (_, i) => i % ROWS);
    const rows = Array.from({ length: 70 }, (_, i): [number[], number[], number] => [
      long,
      [i % 3],
      1,
    ]);
    await served.check(
      parse({ rows: rows.map(([user, tags, item]) => ({ user, tags, item })) }),
      rows.map(score),
    );
    await served.check(parse({ rows: [{ user: [1], tags: [], item: 2 }] }), [score([[1], [], 2])]);
  }
});

test('bags exported by PyTorch: sums, means and empty bags', async (t) => {
  for (const name of ['bag-sum-11', 'bag-sum-13', 'bag-mean-11', 'bag-mean-13']) {
    const file = new URL(`../../../data/golden/models/${name}.onnx`, import.meta.url);
    const bytes = readFileSync(file);
    const served = await ServedModel.load(t, bytes);
    const bags = Array.from({ length: 90 }, (_, i) =>
      Array.from({ length: (i * 5) % 7 }, (_value, k) => (i * 3 + k * 5) % 10),
    );
    const ids = bags.flat();
    let end = 0;
    const ends = Uint32Array.from(bags, (bag) => (end += bag.length));
    const offsets = [0, ...ends].slice(0, -1);
    const { y } = await unpruned(bytes, {
      ids: int64(ids, [ids.length]),
      offsets: int64(offsets, [offsets.length]),
    });
    assert.ok(y);
    const keys = Uint32Array.from(ids.flatMap((id) => [id, 0]));
    const rows = { rowCount: bags.length, keys, ends, dense: new Float32Array(0) };
    await served.check(rows, y.data as Float32Array);
  }
});

test('bags with features.json: rows by name, pooling from the graph', async (t) => {
  const file = new URL('../../../data/golden/models/bag-mean-13.onnx', import.meta.url);
  const bytes = readFileSync(file);
  const features = {
    format: 1,
    hash: RAW,
    slots: [{ name: 'tags', index: 0 }],
    click: { output: 'y', column: 0 },
    ids: [{ input: 'ids', slots: ['tags'] }],
  };
  const served = await ServedModel.load(t, bytes, features);
  const rows = [{ tags: ['3', '1', '4'] }, { tags: [] }, { tags: '9' }];
  const parsed = parseJsonRows(JsonReader.of(rows, 'rows'), served.bundles[0]!.features, 10);
  const { y } = await unpruned(bytes, {
    ids: int64([3, 1, 4, 9], [4]),
    offsets: int64([0, 3, 3], [3]),
  });
  assert.ok(y);
  await served.check(parsed, y.data as Float32Array);
});

test('padding of bags does not affect scores', async (t) => {
  const bytes = model({
    inputs: [value('ids', INT64, ['l']), value('offsets', INT64, ['n'])],
    outputs: [value('e', FLOAT, ['n', DIM])],
    initializers: [floats('t', [ROWS, DIM], TABLE)],
    nodes: [
      node('ATen', ['t', 'ids', 'offsets'], ['e', 'e1', 'e2', 'e3'], {
        domain: 'org.pytorch.aten',
        attributes: { operator: 'embedding_bag', mode: 1, include_last_offset: 0, padding_idx: 2 },
      }),
      node('Identity', ['e'], ['y']),
    ],
  });
  const served = await ServedModel.load(t, bytes);
  const bags = [[1, 2, 3], [2], [], [2, 2, 7]];
  const keys = Uint32Array.from(bags.flat().flatMap((id) => [id, 0]));
  const rows = { rowCount: 4, keys, ends: Uint32Array.of(3, 4, 4, 7), dense: new Float32Array(0) };
  const counted = bags.map((bag) => bag.filter((id) => id !== 2));
  await served.check(
    rows,
    counted.flatMap((bag) => pool(bag, 'mean')),
  );
});

const SLOT_NUM = 26;

/** 26 id inputs, two dense inputs (one of 16 bits), a 16-bit score and another output. */
function wideModel(batch: number | string): Uint8Array {
  const names = Array.from({ length: SLOT_NUM }, (_, i) => `C${i}`);
  return model({
    inputs: [
      ...names.map((name) => value(name, INT64, [batch])),
      value('a', FLOAT, [batch, 2]),
      value('b', FLOAT16, [batch, 3]),
    ],
    outputs: [value('logit', FLOAT, [batch, 1]), value('prob', FLOAT16, [batch, 1])],
    initializers: [
      floats('t', [ROWS, DIM], TABLE),
      floats('w', [SLOT_NUM * DIM + 5, 1], ramp(SLOT_NUM * DIM + 5, 3)),
    ],
    nodes: [
      ...names.map((name) => node('Gather', ['t', name], [`${name}_rows`])),
      node('Cast', ['b'], ['b32'], { attributes: { to: FLOAT } }),
      node('Concat', ['b32', ...names.map((name) => `${name}_rows`), 'a'], ['x'], {
        attributes: { axis: 1 },
      }),
      node('MatMul', ['x', 'w'], ['logit']),
      node('Sigmoid', ['logit'], ['p']),
      node('Cast', ['p'], ['prob'], { attributes: { to: FLOAT16 } }),
    ],
  });
}

test('26 inputs, 16-bit floats, several outputs; dynamic and fixed batch', async (t) => {
  const dynamic = wideModel('n');
  const names = Array.from({ length: SLOT_NUM }, (_, i) => `C${i}`);
  const features = {
    format: 1,
    hash: RAW,
    slots: names.map((name, index) => ({ name, index })),
    dense: {
      input: 'a',
      features: ['a0', 'b0', 'b1', 'a1', 'b2'].map((name) => ({
        ...plain(name),
        ...(name.startsWith('b') ? { input: 'b' } : {}),
      })),
    },
    click: { output: 'prob', column: 0 },
    ids: names.map((name) => ({ input: name, slots: [name] })),
  };
  const rowCount = 70;
  const id = (row: number, slot: number): number => (row * 7 + slot * 3) % ROWS;
  const halves = [0.5, -1.25, 2, 0.125];
  const rows = Array.from({ length: rowCount }, (_, row) => ({
    dense: Array.from({ length: 5 }, (_value, i) => halves[(row + i) % 4]!),
    categorical: names.map((_name, slot) => id(row, slot)),
  }));
  const half = await unpruned(dynamic, {
    ...Object.fromEntries(
      names.map((name, slot) => [
        name,
        int64(
          rows.map((_, row) => id(row, slot)),
          [rowCount],
        ),
      ]),
    ),
    a: float32(
      rows.flatMap(({ dense }) => [dense[0]!, dense[3]!]),
      [rowCount, 2],
    ),
    b: float16(
      rows.flatMap(({ dense }) => [dense[1]!, dense[2]!, dense[4]!]),
      [rowCount, 3],
    ),
  });
  const prob = Array.from(half['prob']!.data as Uint16Array, f16ToNumber);
  for (const batch of ['n', 4]) {
    const served = await ServedModel.load(t, wideModel(batch), features);
    const parsed = parseJsonRows(JsonReader.of(rows, 'rows'), served.bundles[0]!.features, 100);
    await served.check(parsed, prob);
    const { outputs } = await served.predict(served.bundles[0]!, parsed);
    assert.deepEqual(
      outputs.map(({ name, width }) => [name, width]),
      [
        ['prob', 1],
        ['logit', 1],
      ],
    );
    assertClose(outputs[1]!.data, half['logit']!.data as Float32Array, 'logit');
  }
});

function float16(data: readonly number[], dims: readonly number[]): OnnxTensor {
  const bits = new Uint32Array(Float32Array.from(data).buffer);
  return { dtype: 'float16', data: Uint16Array.from(bits, f32BitsToF16), dims };
}

test('quantized tables are served as stored', async (t) => {
  const features = {
    format: 1,
    hash: RAW,
    slots: ['x', 'y', 'z'].map((name, index) => ({ name, index })),
    click: { output: 'logit', column: 0 },
    ids: [{ input: 'ids', slots: ['x', 'y', 'z'] }],
  };
  const ids = Array.from({ length: 60 }, (_, i) => (i * 7) % ROWS);
  const keys = Uint32Array.from(ids.flatMap((one) => [one, 0]));
  const rows = { rowCount: 20, keys, dense: new Float32Array(0) };
  for (const dtype of ['f16', 'bf16', 'i8'] as const) {
    const stored = encodeRows(dtype, Float32Array.from(TABLE), DIM);
    assert.ok(stored.errors.maxAbsolute > 0, 'the scores show whether these rows are served');
    const table = decodeRows(dtype, stored.rows, DIM, ROWS);
    const scores = Array.from({ length: 20 }, (_, row) =>
      ids
        .slice(3 * row, 3 * row + 3)
        .flatMap((one) => [...table.subarray(one * DIM, (one + 1) * DIM)])
        .reduce((sum, x, i) => sum + x * WEIGHTS[i]!, 0),
    );
    const served = await ServedModel.load(t, THREE, features, ['--dtype', dtype]);
    await served.check(rows, scores);
  }
});
