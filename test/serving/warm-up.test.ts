/** What a version must show before it answers, and what is written down of those that do. Real processes. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { appendFileSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { it } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import { RotatingFile } from '../../lib/platform/rotating-file.ts';
import { CTR_SERVICE, type CtrRequest, encodeCtrRequest } from '../../proto/ctr.ts';
import { Predictor } from '../../serving/engine/predictor.ts';
import { warmUp } from '../../serving/models/warm-up.ts';
import { temporaryFolder } from '../repository/fixtures.ts';
import { RawGrpc } from '../rpc/grpc-client.ts';
import { EngineBench } from './engine/engine-bench.ts';
import { keyOf, ToyBundle, toTsv, toyRows } from './toy-bundle.ts';
import { startLocal, ToyRepository } from './toy-service.ts';

const one = new ToyBundle({ version: '1', seed: 401 });

interface RecordedRow {
  readonly dense?: (number | null)[];
  readonly categorical?: (string | null)[];
  readonly scaled?: number[];
  readonly keys?: string[];
}

/** Whole lines of a file that somebody writes to. */
function recorded(path: string): RecordedRow[] {
  const lines = readFileSync(path, 'utf8').split('\n');
  return lines.slice(0, -1).map((line) => JSON.parse(line));
}

it('a version whose warm-up fails never answers, and the row is named', async (t) => {
  const { toys, serving } = await startLocal(t, [one]);
  const golden = [
    { dense: [1, 2], categorical: ['a', 'b', 'c'] },
    { dense: [1], categorical: ['a', 'b', 'c'] },
  ];
  const text = golden.map((row) => JSON.stringify(row)).join('\n');
  const files = { 'golden.jsonl': new TextEncoder().encode(text) };
  await toys.publish(new ToyBundle({ version: '2', seed: 402 }), files);
  await toys.activate('2');
  const { body } = await serving.until('/v1/status', (answer) => answer.body.failed.length > 0);
  assert.match(body.failed[0].message, /its warm-up failed: toy 2: golden\.jsonl, row 2: .*dense/);
  assert.deepEqual([body.active, body.held], ['1', ['1']]);
});

it('rows recorded before a kill -9 warm up the next process', async (t) => {
  const toys = new ToyRepository(t);
  await toys.publish(one);
  await toys.activate('1');
  const path = join(toys.folder, 'recorded.jsonl');
  const flags = ['--record', path, '--record-share', '1', '--record-redact', 'C2,I1'];
  const serving = await toys.startLocal(t, flags);
  await serving.untilReady();
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
  await again.untilReady();
  const before = recorded(path).length;
  assert.ok(before >= 100);
  await again.postTsv(toTsv(rows));
  assert.equal(await again.stop(), 0);
  assert.equal(recorded(path).length, before + rows.length);
});

it('lines, streams and keys are recorded as they were asked, and warm up and gate what comes next', async (t) => {
  const toys = new ToyRepository(t);
  await toys.publish(one);
  await toys.activate('1');
  const path = join(toys.folder, 'recorded.jsonl');
  const serving = await toys.startLocal(t, ['--record', path, '--record-share', '1']);
  await serving.untilReady();
  const lines = [
    { dense: [1, null], categorical: ['line', 'b', 'c'] },
    { scaled: [0.5, -1], keys: ['3', '18446744073709551615', '5'] },
  ];
  const ndjson = { 'content-type': 'application/x-ndjson' };
  const text = lines.map((line) => `${JSON.stringify(line)}\n`).join('');
  const url = `${serving.url}/v1/ctr:predict`;
  const answer = await fetch(url, { method: 'POST', headers: ndjson, body: text });
  assert.equal((await answer.text()).match(/"probability"/g)?.length, 2);
  const grpc = new RawGrpc(Number(new URL(serving.url).port));
  t.after(() => grpc.close());
  const stream = grpc.stream(`/${CTR_SERVICE}/PredictStream`);
  const asked: CtrRequest = {
    ...{ model: '', version: '', label: '', rowCount: 0, features: [], shared: undefined },
    ...{ priority: undefined, detail: false, timings: false },
    ...{ dense: new Float64Array(0), scaled: new Float32Array(0) },
    ...{ keys: new Uint32Array(0), ends: new Uint32Array(0) },
    tsv: new TextEncoder().encode('7\t8\tstreamed\ty\tz\n'),
  };
  stream.end(Buffer.from(encodeCtrRequest(asked)));
  stream.resume();
  await once(stream, 'end');
  while (recorded(path).length < 3) await sleep(10);
  const found = recorded(path);
  for (const line of lines) assert.ok(found.some((row) => isDeepStrictEqual(row, line)));
  // TSV is read straight to keys.
  const keys = ['streamed', 'y', 'z'].map((feature, slot) => keyOf(slot, feature).toString());
  assert.ok(found.some((row) => isDeepStrictEqual(row.keys, keys)));
  const golden = { 'golden.jsonl': readFileSync(path) };
  await toys.publish(new ToyBundle({ version: '2', seed: 402 }), golden);
  await toys.activate('2');
  await serving.untilActive('2');
  assert.equal(await serving.stop(), 0);
  await (await toys.startLocal(t, ['--warm-up-file', path])).untilReady();
});

for (const where of ['inMemory', 'onMaps'] as const) {
  it(`a warm-up reaches every instance, and says how far it is, tables ${where}`, async (t) => {
    const bench = await EngineBench[where](t, { instances: 4 });
    const { pool } = bench.bundle;
    assert.equal(pool.fresh, 4);
    const steps: string[] = [];
    const onStep = (step: string): void => void steps.push(step);
    await warmUp(bench.bundle, new Predictor(), { kind: 'golden', timeoutMs: 30_000, onStep });
    assert.equal(pool.fresh, 0);
    const sizes = [2, 4, 8, 16, 32, 64].map((rows) => `warm-up, batches of ${rows}`);
    assert.deepEqual(steps, ['warm-up, row 1 of 1', ...sizes]);
  });
}

it('a file of lines is moved aside when it is full, and what was cut is cut off', async (t) => {
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
