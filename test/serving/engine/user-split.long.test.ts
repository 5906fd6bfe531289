/** Graphs whose user side runs once for each user of a batch give the scores of the whole graph. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { createLogger } from '../../../lib/platform/logs.ts';
import { OnnxModel } from '../../../lib/platform/onnx.ts';
import { OnnxGraph } from '../../../proto/onnx-graph.ts';
import { type ColumnInput, splitUserSide } from '../../../proto/onnx-user-split.ts';
import { convertAndCheck } from '../../../serving/engine/precision-check.ts';
import { splitUsers } from '../../../serving/engine/split-users.ts';
import { checkUserSplit } from '../../../serving/engine/user-split-check.ts';
import {
  FLOAT,
  floats,
  ints,
  model,
  node,
  value,
} from '../../tools/prune-model/support/onnx-builder.ts';
import { type ToyRow, toyRows } from '../support/toy-bundle.ts';
import { EngineFixture } from './support/engine-fixture.ts';

/** ONNX's number of the type. */
const STRING = 8;
const NO_DATA = new Map<string, Uint8Array>();

/** Rows of several users: the candidates of a user have the features of its first row. */
function candidateRows(counts: readonly number[], userSlots: readonly number[]): ToyRow[] {
  const total = counts.reduce((sum, count) => sum + count, 0);
  const rows = toyRows(total, total);
  let first = 0;
  return counts.flatMap((count) => {
    const user = rows[first]!;
    const candidates = rows.slice(first, first + count).map((row) => ({
      dense: row.dense,
      categorical: row.categorical.map((feature, i) =>
        userSlots.includes(i) ? user.categorical[i]! : feature,
      ),
    }));
    first += count;
    return candidates;
  });
}

test('scores and misses are those of the plain computation, in every layout', async (t) => {
  for (const inputs of ['one', 'many'] as const) {
    for (const userSlots of [[0], [1, 2], [0, 1, 2]]) {
      const toy = { inputs, userSlots, wide: true, shardNum: 2 } as const;
      const engines = [
        await EngineFixture.inMemory(t, { toy, batching: { maxBatch: 16 } }),
        await EngineFixture.onFakeStore(t, { toy, batching: { maxBatch: 16 } }),
      ];
      for (const engine of engines) {
        assert.ok(engine.bundle.plan.users !== undefined);
        for (const counts of [[1], [5], [1, 1, 1], [3, 1, 4], [40, 20, 1]]) {
          const rows = candidateRows(counts, userSlots);
          engine.assertScores(rows, await engine.predict(rows));
        }
        const requests = [7, 3, 2, 9, 1].map((count) => candidateRows([count], userSlots));
        const predictions = await Promise.all(requests.map((rows) => engine.predict(rows)));
        predictions.forEach((prediction, i) => {
          engine.assertScores(requests[i]!, prediction);
        });
      }
    }
  }
});

test('a user that a request sends once has the scores of one that every row repeats', async (t) => {
  const engine = await EngineFixture.inMemory(t, { toy: { userSlots: [0, 2] } });
  const rows = candidateRows([6], [0, 2]);
  const { features } = engine.bundle;
  const shared = {
    slots: Int32Array.of(0, 2),
    features: [rows[0]!.categorical[0]!, rows[0]!.categorical[2]!],
  };
  const repeated = await engine.predict(rows);
  const dense = new Float32Array(6 * (features.dense?.features.length ?? 0));
  const own = rows.map(({ categorical }) => categorical[1]!);
  const all = rows.flatMap(({ categorical }) => categorical);
  const once = await engine.send({ rowCount: 6, dense, features: own, shared });
  const inEachRow = await engine.send({ rowCount: 6, dense, features: all });
  assert.deepEqual(once.clickOutput, inEachRow.clickOutput);
  assert.equal(once.unseen, repeated.unseen);
});

test('without user-side slots, or turned off, the graph is as published', async (t) => {
  const plain = await EngineFixture.inMemory(t);
  const off = await EngineFixture.inMemory(t, { toy: { userSlots: [0] }, splitsUsers: false });
  for (const engine of [plain, off]) {
    assert.equal(engine.bundle.plan.users, undefined);
    const rows = candidateRows([3, 2], [0]);
    engine.assertScores(rows, await engine.predict(rows));
  }
});

