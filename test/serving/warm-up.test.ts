/** Warm-up of versions and recording of requests, in real processes. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { appendFileSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import { CubeError } from '../../lib/core/errors.ts';
import type { FeatureRows } from '../../lib/core/feature-rows.ts';
import type { SlotSpec } from '../../lib/core/slots.ts';
import { RotatingFile } from '../../lib/platform/rotating-file.ts';
import { CTR_SERVICE, encodeCtrRequest } from '../../proto/ctr.ts';
import type { Prediction } from '../../serving/engine/prediction.ts';
import { Predictor } from '../../serving/engine/predictor.ts';
import { SyntheticRows } from '../../serving/engine/warm-up-rows.ts';
import { warmUp } from '../../serving/models/warm-up.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { RawGrpcClient } from '../rpc/support/grpc-client.ts';
import { EngineFixture } from './engine/support/engine-fixture.ts';
import { EMPTY_CTR_REQUEST } from './support/protocol-clients.ts';
import { hashKey, ToyBundle, toTsv, toyRows } from './support/toy-bundle.ts';
import { startLocal, ToyRepository } from './support/toy-service.ts';

const one = new ToyBundle({ version: '1', seed: 401 });

interface RecordedRow {
  readonly dense?: (number | null)[];
  readonly categorical?: (string | null)[];
  readonly scaled?: number[];
  readonly keys?: string[];
}

/** The complete lines of a file that is being written. */
function recorded(path: string): RecordedRow[] {
  const lines = readFileSync(path, 'utf8').split('\n');
  return lines.slice(0, -1).map((line) => {
    const { at, ...row } = JSON.parse(line);
    assert.ok(Math.abs(at - Date.now()) < 86_400_000, line);
    return row;
  });
}

test('a version whose warm-up fails is never served, and the row is named', async (t) => {
  const { toys, serving } = await startLocal(t, [one]);
  const golden = [
    { dense: [1, 2], categorical: ['a', 'b', 'c'] },
    { dense: [1], categorical: ['a', 'b', 'c'] },
  ];
  const text = golden.map((row) => JSON.stringify(row)).join('\n');
  const files = { 'golden.jsonl': new TextEncoder().encode(text) };
  await toys.publish(new ToyBundle({ version: '2', seed: 402 }), files);
  await toys.activate('2');
  const { body } = await serving.waitFor('/v1/status', (answer) => answer.body.failed.length > 0);
  assert.match(body.failed[0].message, /the warm-up failed: toy 2: golden\.jsonl, row 2: .*dense/);
  assert.deepEqual([body.active, body.held], ['1', ['1']]);
});

test('rows recorded before a kill -9 warm up the next process', async (t) => {
  const toys = new ToyRepository(t);
  await toys.publish(one);
  await toys.activate('1');
  const path = join(toys.folder, 'recorded.jsonl');
  const flags = ['--record', path, '--record-share', '1', '--record-redact', 'C2,I1'];
  const serving = await toys.startLocal(t, flags, true);
  await serving.waitUntilReady();
  const rows = toyRows(8);
  const asked = rows.map(({ dense, categorical }) => ({
    dense: dense.map((value) => (Number.isNaN(value) ? null : value)),
    categorical,
  }));
  for (let i = 0; i < 20; i++) {
    await serving.post('/v1/ctr:predict', JSON.stringify({ rows: asked }));
    await serving.postTsv(toTsv(rows));
  }
  while (recorded(path).length < 100) await sleep(10);
  const exited = once(serving.child, 'exit');
  serving.child.kill('SIGKILL');
  await exited;
  const found = recorded(path).find(({ categorical }) => categorical !== undefined);
  const expected = asked[0]!;
  assert.deepEqual(found, {
    dense: [null, expected.dense[1]],
    categorical: [expected.categorical[0], null, expected.categorical[2]],
  });
  appendFileSync(path, '{"dense": [1');
  const again = await toys.startLocal(t, [...flags, '--warm-up-file', path]);
  await again.waitUntilReady();
  const before = recorded(path).length;
  assert.ok(before >= 100);
  await again.postTsv(toTsv(rows));
  assert.equal(await again.stop(), 0);
  assert.equal(recorded(path).length, before + rows.length);
});

