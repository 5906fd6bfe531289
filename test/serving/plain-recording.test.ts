/** Requests to plain models recorded by one process, and the warm-up of others with them. */
import assert from 'node:assert/strict';
import { appendFileSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { FLOAT16, INT64, model, node, value } from '../tools/prune-model/support/onnx-builder.ts';
import { binaryBody, postBinary } from './support/kserve-client.ts';
import { everyType, TYPES } from './support/plain-models.ts';
import { ServingProcess } from './support/serving-process.ts';

async function serve(t: Parameters<typeof temporaryFolder>[0], file: string, flags: string[]) {
  const serving = await ServingProcess.start(t, ['--model', file, '--instances', '1', ...flags]);
  return serving;
}

test('recorded requests of every type warm up the next process; inputs are redacted', async (t) => {
  const folder = temporaryFolder(t);
  const file = join(folder, 'types.onnx');
  const path = join(folder, 'requests.jsonl');
  writeFileSync(file, everyType);
  const redacted = ['--record-redact', 'in_BYTES,in_INT64'];
  const serving = await serve(t, file, ['--record', path, '--record-share', '1', ...redacted]);
  await serving.waitUntilReady();
  const inputs = TYPES.map(([, datatype, data]) => {
    return { name: `in_${datatype}`, datatype, shape: [1, 2], data };
  });
  const outputs = [{ name: 'out_BOOL' }];
  const body = JSON.stringify({ inputs, outputs }).replace('[0.5,', '[NaN,');
  const { status } = await serving.post('/v2/models/types/infer', body);
  assert.equal(status, 200);
  const metrics = await (await fetch(`${serving.url}/metrics`)).text();
  assert.match(metrics, /hypercube_serving_recorded_rows_dropped_total 0/);
  assert.equal(await serving.stop(), 0);
  const [line = '', ...others] = readFileSync(path, 'utf8').split('\n');
  assert.deepEqual(others, ['']);
  assert.match(line, /^\{"at":\d{13}(\.\d+)?,"inputs":/);
  const recorded = JSON.parse(line.replace('NaN', '0.5')).inputs as typeof inputs;
  assert.deepEqual(
    recorded.map(({ name, data }) => [name, data.map(String)]),
    TYPES.map(([, datatype, data]) => {
      if (datatype === 'INT64') return ['in_INT64', ['0', '0']];
      return [`in_${datatype}`, datatype === 'BYTES' ? ['', ''] : data.map(String)];
    }),
  );

  // A process that was killed while it wrote.
  appendFileSync(path, '{"inputs":[{"name":');
  const warm = await serve(t, file, ['--warm-up-file', path]);
  await warm.waitUntilReady();
  assert.equal((await warm.post('/v2/models/types/infer', body)).status, 200);
  const wrong = line.replace('"in_FP64"', '"in_FP63"');
  // Recordings of earlier versions have no times.
  const untimed = line.replace(/"at":[^,]+,/, '');
  assert.notEqual(untimed, line);
  writeFileSync(path, `${untimed}\n${wrong}\n`);
  const failing = await serve(t, file, ['--warm-up-file', path]);
  const reason = /warm-up failed: .*requests\.jsonl, line 2: .*expected an input in_FP64 too/;
  await failing.waitFor('/v1/status', (answer) => reason.test(JSON.stringify(answer.body)));
});

test('half floats are recorded as numbers, at most 64 rows of a request', async (t) => {
  const folder = temporaryFolder(t);
  const file = join(folder, 'halves.onnx');
  const path = join(folder, 'requests.jsonl');
  const halves = model({
    inputs: [value('h', FLOAT16, ['batch', 2]), value('i', INT64, ['batch'])],
    outputs: [value('h2', FLOAT16, ['batch', 2]), value('i2', INT64, ['batch'])],
    nodes: [node('Identity', ['h'], ['h2']), node('Identity', ['i'], ['i2'])],
  });
  writeFileSync(file, halves);
  const serving = await serve(t, file, ['--record', path, '--record-share', '1']);
  await serving.waitUntilReady();
  const h = Uint16Array.from({ length: 140 }, (_, i) => 0x3c00 + i);
  const inputs = [
    { name: 'h', datatype: 'FP16', shape: [70, 2], raw: new Uint8Array(h.buffer) },
    { name: 'i', datatype: 'INT64', shape: [70], raw: new Uint8Array(8 * 70) },
  ];
  const more = { parameters: { binary_data_output: true } };
  const answer = await postBinary(serving, '/v2/models/halves/infer', binaryBody(inputs, more));
  assert.equal(answer.status, 200, JSON.stringify(answer.json));
  assert.equal(await serving.stop(), 0);
  const [first, second] = JSON.parse(readFileSync(path, 'utf8')).inputs;
  assert.deepEqual([first.shape, second.shape], [[64, 2], [64]]);
  assert.deepEqual(first.data.slice(0, 3), [1, 1 + 2 ** -10, 1 + 2 ** -9]);
  const next = await serve(t, file, ['--warm-up-file', path]);
  await next.waitUntilReady();

  const typo = await serve(t, file, ['--record', path, '--record-redact', 'H']);
  const reason = /record-redact names \\"H\\", which is not an input .*did you mean \\"h\\"/;
  await typo.waitFor('/v1/status', ({ body }) => reason.test(JSON.stringify(body)));
});