test('split graphs can have weights with fewer bits', async () => {
  const width = 40;
  const bytes = model({
    opset: 13,
    inputs: [value('e', FLOAT, ['n', width])],
    outputs: [value('y', FLOAT, ['n', 16])],
    initializers: [weight('w', [width, 16])],
    nodes: [node('MatMul', ['e', 'w'], ['z']), node('Sigmoid', ['z'], ['y'])],
  });
  const isUser = Array.from({ length: 4 }, (_, i) => i % 2 === 0);
  const split = splitUserSide(bytes, [{ name: 'e', dims: [width], width: 10, isUser }], 'graph');
  assert.ok(split !== undefined);
  for (const precision of ['fp16', 'bf16', 'int8'] as const) {
    const request = { model: split.model, data: NO_DATA, precision, source: 'graph' };
    const { difference } = await convertAndCheck(request);
    assert.ok(difference > 0, 'the weights of both sides have fewer bits');
  }
});

/** What a random graph is made of. */
interface GraphParts {
  readonly isUser: readonly (readonly boolean[])[];
  readonly dim: number;
  readonly ops: readonly number[];
  readonly isTransposed: boolean;
  readonly hasDense: boolean;
}

const parts: fc.Arbitrary<GraphParts> = fc.record({
  isUser: fc.array(fc.array(fc.boolean(), { minLength: 1, maxLength: 4 }), {
    minLength: 1,
    maxLength: 3,
  }),
  dim: fc.integer({ min: 1, max: 4 }),
  ops: fc.array(fc.nat(15), { minLength: 1, maxLength: 8 }),
  isTransposed: fc.boolean(),
  hasDense: fc.boolean(),
});

const HIDDEN = 5;

/** Fixed values that look like weights. */
function weight(name: string, dims: readonly number[]): Uint8Array {
  const length = dims.reduce((product, dim) => product * dim, 1);
  return floats(
    name,
    dims,
    Array.from({ length }, (_, i) => Math.sin(1 + 7.13 * i + length)),
  );
}

/** A graph that takes embeddings through random operators to one output of rank 2. */
class RandomGraph {
  readonly #parts: GraphParts;
  readonly #nodes: Uint8Array[] = [];
  readonly #initializers: Uint8Array[] = [ints('flat', [2], [0, -1]), ints('axis1', [1], [1])];
  /** Values of rank 2 with their widths. */
  readonly #values: { name: string; width: number }[] = [];
  readonly inputs: readonly ColumnInput[];

  constructor(parts: GraphParts) {
    const { isUser, dim, ops, hasDense } = parts;
    this.#parts = parts;
    this.inputs = isUser.map((columns, i): ColumnInput => {
      return { name: `e${i}`, dims: [columns.length, dim], width: dim, isUser: columns };
    });
    for (const { name, isUser: columns } of this.inputs) {
      const width = columns.length * dim;
      if (columns.length % 2 === 0) this.#emit('Reshape', [name, 'flat'], width);
      else this.#emit('Flatten', [name], width, { axis: 1 });
      // The sum over the columns, as linear parts of models have it.
      this.#emit('ReduceSum', [name, 'axis1'], dim, { keepdims: 0 });
    }
    if (hasDense) this.#values.push({ name: 'dense', width: 3 });
    for (const [i, op] of ops.entries()) this.#addOperator(i, op);
  }

