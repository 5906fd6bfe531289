/**
 * Damaged Paddle models: refused in bounded time and memory, nothing left behind; what is accepted
 * has passed the verification.
 */
import assert from 'node:assert/strict';
import { mkdirSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../../../lib/core/errors.ts';
import { WireWriter } from '../../../../proto/wire.ts';
import { readProgram } from '../../../../tools/prune-model/paddle/program-reader.ts';
import { pruneModel } from '../../../../tools/prune-model/prune.ts';
import {
  buildModel,
  feedOp,
  fetchOp,
  holders,
  INT64,
  type ModelFiles,
  op,
  program,
  stream,
  variable,
  wave,
} from '../support/paddle-builder.ts';
import { PaddleHarness } from '../support/paddle-harness.ts';

const small = buildModel({
  vars: [
    { name: 't', dims: [3, 2], persistable: true },
    { name: 'w', dims: [2, 2], persistable: true },
    { name: 'ids', dims: [-1, 1], type: INT64 },
    { name: 'e', dims: [-1, 2] },
    { name: 'y', dims: [-1, 2] },
  ],
  feeds: ['ids'],
  fetches: ['y'],
  ops: [
    op('lookup_table', { W: 't', Ids: 'ids' }, { Out: 'e' }, { padding_idx: { long: -1 } }),
    op('mul', { X: 'e', Y: 'w' }, { Out: 'y' }, { x_num_col_dims: 1 }),
  ],
});
const whole = small.program;
const params = Buffer.concat(['t', 'w'].map((name) => stream(small.params[name]!)));

interface Damage {
  readonly program?: Uint8Array;
  readonly params?: Uint8Array;
}

/** The exit code that the command would have. @returns 3 or above, or 0 after a verification */
async function expectExit(harness: PaddleHarness, damage: Damage): Promise<number> {
  const folder = harness.path('model');
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, '__model__'), damage.program ?? whole);
  writeFileSync(join(folder, '__params__'), damage.params ?? params);
  const usual = { features: undefined, samples: 2, force: true, inProcess: true };
  const request = { model: join(folder, '__model__'), output: harness.output, ...usual };
  try {
    const report = await pruneModel({ ...request, format: 'paddle', dryRun: false });
    if (report === undefined) return 3;
    assert.ok(report.verify !== undefined);
    return 0;
  } catch (error) {
    assert.ok(error instanceof CubeError, String(error));
    assert.ok(['CORRUPT', 'UNSUPPORTED'].includes(error.code), `${error.code}: ${error.message}`);
    assert.doesNotMatch(error.message, /\n/);
    return error.code === 'CORRUPT' ? 5 : 4;
  }
}

function leftovers(harness: PaddleHarness): string[] {
  return [...harness.snapshot().keys()].filter((path) => path.includes('/.'));
}

test('every truncation of the program and of the parameters is not a valid model', async () => {
  const harness = new PaddleHarness();
  // Without its last field, the version, it is a program of an old Paddle.
  const versionAt = whole.length - 4;
  for (let length = 0; length < whole.length; length++) {
    if (length === versionAt) continue;
    assert.equal(await expectExit(harness, { program: whole.subarray(0, length) }), 5, `${length}`);
  }
  for (let length = 0; length < params.length; length++) {
    assert.equal(await expectExit(harness, { params: params.subarray(0, length) }), 5, `${length}`);
  }
  const longer = Buffer.concat([params, Buffer.of(0)]);
  assert.equal(await expectExit(harness, { params: longer }), 5);
  assert.deepEqual(leftovers(harness), []);
  assert.ok(!harness.snapshot().has(harness.output));
});

test('a model with flipped bits is refused without output, or verified', async () => {
  const harness = new PaddleHarness();
  const seen = new Set<number>();
  for (let at = 0; at < whole.length; at++) {
    const bytes = whole.slice();
    bytes[at]! ^= 1 << (at % 8);
    seen.add(await expectExit(harness, { program: bytes }));
  }
  for (let at = 0; at < params.length; at += 2) {
    const bytes = Uint8Array.from(params);
    bytes[at]! ^= 1 << (at % 7);
    seen.add(await expectExit(harness, { params: bytes }));
  }
  assert.ok(seen.has(5) && seen.has(0));
  assert.deepEqual(leftovers(harness), []);
});

