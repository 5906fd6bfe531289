/** Random key expressions and ids give the same results as the operators of onnxruntime. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import {
  type KeyDtype,
  type KeyExpression,
  KeyExpressionReader,
  type KeyOperator,
  keyExpressionToJson,
  keyMapToJson,
  readKeyMap,
} from '../../lib/core/key-expression.ts';
import { KeyTransform, NO_KEY } from '../../lib/core/key-transform.ts';
import { keyToBigint, setKey } from '../../lib/core/keys.ts';
import { OnnxModel } from '../../lib/platform/onnx.ts';
import {
  BOOL,
  INT32,
  INT64,
  model,
  node,
  tensor,
  value,
} from '../tools/prune-model/support/onnx-builder.ts';

const COLUMNS = 3;
const ROWS = Number.MAX_SAFE_INTEGER;
const MAP = BigInt64Array.from([5n, -3n, 2n ** 40n, 0n, 7n]);

const OPERATORS: readonly (readonly [KeyOperator, string])[] = [
  ['add', 'Add'],
  ['sub', 'Sub'],
  ['mul', 'Mul'],
  ['min', 'Min'],
  ['max', 'Max'],
  ['neg', 'Neg'],
  ['abs', 'Abs'],
];
const DIVISIONS = ['div', 'mod', 'fmod'] as const;

function modulo(of: KeyExpression, dtype: KeyDtype, divisor: bigint): KeyExpression {
  return { op: 'mod', dtype, of: [of, { op: 'int', value: divisor }] };
}

/** An expression whose value has this dtype. */
function expressions(dtype: 'int64' | 'int32', depth: number): fc.Arbitrary<KeyExpression> {
  const column = fc
    .nat(COLUMNS - 1)
    .map((c): KeyExpression => ({ op: 'column', input: 'ids', column: c }));
  const leaf =
    dtype === 'int64' ? column : column.map((c): KeyExpression => ({ op: 'cast', dtype, of: [c] }));
  const limit = dtype === 'int64' ? 2n ** 33n : 2n ** 31n - 1n;
  const int = fc.bigInt(-limit, limit).map((n): KeyExpression => ({ op: 'int', value: n }));
  if (depth === 0) return leaf;
  const inner = fc.oneof(leaf, int, expressions(dtype, depth - 1));
  const first = fc.oneof(leaf, expressions(dtype, depth - 1));
  const arithmetic = fc.tuple(fc.constantFrom(...OPERATORS), first, inner).map(
    ([[op], a, b]): KeyExpression => ({
      op,
      dtype,
      of: op === 'neg' || op === 'abs' ? [a] : [a, b],
    }),
  );
  const divisor = fc.bigInt(-1000n, 100_003n).filter((n) => n !== 0n && n !== -1n);
  const division = fc
    .tuple(fc.constantFrom(...DIVISIONS), first, divisor)
    .map(([op, a, n]): KeyExpression => {
      // onnxruntime computes fmod in doubles: of more than 53 bits it gets it wrong.
      const of = op === 'fmod' ? modulo(a, dtype, 2n ** 30n) : a;
      return { op, dtype, of: [of, { op: 'int', value: n }] };
    });
  const guard = fc
    .tuple(conditions(dtype, depth - 1), inner, inner)
    .map((of): KeyExpression => ({ op: 'where', dtype, of }));
  const mapped = first.map(
    (a): KeyExpression => ({
      op: 'map',
      map: 'm',
      of: [modulo(a, dtype, 5n)],
    }),
  );
  const narrowed = mapped.map(
    (m): KeyExpression => (dtype === 'int64' ? m : { op: 'cast', dtype, of: [m] }),
  );
  return fc.oneof(leaf, arithmetic, arithmetic, division, guard, narrowed);
}