  #emit(
    op: string,
    operands: readonly string[],
    width: number,
    attributes: Readonly<Record<string, number>> = {},
  ): string {
    const name = `v${this.#nodes.length}`;
    this.#nodes.push(node(op, operands, [name], { attributes }));
    this.#values.push({ name, width });
    return name;
  }

  #addWeight(name: string, dims: readonly number[]): string {
    this.#initializers.push(weight(name, dims));
    return name;
  }

  #addOperator(i: number, op: number): void {
    const pick = (offset: number) => this.#values[(op + i + offset) % this.#values.length]!;
    const [a, b] = [pick(0), pick(3)];
    const { isTransposed } = this.#parts;
    if (op <= 3) {
      const width = a.width + b.width;
      const joined = this.#emit('Concat', [a.name, b.name], width, { axis: op % 2 ? 1 : -1 });
      if (op === 0) this.#emit('Relu', [joined], width);
      const matrix = this.#addWeight(`w${i}`, isTransposed ? [HIDDEN, width] : [width, HIDDEN]);
      const bias = this.#addWeight(`b${i}`, [HIDDEN]);
      this.#emit('Gemm', [joined, matrix, bias], HIDDEN, { transB: isTransposed ? 1 : 0 });
    } else if (op <= 5) {
      this.#emit('MatMul', [a.name, this.#addWeight(`w${i}`, [a.width, HIDDEN])], HIDDEN);
    } else if (op <= 7) this.#emit(op === 6 ? 'Tanh' : 'Softmax', [a.name], a.width);
    else if (op === 8) this.#emit('Add', [a.name, this.#addWeight(`w${i}`, [1, a.width])], a.width);
    else if (op === 11) this.#addPairs(i);
    else if (op === 12) {
      this.#initializers.push(ints(`from${i}`, [1], [-a.width]), ints(`to${i}`, [1], [1]));
      this.#emit('Slice', [a.name, `from${i}`, `to${i}`, 'axis1'], 1);
    } else if (op >= 13) {
      const columns = Array.from(
        { length: op - 10 },
        (_, k) => ((k * 5 + i) % a.width) - (k % 2) * a.width,
      );
      this.#initializers.push(ints(`picked${i}`, [columns.length], columns));
      this.#emit('Gather', [a.name, `picked${i}`], columns.length, { axis: 1 });
    } else {
      const same = this.#values.filter(({ width }) => width === a.width).at(-1) ?? a;
      this.#emit(op === 9 ? 'Mul' : 'Sub', [a.name, same.name], a.width);
    }
  }

  /** The dot products of all pairs of embeddings, in another order, and some of them twice. */
  #addPairs(i: number): void {
    const { inputs } = this;
    const count = inputs.reduce((sum, { isUser }) => sum + isUser.length, 0);
    const embeddings = inputs.map(({ name }) => name);
    const order = Array.from({ length: count }, (_, k) => (k + i) % count);
    this.#initializers.push(ints(`order${i}`, [count], order));
    const nodes = [
      node('Concat', embeddings, [`all${i}`], { attributes: { axis: 1 } }),
      node('Gather', [`all${i}`, `order${i}`], [`ordered${i}`], { attributes: { axis: 1 } }),
      node('Transpose', [`ordered${i}`], [`columns${i}`], { attributes: { perm: [0, 2, 1] } }),
      node('MatMul', [`ordered${i}`, `columns${i}`], [`pairs${i}`]),
    ];
    this.#nodes.push(...nodes);
    this.#emit('Flatten', [`pairs${i}`], count * count, { axis: 1 });
  }

  /** Every value counts for the output, else nothing would notice a wrong one. */
  encode(): Uint8Array {
    const names = this.#values.map(({ name }) => name);
    const total = this.#values.reduce((sum, { width }) => sum + width, 0);
    this.#addWeight('out', [total, 2]);
    return model({
      opset: 13,
      inputs: [
        ...this.inputs.map(({ name, dims }) => value(name, FLOAT, ['n', ...dims])),
        ...(this.#parts.hasDense ? [value('dense', FLOAT, ['n', 3])] : []),
      ],
      outputs: [value('y', FLOAT, ['n', 2]), value(names.at(-1) ?? '', FLOAT, ['n', 'm'])],
      initializers: this.#initializers,
      nodes: [
        ...this.#nodes,
        node('Concat', names, ['all'], { attributes: { axis: 1 } }),
        node('MatMul', ['all', 'out'], ['z']),
        node('Sigmoid', ['z'], ['y']),
      ],
    });
  }
}

test('random graphs give the same outputs, whatever belongs to the user', async () => {
  let splits = 0;
  const property = fc.asyncProperty(parts, async (graph) => {
    const random = new RandomGraph(graph);
    const { inputs } = random;
    const bytes = random.encode();
    const split = splitUserSide(bytes, inputs, 'random');
    assert.equal(split === undefined, !graph.isUser.flat().includes(true));
    if (split === undefined) return;
    splits++;
    await checkUserSplit({ original: bytes, data: NO_DATA, inputs, split });
  });
  await fc.assert(property, { numRuns: 150 });
  assert.ok(splits > 50, `${splits} graphs were split`);
});