test('redacted rows of a model that takes ids warm up the next process', async (t) => {
  const toys = new ToyRepository(t);
  await toys.publish(new ToyBundle({ version: '1', seed: 403, raw: true }));
  await toys.activate('1');
  const path = join(toys.folder, 'recorded.jsonl');
  const flags = ['--record', path, '--record-share', '1', '--record-redact', 'C2,I1'];
  const serving = await toys.startLocal(t, flags);
  await serving.waitUntilReady();
  const rows = [{ dense: [1, 2], categorical: ['7', '8', '9'] }];
  const { status } = await serving.post('/v1/ctr:predict', JSON.stringify({ rows }));
  assert.equal(status, 200);
  assert.equal(await serving.stop(), 0);
  assert.deepEqual(recorded(path), [{ dense: [null, 2], categorical: ['7', '0', '9'] }]);
  const next = await toys.startLocal(t, ['--warm-up-file', path]);
  await next.waitUntilReady();
});

test('a name in record-redact that the model does not have is refused', async (t) => {
  const toys = new ToyRepository(t);
  await toys.publish(one);
  await toys.activate('1');
  const path = join(toys.folder, 'recorded.jsonl');
  const flags = ['--record', path, '--record-redact', 'C2,I1,C44'];
  const serving = await toys.startLocal(t, flags);
  const { body } = await serving.waitFor('/v1/status', (answer) => answer.body.failed.length > 0);
  const reason = /record-redact names "C44", which is not a slot .*: C1, C2, C3, I1, I2/;
  assert.match(body.failed[0].message, reason);
});

test('lines, streams and keys are recorded, and warm up and gate the next version', async (t) => {
  const toys = new ToyRepository(t);
  await toys.publish(one);
  await toys.activate('1');
  const path = join(toys.folder, 'recorded.jsonl');
  const serving = await toys.startLocal(t, ['--record', path, '--record-share', '1']);
  await serving.waitUntilReady();
  const lines = [
    { dense: [1, null], categorical: ['line', 'b', 'c'] },
    { scaled: [0.5, -1], keys: ['3', '18446744073709551615', '5'] },
  ];
  const ndjson = { 'content-type': 'application/x-ndjson' };
  const text = lines.map((line) => `${JSON.stringify(line)}\n`).join('');
  const url = `${serving.url}/v1/ctr:predict`;
  const answer = await fetch(url, { method: 'POST', headers: ndjson, body: text });
  assert.equal((await answer.text()).match(/"probability"/g)?.length, 2);
  const grpc = new RawGrpcClient(Number(new URL(serving.url).port));
  t.after(() => grpc.close());
  const stream = grpc.stream(`/${CTR_SERVICE}/PredictStream`);
  const tsv = new TextEncoder().encode('7\t8\tstreamed\ty\tz\n');
  stream.end(Buffer.from(encodeCtrRequest({ ...EMPTY_CTR_REQUEST, tsv })));
  stream.resume();
  await once(stream, 'end');
  while (recorded(path).length < 3) await sleep(10);
  const found = recorded(path);
  for (const line of lines) assert.ok(found.some((row) => isDeepStrictEqual(row, line)));
  // TSV is parsed directly to keys.
  const keys = ['streamed', 'y', 'z'].map((feature, slot) => hashKey(slot, feature).toString());
  assert.ok(found.some((row) => isDeepStrictEqual(row.keys, keys)));
  const golden = { 'golden.jsonl': readFileSync(path) };
  await toys.publish(new ToyBundle({ version: '2', seed: 402 }), golden);
  await toys.activate('2');
  await serving.waitUntilActive('2');
  assert.equal(await serving.stop(), 0);
  await (await toys.startLocal(t, ['--warm-up-file', path])).waitUntilReady();
});

for (const where of ['inMemory', 'onFakeStore'] as const) {
  test(`a warm-up reaches every instance and reports its progress, tables ${where}`, async (t) => {
    const bench = await EngineFixture[where](t, { instances: 4 });
    const { pool } = bench.bundle;
    assert.equal(pool.unusedInstances, 4);
    const steps: string[] = [];
    const onStep = (step: string): void => void steps.push(step);
    await warmUp(bench.bundle, new Predictor(), { kind: 'golden', timeoutMs: 30_000, onStep });
    assert.equal(pool.unusedInstances, 0);
    const rows = [1, 2, 3, 4, 5, 6, 7, 8].map((row) => `warm-up, row ${row} of 8`);
    const sizes = [2, 4, 8, 16, 32, 64].map((size) => `warm-up, batches of ${size}`);
    assert.deepEqual(steps, [...rows, ...sizes]);
  });
}

/** A predictor that notes the rows of each request, and fails those of `failing` rows. */
class NotingPredictor extends Predictor {
  readonly requests: FeatureRows[] = [];
  failing = 0;