function conditions(dtype: 'int64' | 'int32', depth: number): fc.Arbitrary<KeyExpression> {
  const side = expressions(dtype, depth);
  const test = fc
    .tuple(fc.constantFrom('equal' as const, 'less' as const), side, side)
    .map(([op, a, b]): KeyExpression => ({ op, dtype: 'bool', of: [a, b] }));
  const joined = fc
    .tuple(fc.constantFrom('and' as const, 'or' as const, 'xor' as const), test, test)
    .map(([op, a, b]): KeyExpression => ({ op, dtype: 'bool', of: [a, b] }));
  return fc.oneof(
    test,
    joined,
    test.map((a): KeyExpression => ({ op: 'not', dtype: 'bool', of: [a] })),
  );
}

const NAMES: Readonly<Record<string, string>> = {
  div: 'Div',
  mod: 'Mod',
  fmod: 'Mod',
  equal: 'Equal',
  less: 'Less',
  and: 'And',
  or: 'Or',
  xor: 'Xor',
  not: 'Not',
  where: 'Where',
  cast: 'Cast',
  ...Object.fromEntries(OPERATORS),
};
const TYPES: Readonly<Record<KeyDtype, number>> = { int64: INT64, int32: INT32, bool: BOOL };

/** The graph of an expression: ids [n, COLUMNS] → y [n, 1], int64. */
function buildGraph(expression: KeyExpression): Uint8Array {
  const nodes: Uint8Array[] = [];
  const initializers = [tensor('m', INT64, [5], MAP)];
  let count = 0;
  const constant = (dtype: KeyDtype, n: bigint): string => {
    const name = `c${count++}`;
    const data = dtype === 'int32' ? Int32Array.of(Number(n)) : BigInt64Array.of(n);
    initializers.push(tensor(name, TYPES[dtype], [1], data));
    return name;
  };
  const visit = (e: KeyExpression, wanted: KeyDtype): string => {
    const output = `v${count++}`;
    if (e.op === 'int') return constant(wanted, e.value);
    if (e.op === 'column') {
      nodes.push(
        node('Gather', ['ids', constant('int64', BigInt(e.column))], [output], {
          attributes: { axis: 1 },
        }),
      );
    } else if (e.op === 'map') {
      nodes.push(node('Gather', ['m', visit(e.of[0], getTensorType(e.of[0]))], [output]));
    } else {
      const inner = e.op === 'where' || e.dtype !== 'bool' ? e.dtype : operandType(e.of);
      const inputs = e.of.map((operand, i) =>
        visit(operand, e.op === 'where' && i === 0 ? 'bool' : inner),
      );
      if (e.op === 'min' || e.op === 'max') {
        // onnxruntime 1.30 returns 2^31 as the minimum of the int64 0 and 2^31: a comparison is
        // used instead.
        const [least, greatest] = e.op === 'min' ? inputs : inputs.toReversed();
        assert.ok(least && greatest);
        nodes.push(node('Less', inputs, [`${output}_less`]));
        nodes.push(node('Where', [`${output}_less`, least, greatest], [output]));
        return output;
      }
      const attributes = {
        ...(e.op === 'cast' ? { to: TYPES[e.dtype] } : {}),
        ...(e.op === 'fmod' ? { fmod: 1 } : {}),
      };
      nodes.push(node(NAMES[e.op]!, inputs, [output], { attributes }));
    }
    return output;
  };
  const last = visit(expression, 'int64');
  nodes.push(node('Cast', [last], ['y'], { attributes: { to: INT64 } }));
  return model({
    nodes,
    initializers,
    inputs: [value('ids', INT64, ['n', COLUMNS])],
    outputs: [value('y', INT64, ['n', 1])],
    opset: 14,
  });
}

function getTensorType(e: KeyExpression): KeyDtype {
  return e.op === 'column' || e.op === 'map' || e.op === 'int' ? 'int64' : e.dtype;
}

function operandType(of: readonly KeyExpression[]): KeyDtype {
  return getTensorType(of.find(({ op }) => op !== 'int') ?? of[0]!);
}

