/** Versions that switch and fail under load, without failed or mixed responses. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ToyBundle, toTsv, toyRows } from './support/toy-bundle.ts';
import { LoadRunner, startLocal, ToyRepository } from './support/toy-service.ts';

const one = new ToyBundle({ version: '1', seed: 101, shardNum: 2 });
/** Different rows, weights, graph and shard count. */
const two = new ToyBundle({ version: '2', seed: 202, shardNum: 3, inputs: 'many', wide: true });

test('versions switch and switch back without failed or mixed responses', async (t) => {
  const { toys, serving } = await startLocal(t, [one, two], ['--instances', '2']);
  const traffic = new LoadRunner(serving, [one, two]);
  await traffic.waitForAnswers('1');
  await toys.activate('2');
  await traffic.waitForAnswers('2');
  await toys.rollback();
  await traffic.waitForAnswers('1');
  await traffic.stop();
  assert.deepEqual(traffic.refused, []);
  const { body } = await serving.get('/v1/status');
  assert.deepEqual([body.active, body.target, body.failed], ['1', '1', []]);
  const metrics = (await serving.get('/metrics')).body;
  assert.match(metrics, /hypercube_serving_version_switches_total\{model="toy",to="1"\} 2/);
  assert.match(metrics, /hypercube_serving_version_switches_total\{model="toy",to="2"\} 1/);
  assert.equal(await serving.stop(), 0);
  const count = (text: string): number => serving.log.filter((line) => line.includes(text)).length;
  assert.equal(count('"msg":"filled"'), 2, 'going back loads nothing');
  assert.equal(count('"msg":"version retired"'), 1, 'the quarantined version goes, no other');
});

test('a version that cannot be served leaves the old one serving', async (t) => {
  const { toys, serving } = await startLocal(t, [one, two]);
  const traffic = new LoadRunner(serving, [one, two]);
  const text = (content: string): Uint8Array => new TextEncoder().encode(content);
  const broken: [string, ToyBundle, Record<string, Uint8Array>, RegExp][] = [
    ['3', two, { 'model.onnx': two.graph.subarray(0, 400) }, /model\.onnx: onnxruntime cannot/],
    ['4', two, { 'model.onnx': new Uint8Array(0) }, /model\.onnx: onnxruntime cannot/],
    ['5', two, { 'slots.json': text('{"format":1}') }, /slots\.json: field tables is missing/],
    ['6', two, { 'model.onnx': one.graph }, /input deep is not in slots\.json/],
    ['7', two, { 'golden.jsonl': text('{"C9":"x"}') }, /golden\.jsonl: \[0\]: unknown field "C9"/],
  ];
  for (const [version, toy, files, message] of broken) {
    await toys.publish(new ToyBundle({ ...toy.options, version }), files);
    await toys.activate(version);
    const { body } = await serving.waitFor('/v1/status', (answer) =>
      answer.body.failed.some((failure: { version: string }) => failure.version === version),
    );
    const failure = body.failed.find((entry: { version: string }) => entry.version === version);
    assert.match(failure.message, message);
    assert.equal(body.active, '1');
    assert.equal((await serving.get('/readyz')).status, 200);
  }
  await toys.activate('2');
  await traffic.waitForAnswers('2');
  await traffic.stop();
  assert.deepEqual(traffic.refused, []);
  const metrics = (await serving.get('/metrics')).body;
  assert.match(
    metrics,
    /hypercube_serving_load_failures_total\{model="toy",code="CORRUPT"\} [1-9]/,
  );
  assert.equal(await serving.stop(), 0);
});

test('at start the target is loaded, or else the previous version', async (t) => {
  const toys = new ToyRepository(t);
  await toys.publish(one);
  await toys.publish(two, { 'model.onnx': new Uint8Array(10) });
  await toys.activate('1');
  await toys.activate('2');
  const serving = await toys.startLocal(t);
  await serving.waitUntilActive('1');
  const { body } = await serving.get('/v1/status');
  assert.deepEqual([body.target, body.failed[0].version], ['2', '2']);
  assert.equal(await serving.stop(), 0);
});

test('a stop lets requests finish, and the next start does not fill the store again', async (t) => {
  const { toys, serving } = await startLocal(t, [one]);
  const answers = Array.from({ length: 20 }, (_, i) => serving.postTsv(toTsv(toyRows(500, i))));
  await answers[0];
  const exitCode = serving.stop();
  const settled = await Promise.allSettled(answers);
  for (const outcome of settled) {
    // A connection that is not accepted yet is refused; no response is cut off.
    if (outcome.status === 'rejected') continue;
    const { status, body } = outcome.value;
    assert.ok(status === 200 || body.code === 'STOPPING', JSON.stringify(body));
    if (status === 200) assert.equal(body.probabilities.length, 500);
  }
  assert.equal(await exitCode, 0);
  const again = await toys.startLocal(t);
  await again.waitUntilReady();
  assert.ok(!again.log.some((line) => line.includes('"filling"')), again.log.join('\n'));
});

test('requests over the concurrency limit are rejected early', async (t) => {
  const { serving } = await startLocal(t, [one], ['--max-in-flight', '2']);
  const answers = await Promise.all(
    Array.from({ length: 40 }, (_, i) => serving.postTsv(toTsv(toyRows(2000, i)))),
  );
  const refused = answers.filter(({ status }) => status === 429);
  assert.ok(refused.length > 0);
  for (const { body } of refused) assert.match(body.error, /in flight, the limit is 2/);
  assert.ok(answers.some(({ status }) => status === 200));
  assert.equal(answers.filter(({ status }) => status !== 200 && status !== 429).length, 0);
  assert.equal((await serving.postTsv(toTsv(toyRows(1)))).status, 200);
});