test('randomly damaged programs are refused or verified', async () => {
  const harness = new PaddleHarness();
  const edit = fc.record({
    at: fc.nat(whole.length - 1),
    drop: fc.nat(6),
    insert: fc.uint8Array({ maxLength: 6 }),
  });
  await fc.assert(
    fc.asyncProperty(fc.array(edit, { minLength: 1, maxLength: 3 }), async (edits) => {
      let bytes = whole;
      for (const { at, drop, insert } of edits) {
        const tail = bytes.subarray(at + drop);
        bytes = Uint8Array.from([...bytes.subarray(0, at), ...insert, ...tail]);
      }
      await expectExit(harness, { program: bytes });
    }),
    { numRuns: 300 },
  );
  assert.deepEqual(leftovers(harness), []);
});

function u64(value: bigint): Uint8Array {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, value, true);
  return bytes;
}

test('huge lengths, dims and counts are refused without large allocations', async () => {
  const harness = new PaddleHarness();
  const huge = [2n ** 63n, 2n ** 64n - 1n, 2n ** 40n, 17n];
  for (const claim of huge) {
    const levels = Buffer.concat([params.subarray(0, 4), u64(claim), params.subarray(12)]);
    assert.equal(await expectExit(harness, { params: levels }), 5);
    const level = Buffer.concat([params.subarray(0, 4), u64(1n), u64(claim), params.subarray(12)]);
    assert.equal(await expectExit(harness, { params: level }), 5);
  }
  const description = Buffer.from(params);
  description.writeInt32LE(2 ** 31 - 1, 16);
  assert.equal(await expectExit(harness, { params: description }), 5);
  description.writeInt32LE(-5, 16);
  assert.equal(await expectExit(harness, { params: description }), 5);
  const dims = [2 ** 40, 2 ** 40];
  const claimed = new WireWriter().uint(1, 5).uint(2, dims[0]!).uint(2, dims[1]!).finish();
  const large = Buffer.concat([
    params.subarray(0, 16),
    Buffer.of(claimed.length, 0, 0, 0),
    claimed,
  ]);
  assert.equal(await expectExit(harness, { params: large }), 5);
  const many = new Uint8Array(24_000_000);
  for (let at = 0; at < many.length; at += 2) many[at] = 0x22;
  const block = new WireWriter(many.length + 20)
    .uint(1, 0)
    .uint(2, 2n ** 64n - 1n)
    .raw(many);
  const flood = new WireWriter(many.length + 40).bytes(1, block.finish()).finish();
  assert.throws(() => readProgram(flood, 'm'), /m is not a valid Paddle program/);
});

test('SelectedRows with wrong key counts are refused', async () => {
  const harness = new PaddleHarness();
  const options = { dims: [2, 2], values: wave(4, 1), keys: [4, 9] };
  const files = buildModel({
    vars: [
      { name: 't', dims: [2, 2], persistable: true, isSelectedRows: true },
      { name: 'ids', dims: [-1, 1], type: INT64 },
      { name: 'e', dims: [-1, 2] },
    ],
    feeds: ['ids'],
    fetches: ['e'],
    ops: [op('lookup_table', { W: 't', Ids: 'ids' }, { Out: 'e' })],
    params: { t: options },
  });
  const good = stream(options);
  assert.equal(await expectExit(harness, { program: files.program, params: good }), 0);
  rmSync(harness.output, { recursive: true });
  for (let length = 0; length < good.length; length++) {
    const cut = { program: files.program, params: good.subarray(0, length) };
    assert.equal(await expectExit(harness, cut), 5, `${length}`);
  }
  for (const count of [0n, 1n, 3n, 2n ** 61n, 2n ** 64n - 1n]) {
    const lie = Buffer.concat([good.subarray(0, 4), u64(count), good.subarray(12)]);
    assert.equal(await expectExit(harness, { program: files.program, params: lie }), 5, `${count}`);
  }
});