/** As a table of 2^53 − 1 rows would be asked. */
function expectedKey(id: bigint): bigint {
  const key = id < 0n ? id + BigInt(ROWS) : id;
  return key >= 0n && key < BigInt(ROWS) ? key : 2n ** 64n - 1n;
}

test('random expressions: the same keys as onnxruntime, small ids and huge ones', async () => {
  const small = fc.bigInt(-(2n ** 20n), 2n ** 20n);
  const huge = fc.bigInt(-(2n ** 63n) + 1n, 2n ** 63n - 1n);
  const ids = fc.oneof({ weight: 4, arbitrary: small }, { weight: 1, arbitrary: huge });
  const either = fc
    .constantFrom('int64' as const, 'int32' as const)
    .chain((dtype) => expressions(dtype, 3));
  await fc.assert(
    fc.asyncProperty(
      either,
      fc.array(ids, { minLength: COLUMNS, maxLength: 30 }),
      async (expression, values) => {
        const rowCount = Math.floor(values.length / COLUMNS);
        const data = BigInt64Array.from(values.slice(0, rowCount * COLUMNS));
        const graph = await OnnxModel.load(buildGraph(expression));
        const { y } = await graph.run({ ids: { dtype: 'int64', data, dims: [rowCount, COLUMNS] } });
        assert.ok(y);
        await graph.release();
        const inputs = [{ name: 'ids', dtype: 'int64' as const, columns: COLUMNS }];
        const transform = new KeyTransform(
          inputs,
          [{ name: 'm', values: MAP }],
          [{ expression, rows: ROWS }],
        );
        const keys = new Uint32Array(2 * rowCount);
        transform.run([new Uint32Array(data.buffer)], rowCount, keys);
        for (let row = 0; row < rowCount; row++) {
          assert.equal(keyToBigint(keys, row), expectedKey(BigInt(y.data[row]!)), `row ${row}`);
        }
      },
    ),
    { numRuns: 150 },
  );
});

const id: KeyExpression = { op: 'column', input: 'x', column: 0 };

function computeKeys(
  expression: KeyExpression,
  dtype: 'int64' | 'float32',
  values: readonly number[],
  rows: number,
): bigint[] {
  const transform = new KeyTransform(
    [{ name: 'x', dtype, columns: 1 }],
    [],
    [{ expression, rows }],
  );
  const words = new Uint32Array(2 * values.length);
  values.forEach((n, i) => {
    if (dtype === 'int64') setKey(words, i, BigInt.asUintN(64, BigInt(n)));
  });
  const keys = new Uint32Array(2 * values.length);
  transform.run([dtype === 'int64' ? words : Float32Array.from(values)], values.length, keys);
  return values.map((_, i) => keyToBigint(keys, i));
}

const NONE = (BigInt(NO_KEY) << 32n) | BigInt(NO_KEY);

test('a negative index counts from the end; one outside the table becomes NO_KEY', () => {
  assert.deepEqual(computeKeys(id, 'int64', [0, 6, -1, -7, 7, -8], 7), [
    0n,
    6n,
    6n,
    0n,
    NONE,
    NONE,
  ]);
});

test('ids in a float matrix are truncated towards zero; NaN is not a key', () => {
  const cast: KeyExpression = { op: 'cast', dtype: 'int64', of: [id] };
  const values = [3, 3.9, -0.5, -1.5, Number.NaN, Number.POSITIVE_INFINITY, 1e30];
  assert.deepEqual(computeKeys(cast, 'float32', values, 9), [3n, 3n, 0n, 8n, NONE, NONE, NONE]);
});

test('many rows, blocks of small and of huge ids', () => {
  const plus: KeyExpression = { op: 'add', dtype: 'int64', of: [id, { op: 'int', value: 1n }] };
  const transform = new KeyTransform(
    [{ name: 'x', dtype: 'int64', columns: 1 }],
    [],
    [{ expression: plus, rows: ROWS }],
  );
  const ids = Array.from({ length: 1000 }, (_, i) =>
    i === 700 ? 2n ** 63n - 1n : BigInt(i) * 2n ** 42n,
  );
  const words = new Uint32Array(2000);
  for (const [i, n] of ids.entries()) setKey(words, i, n);
  const keys = new Uint32Array(2000);
  transform.run([words], 1000, keys);
  ids.forEach((n, i) => {
    assert.equal(keyToBigint(keys, i), expectedKey(BigInt.asIntN(64, n + 1n)));
  });
});