test('a graph that computes something else is refused', async () => {
  const graph = (factor: number) =>
    model({
      opset: 13,
      inputs: [value('e', FLOAT, ['n', 2])],
      outputs: [value('y', FLOAT, ['n', 1])],
      initializers: [floats('w', [2, 1], [1, factor])],
      nodes: [node('MatMul', ['e', 'w'], ['y'])],
    });
  const inputs = [{ name: 'e', dims: [2], width: 1, isUser: [true, false] }];
  const split = splitUserSide(graph(2.001), inputs, 'graph');
  assert.ok(split !== undefined);
  await assert.rejects(
    checkUserSplit({ original: graph(2), data: NO_DATA, inputs, split }),
    /its outputs would differ by 0\.00\d+, the limit is 0\.00001/,
  );
});

test('the user side of a two-tower graph runs on users only', async () => {
  const bytes = model({
    opset: 13,
    inputs: [value('user', FLOAT, ['n', 4]), value('item', FLOAT, ['n', 3])],
    outputs: [value('y', FLOAT, ['n', 1])],
    initializers: [weight('wu', [4, HIDDEN]), weight('wi', [3, HIDDEN]), ints('last', [1], [1])],
    nodes: [
      node('MatMul', ['user', 'wu'], ['u']),
      node('Tanh', ['u'], ['ut']),
      node('MatMul', ['item', 'wi'], ['i']),
      node('Mul', ['ut', 'i'], ['product']),
      node('ReduceSum', ['product', 'last'], ['y'], { attributes: { keepdims: 1 } }),
    ],
  });
  const inputs = [
    { name: 'user', dims: [4], width: 2, isUser: [true, true] },
    { name: 'item', dims: [3], width: 3, isUser: [false] },
  ];
  const split = splitUserSide(bytes, inputs, 'towers');
  assert.ok(split !== undefined);
  await checkUserSplit({ original: bytes, data: NO_DATA, inputs, split });
  const graph = await OnnxModel.load(split.model, { source: 'towers' });
  const { y } = await graph.run({
    user: { dtype: 'float32', data: new Float32Array(4).fill(0.5), dims: [1, 4] },
    item: { dtype: 'float32', data: new Float32Array(15).fill(0.25), dims: [5, 3] },
    [split.rowUsers]: { dtype: 'int64', data: new BigInt64Array(5), dims: [5] },
  });
  assert.deepEqual(y?.dims, [5, 1]);
  await graph.release();
});

/** The names of values that a value is computed from. */
function findAncestors({ nodes }: OnnxGraph, name: string): Set<string> {
  const found = new Set([name]);
  for (const { inputs, outputs } of nodes.toReversed()) {
    if (outputs.some((output) => found.has(output))) for (const input of inputs) found.add(input);
  }
  return found;
}

test('a tower that takes columns of a shared input runs on users only', async () => {
  const tower = (side: string, pick: Uint8Array) => [
    pick,
    node('Flatten', [side], [`${side}_flat`]),
    node('MatMul', [`${side}_flat`, `w_${side}`], [`${side}_out`]),
    node('Tanh', [`${side}_out`], [`${side}_vector`]),
  ];
  const bytes = model({
    opset: 13,
    inputs: [value('e', FLOAT, ['n', 5, 2])],
    outputs: [value('y', FLOAT, ['n', 1])],
    initializers: [
      weight('w_user', [6, HIDDEN]),
      weight('w_item', [4, HIDDEN]),
      ints('user_columns', [3], [0, 4, 1]),
      ints('from', [1], [2]),
      ints('to', [1], [4]),
      ints('axis', [1], [1]),
    ],
    nodes: [
      ...tower(
        'user',
        node('Gather', ['e', 'user_columns'], ['user'], { attributes: { axis: 1 } }),
      ),
      ...tower('item', node('Slice', ['e', 'from', 'to', 'axis'], ['item'])),
      node('Mul', ['user_vector', 'item_vector'], ['product']),
      node('ReduceSum', ['product', 'axis'], ['y'], { attributes: { keepdims: 1 } }),
    ],
  });
  const isUser = [true, true, false, false, true];
  const inputs = [{ name: 'e', dims: [5, 2], width: 2, isUser }];
  const split = splitUserSide(bytes, inputs, 'towers');
  assert.ok(split !== undefined);
  await checkUserSplit({ original: bytes, data: NO_DATA, inputs, split });
  const graph = new OnnxGraph(split.model, 'split');
  const [users, items] = split.inputs[0]!.map(({ name }) => name);
  const ofUsers = findAncestors(graph, 'user_vector');
  assert.ok(ofUsers.has(users!) && !ofUsers.has(items!) && !ofUsers.has(split.rowUsers));
  const ofItems = findAncestors(graph, 'item_vector');
  assert.ok(ofItems.has(items!) && !ofItems.has(users!));
});

