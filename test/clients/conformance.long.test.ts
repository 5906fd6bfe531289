/**
 * The clients in other languages run the cases of clients/conformance/cases.json against a serving
 * process, through a proxy that makes things go wrong. A language without its tools on the PATH is
 * skipped.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, type TestContext, test } from 'node:test';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { ToyBundle } from '../serving/support/toy-bundle.ts';
import { startLocal } from '../serving/support/toy-service.ts';
import { CLIENTS, findSkipReason, LANGUAGES, type Language, runCases } from './languages.ts';
import { ScenarioProxy } from './scenario-proxy.ts';

const CASES = join(CLIENTS, 'conformance/cases.json');
const TOLERANCE = 1e-5;
/** Retries of 30 calls: a burst of ten, and a tenth of the calls. */
const RETRY_BUDGET = 13;

interface Expected {
  readonly codes?: readonly string[];
  readonly probabilities?: readonly number[];
  readonly [field: string]: unknown;
}
interface Case {
  readonly name: string;
  readonly expect: Expected;
}

const cases: readonly Case[] = JSON.parse(readFileSync(CASES, 'utf8')).cases;
const toy = new ToyBundle({ version: '7', seed: 61, ownKeys: true });
const cleanUps: (() => unknown)[] = [];
let proxy: ScenarioProxy;
let address = '';

before(async () => {
  const context = { after: (cleanUp: () => unknown) => cleanUps.push(cleanUp) };
  const { serving } = await startLocal(context as unknown as TestContext, [toy]);
  proxy = new ScenarioProxy(serving.url);
  address = await proxy.listen();
  cleanUps.push(() => proxy.close());
});
after(async () => {
  for (const cleanUp of cleanUps.toReversed()) await cleanUp();
});

/** Compares what a client answered to a case. */
function checkAnswer({ name, expect }: Case, answer: Expected): void {
  for (const [field, expected] of Object.entries(expect)) {
    const got = answer[field];
    if (field !== 'probabilities') {
      assert.deepEqual(got, expected, `${name}: ${field}`);
      continue;
    }
    const values = got as readonly number[];
    const scores = expected as readonly number[];
    assert.equal(values.length, scores.length, `${name}: number of probabilities`);
    scores.forEach((score, i) => {
      const difference = Math.abs((values[i] ?? Number.NaN) - score);
      assert.ok(difference < TOLERANCE, `${name}: row ${i}: ${values[i]}, expected ${score}`);
    });
  }
}

/** What the proxy has seen of a client. */
function checkTraffic({ name, compresses }: Language): void {
  const count = (scenario: string): number => proxy.traffic(name, scenario).requests.length;
  for (const scenario of [
    'unavailable-always',
    'forbidden',
    'server-deadline',
    'overloaded-long',
  ]) {
    assert.equal(count(scenario), 1, scenario);
  }
  assert.equal(count('count'), 3);
  assert.equal(count('unavailable-once'), 2);
  assert.ok(count('unavailable') > 30, 'failed calls are retried');
  assert.ok(count('unavailable') <= 30 + RETRY_BUDGET, `${count('unavailable')} requests`);
  assert.equal(proxy.traffic(name, 'keep-alive').connections.size, 1);
  const [headers] = proxy.traffic(name, 'headers').requests;
  assert.equal(headers?.authorization, 'Bearer key-1');
  assert.equal(headers?.['x-experiment-key'], 'user-1');
  const timeoutMs = Number(headers?.['timeout-ms']);
  assert.ok(timeoutMs > 0 && timeoutMs <= 60_000, `timeout-ms: ${timeoutMs}`);
  const { requests, answerEncoding } = proxy.traffic(name, 'gzip');
  assert.equal(requests[0]?.['content-encoding'], compresses ? 'gzip' : undefined);
  assert.equal(answerEncoding, 'gzip');
}

for (const language of LANGUAGES) {
  const skip = findSkipReason(language);
  test(`the ${language.name} client answers every shared case`, { skip }, async (t) => {
    const url = `${address}/${language.name}`;
    const answers = await runCases<Expected>(language, temporaryFolder(t), CASES, url);
    assert.deepEqual(
      answers.map(({ name }) => name),
      cases.map(({ name }) => name),
    );
    for (const [i, known] of cases.entries()) checkAnswer(known, answers[i] ?? {});
    checkTraffic(language);
  });
}

test('the expected scores are those of the model', () => {
  const rows = [
    { dense: [1, Number.NaN], categorical: ['a', 'b', 'c'] },
    { dense: [2, 3], categorical: ['d', '', 'f'] },
    { dense: [Number.NaN, 0.5], categorical: ['é', '東京', ''] },
  ];
  const scores = rows.map((row) => toy.score(row)[1]);
  const scored = cases.filter(({ expect }) => expect.probabilities?.length === rows.length);
  assert.ok(scored.length > 4);
  for (const { name, expect } of scored) {
    checkAnswer({ name, expect: { probabilities: scores } }, expect);
  }
});

test('a wrong score, code or version of a client is noticed', () => {
  const known = cases.find(({ name }) => name === 'named rows');
  assert.ok(known);
  const [first = 0, ...others] = known.expect.probabilities ?? [];
  const right = { ...known.expect };
  checkAnswer(known, right);
  assert.throws(() => checkAnswer(known, { ...right, probabilities: [first + 1e-4, ...others] }));
  assert.throws(() => checkAnswer(known, { ...right, codes: ['UNAVAILABLE'] }));
  assert.throws(() => checkAnswer(known, { ...right, version: '8' }));
  assert.throws(() => checkAnswer(known, {}));
});