test('invalid programs are refused: cycles, duplicates, undeclared names, sizes', async () => {
  const harness = new PaddleHarness();
  const names = ['a', 'b', 'e', 'y'].map((name) => variable({ name, dims: [-1, 2] }));
  const vars = [
    ...holders,
    ...names,
    variable({ name: 'ids', dims: [-1, 1], type: INT64 }),
    variable({ name: 't', dims: [3, 2], persistable: true }),
    variable({ name: 'w', dims: [2, 2], persistable: true }),
  ];
  const look = op('lookup_table', { W: 't', Ids: 'ids' }, { Out: 'e' });
  const scale = (x: string, y: string): Uint8Array => op('scale', { X: x }, { Out: y });
  const around = (...ops: Uint8Array[]): Uint8Array[] => [
    feedOp('ids', 0),
    ...ops,
    fetchOp('y', 0),
  ];
  const loop = op('while', { X: 'e' }, { Out: 'y' }, { sub_block: { block: 1 } });
  const inner = op('while', { X: 'e' }, { Out: 'y' }, { sub_block: { block: 1 } });
  const wrong: [string, Uint8Array][] = [
    [
      'a cycle',
      program([
        {
          vars,
          ops: around(
            look,
            op('sum', { X: ['b', 'e'] }, { Out: 'a' }),
            scale('a', 'b'),
            scale('b', 'y'),
          ),
        },
      ]),
    ],
    [
      'a block that runs itself',
      program([
        { vars, ops: around(look, loop) },
        { vars: [], ops: [inner], parent: 0 },
      ]),
    ],
    ['a block that is none', program([{ vars, ops: around(look, loop) }])],
    [
      'a variable twice',
      program([{ vars: [...vars, names[0]!], ops: around(look, scale('e', 'y')) }]),
    ],
    [
      'two feeds of a column',
      program([{ vars, ops: [feedOp('a', 0), ...around(look, scale('e', 'y'))] }]),
    ],
    ['undeclared', program([{ vars, ops: around(look, scale('nobody', 'y')) }])],
    [
      'a matrix that does not fit',
      program([{ vars, ops: around(look, op('matmul', { X: 'w', Y: 'e' }, { Out: 'y' })) }]),
    ],
    ['no block', new WireWriter().message(4, (v) => v.uint(1, 0)).finish()],
  ];
  for (const [what, bytes] of wrong) {
    assert.equal(await expectExit(harness, { program: bytes }), 5, what);
    assert.ok(!harness.snapshot().has(harness.output), what);
  }
});

test('parameters that are missing, misshapen or outside the folder are refused', async () => {
  const harness = new PaddleHarness();
  const model = harness.writeModel(small);
  const missing = harness.writeModel({ ...small, params: { t: small.params['t']! } });
  assert.match(await harness.expectModelRefusal(missing, 5), /parameter "w" is missing/);
  truncateSync(join(model, '..', 't'), 40);
  assert.match(await harness.expectModelRefusal(model, 5), /variable "t": 24 bytes of \[3, 2\]/);
  const turned: ModelFiles = {
    ...small,
    params: { ...small.params, t: { dims: [2, 3], values: wave(6, 1) } },
  };
  assert.match(
    await harness.expectModelRefusal(harness.writeModel(turned), 5),
    /variable "t" is float32 \[2, 3\], but the program declares float32 \[3, 2\]/,
  );
  for (const name of ['../t', '/etc/hostname', 'slots.json']) {
    const files = buildModel({
      vars: [
        { name, dims: [3, 2], persistable: true },
        { name: 't', dims: [3, 2], persistable: true },
        { name: 'ids', dims: [-1, 1], type: INT64 },
        ...['e', 'y'].map((made) => ({ name: made, dims: [-1, 2] })),
      ],
      feeds: ['ids'],
      fetches: ['y'],
      ops: [
        op('lookup_table', { W: 't', Ids: 'ids' }, { Out: 'e' }),
        op('matmul', { X: 'e', Y: name }, { Out: 'y' }, { transpose_Y: true }),
      ],
    });
    const { [name]: _, ...inside } = files.params;
    const all = name.includes('/') ? inside : files.params;
    const placed = harness.writeModel({ ...files, params: all });
    assert.match(
      await harness.expectModelRefusal(placed, 4),
      /outside the model's folder|written over another/,
    );
  }
});