test('products of two embeddings of the user are computed for users only', async () => {
  const count = 6;
  const pairs = Array.from({ length: count }, (_, a) =>
    Array.from({ length: a }, (__, b) => a * count + b),
  ).flat();
  const dim = 3;
  const bytes = model({
    opset: 13,
    inputs: [value('e', FLOAT, ['n', count - 1, dim]), value('dense', FLOAT, ['n', dim])],
    outputs: [value('y', FLOAT, ['n', HIDDEN])],
    initializers: [
      ints('axis', [1], [1]),
      ints('pairs', [pairs.length], pairs),
      weight('top', [HIDDEN, dim + pairs.length]),
      weight('bias', [HIDDEN]),
    ],
    nodes: [
      node('Unsqueeze', ['dense', 'axis'], ['row']),
      node('Concat', ['row', 'e'], ['all'], { attributes: { axis: 1 } }),
      node('Transpose', ['all'], ['columns'], { attributes: { perm: [0, 2, 1] } }),
      node('MatMul', ['all', 'columns'], ['products']),
      node('Flatten', ['products'], ['flat']),
      node('Gather', ['flat', 'pairs'], ['picked'], { attributes: { axis: 1 } }),
      node('Concat', ['dense', 'picked'], ['top_input'], { attributes: { axis: 1 } }),
      node('Gemm', ['top_input', 'top', 'bias'], ['y'], { attributes: { transB: 1 } }),
    ],
  });
  const isUser = [true, true, false, true, true];
  const inputs = [{ name: 'e', dims: [count - 1, dim], width: dim, isUser }];
  const split = splitUserSide(bytes, inputs, 'dlrm');
  assert.ok(split !== undefined);
  await checkUserSplit({ original: bytes, data: NO_DATA, inputs, split });
  const graph = new OnnxGraph(split.model, 'split');
  assert.ok(!graph.nodes.some(({ outputs }) => outputs.includes('products')));
  const parts = [...graph.weights.values()].filter(({ name }) => name.includes('top@part'));
  // Of users, products of 4 vectors; of rows, dense and products of 2 vectors with all.
  assert.deepEqual(
    parts.map(({ dims }) => dims),
    [
      [4 * 4, HIDDEN],
      [dim + 2 * count, HIDDEN],
    ],
  );
});

test('a graph that cannot be checked is served whole, with the reason in the log', async (t) => {
  const reasons: (string | undefined)[] = [];
  const logger = createLogger('test', { level: 'silent' });
  t.mock.method(logger, 'warn', ({ reason }: { reason?: string }) => reasons.push(reason));
  const engine = await EngineFixture.inMemory(t, { toy: { userSlots: [0] }, splitsUsers: false });
  const { plan, features } = engine.bundle;
  const text = model({
    opset: 13,
    inputs: [value('e', FLOAT, ['n', 2]), value('text', STRING, ['n'])],
    outputs: [value('y', FLOAT, ['n', 2]), value('copy', STRING, ['n'])],
    initializers: [],
    nodes: [node('Relu', ['e'], ['y']), node('Identity', ['text'], ['copy'])],
  });
  const graph = { model: text, data: NO_DATA, source: 'toy 1: model.onnx' };
  const table = { ...plan.tables[0]!, dim: 2, columns: Int32Array.of(0) };
  const embedding = { input: 'e', table: 0, columns: Int32Array.of(0), shape: [2] };
  const whole = { ...plan, tables: [table], embeddings: [embedding] };
  const served = await splitUsers(graph, whole, { features, logger });
  assert.equal(served.graph, graph);
  assert.equal(served.plan, whole);
  assert.match(reasons.join(), /input "text": inputs of string cannot be sampled/);
});

test('graphs of a fixed batch stay whole', async (t) => {
  const engine = await EngineFixture.inMemory(t, { toy: { userSlots: [0] }, splitsUsers: false });
  const { plan, features } = engine.bundle;
  const graph = { model: new Uint8Array(0), data: NO_DATA, source: 'toy 1' };
  const logger = createLogger('test', { level: 'silent' });
  const fixed = await splitUsers(graph, { ...plan, fixedBatch: 4 }, { features, logger });
  assert.equal(fixed.plan.users, undefined);
});