  override predict(...call: Parameters<Predictor['predict']>): Promise<Prediction> {
    const [, rows] = call;
    assert.ok('features' in rows);
    this.requests.push(rows);
    if (rows.rowCount === this.failing) throw new CubeError('INTERNAL', 'not a number');
    return super.predict(...call);
  }
}

test('warm-up entries give the data, rows and number of requests to each instance', async (t) => {
  const bench = await EngineFixture.inMemory(t, { instances: 2 });
  const predictor = new NotingPredictor();
  const entries = [
    { data: 'zeros', rows: 1, count: 1 },
    { data: 'random', rows: 3, count: 2 },
    { data: 'random', rows: 100, count: 1 },
  ] as const;
  const steps: string[] = [];
  const config = {
    kind: 'synthetic',
    entries,
    timeoutMs: 30_000,
    onStep: (step: string) => void steps.push(step),
  } as const;
  await warmUp(bench.bundle, predictor, config);
  assert.equal(bench.bundle.pool.unusedInstances, 0);
  const counts = predictor.requests.map(({ rowCount }) => rowCount);
  assert.deepEqual(counts, [1, 1, 3, 3, 3, 3, 100, 100]);
  assert.deepEqual(steps, [
    'warm-up, entry 1 of 3, zeros:1',
    'warm-up, entry 2 of 3, random:3*2',
    'warm-up, entry 3 of 3, random:100',
  ]);
  assert.deepEqual(predictor.requests[0]?.features, ['0', '0', '0']);
  const last = predictor.requests.at(-1);
  assert.ok(new Set(last?.features).size > 200);
  // Scaled as the graph takes them.
  assert.ok(last?.dense.every((value) => Math.abs(value) < 2));
  predictor.failing = 3;
  await assert.rejects(warmUp(bench.bundle, predictor, config), {
    code: 'INTERNAL',
    message: 'the warm-up failed: entry 2 of 3, random:3*2: not a number',
  });
});

test('random ids exist in every table of their slot', () => {
  const { slotSpec } = new ToyBundle({ version: '1', seed: 1, wide: true });
  assert.ok(slotSpec.features);
  const raw = { scheme: 'raw', seed: 0n, modulo: 0n } as const;
  const features = { ...slotSpec.features, hash: raw };
  const tables = slotSpec.tables.map((table) => {
    return { ...table, rows: table.name === 'wide' ? 3 : 1_000 };
  });
  const readIds = (spec: Pick<SlotSpec, 'ids'>): number[][] => {
    const rows = new SyntheticRows({ ...slotSpec, features, tables, ...spec }).create(
      'random',
      500,
    );
    return rows.map((row) => (row as { categorical: string[] }).categorical.map(Number));
  };
  const largest = (ids: readonly number[][]): number[] =>
    [0, 1, 2].map((slot) => Math.max(...ids.map((row) => row[slot] ?? Number.NaN)));
  const [first = 0, second = 0, third = 0] = largest(readIds({}));
  assert.deepEqual([first, third], [2, 2]);
  assert.ok(second > 900 && second < 1_000, `${second}`);
  // The graph itself takes C2: how many ids it has is unknown.
  const ids = { input: 'ids', dtype: 'int64', columns: 1, slots: ['C2'], kept: true } as const;
  assert.deepEqual(largest(readIds({ ids: [ids] })), [2, 0, 2]);
});

test('a full record file is rotated, and an incomplete line is removed', async (t) => {
  const path = join(temporaryFolder(t), 'deep', 'lines');
  const open = (): RotatingFile => new RotatingFile({ path, bytesMax: 20, filesMax: 3 });
  const append = (file: RotatingFile, text: string): Promise<void> =>
    file.append(new TextEncoder().encode(text));
  let file = open();
  for (const text of [
    'one one\n',
    'two two\n',
    'three three\n',
    'four\n',
    'five five five five\n',
  ]) {
    await append(file, text);
  }
  const content = (suffix: string): string => readFileSync(path + suffix, 'utf8');
  assert.deepEqual(
    [content(''), content('.1'), content('.2')],
    ['five five five five\n', 'three three\nfour\n', 'one one\ntwo two\n'],
  );
  await append(file, 'six\n');
  assert.deepEqual([content(''), content('.2')], ['six\n', 'three three\nfour\n']);
  writeFileSync(path, 'whole\nhal');
  file = open();
  await append(file, 'next\n');
  assert.equal(content(''), 'whole\nnext\n');
});