test('expressions and maps are the same after a round trip through JSON', () => {
  fc.assert(
    fc.property(expressions('int64', 3), (expression) => {
      const text = JSON.stringify(keyExpressionToJson(expression));
      const reader = new KeyExpressionReader(new Map([['ids', COLUMNS]]), new Set(['m']));
      assert.deepEqual(reader.read(JsonReader.parse(text, 'slots.json')), expression);
    }),
    { numRuns: 100 },
  );
  const map = {
    name: 'm',
    values: BigInt64Array.from({ length: 10_000 }, (_, i) => BigInt(i) - 5000n),
  };
  assert.deepEqual(readKeyMap(JsonReader.of(keyMapToJson(map), 'slots.json')), map);
});

test('an invalid expression is refused, naming the location', () => {
  const cases: [unknown, RegExp][] = [
    [{ op: 'pow', of: [{ op: 'int', value: '1' }] }, /op: expected a known operator/],
    [{ op: 'add', of: [{ op: 'int', value: '1' }] }, /expected 2 operands of add/],
    [{ op: 'column', input: 'other', column: 0 }, /an input listed under "ids"/],
    [{ op: 'column', input: 'ids', column: 3 }, /an integer in 0..2/],
    [{ op: 'int', value: '9223372036854775808' }, /an integer in -2\^63/],
    [{ op: 'map', map: 'none', of: [{ op: 'int', value: '1' }] }, /a map listed under "maps"/],
  ];
  for (const [json, message] of cases) {
    const reader = new KeyExpressionReader(new Map([['ids', COLUMNS]]), new Set());
    assert.throws(() => reader.read(JsonReader.of(json, 'slots.json')), message);
  }
  let deep: unknown = { op: 'int', value: '1' };
  for (let i = 0; i < 600; i++) deep = { op: 'neg', of: [deep] };
  const reader = new KeyExpressionReader(new Map(), new Set());
  assert.throws(() => reader.read(JsonReader.of(deep, 'slots.json')), /at most 500 deep/);
  assert.throws(() => new KeyTransform([], [], [{ expression: id, rows: 1 }]), CubeError);
});

test('a result computed from a missing value is missing, in doubles and in BigInts', () => {
  const id: KeyExpression = { op: 'column', input: 'ids', column: 0 };
  const of: KeyExpression = { op: 'map', map: 'm', of: [id] };
  const five: KeyExpression = { op: 'int', value: 5n };
  const bool = (op: KeyOperator, ...operands: KeyExpression[]): KeyExpression => ({
    op,
    dtype: 'bool',
    of: operands,
  });
  const less = bool('less', of, five);
  const isSame = bool('equal', of, of);
  const yes = bool('equal', five, five);
  for (const test of [less, isSame, bool('not', less), bool('and', less, bool('not', yes))]) {
    for (const test2 of [test, bool('or', test, yes), bool('xor', test, yes)]) {
      const where: KeyExpression = { op: 'where', dtype: 'int64', of: [test2, five, id] };
      for (const far of [100n, 2n ** 60n]) {
        const transform = new KeyTransform(
          [{ name: 'ids', dtype: 'int64', columns: 1 }],
          [{ name: 'm', values: MAP }],
          [{ expression: where, rows: ROWS }],
        );
        const ids = new Uint32Array(2);
        setKey(ids, 0, far);
        const keys = new Uint32Array(2);
        transform.run([ids], 1, keys);
        assert.deepEqual([...keys], [NO_KEY, NO_KEY]);
      }
    }
  }
});
