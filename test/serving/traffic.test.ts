/** Experiments in a serving process: assignment over protocols, changes of the file, exposures. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { after, before, type TestContext, test } from 'node:test';
import { Metadata } from '@grpc/grpc-js';
import { Ajv } from 'ajv';
import { parse } from 'yaml';
import { assignVariant } from '../../lib/core/experiment.ts';
import { parseTraffic } from '../../serving/config/traffic-file.ts';
import { runProcess } from '../support/processes.ts';
import { OipClient } from './support/kserve-client.ts';
import { BUNDLE, type ToyRow, toTsv, toyRows } from './support/toy-bundle.ts';
import {
  assertScores,
  parseVariants,
  startTrafficServer,
  TOYS,
  until,
} from './support/traffic-server.ts';

const [first, second] = [TOYS['1']!, TOYS['2']!];
const ROWS: readonly ToyRow[] = toyRows(3);
const KEYS: readonly string[] = Array.from({ length: 30 }, (_, i) => `user-${i}`);
const RANKING = `experiments:
  - name: ranking
    model: ${BUNDLE}
    variants:
      - { name: control, weight: 60 }
      - { name: new, weight: 40, channel: canary }
    overrides: { tester: new }
  - name: layout
    model: ${BUNDLE}
    salt: independent
    variants: [{ name: a, weight: 1 }, { name: b, weight: 1 }]
`;
const VERSION_OF: Readonly<Record<string, string>> = { control: '1', new: '2' };

let url = '';
let file = '';
let exposureFile = '';
const cleanUps: (() => unknown)[] = [];

interface Scored {
  readonly variants: Readonly<Record<string, string>>;
  readonly version: string;
  readonly clicks: readonly number[];
}

before(async () => {
  const context = { after: (cleanUp: () => unknown) => cleanUps.push(cleanUp) };
  const server = await startTrafficServer(context as unknown as TestContext, RANKING);
  ({ url, file, exposureFile } = server);
});
after(async () => {
  for (const cleanUp of cleanUps.toReversed()) await cleanUp();
});

function replaceFile(text: string): void {
  writeFileSync(`${file}.new`, text);
  renameSync(`${file}.new`, file);
}

function keyHeaders(key: string | undefined): Record<string, string> {
  return key === undefined ? {} : { 'x-experiment-key': key };
}

async function postTsv(key: string | undefined, query = ''): Promise<Scored> {
  const response = await fetch(`${url}/v1/ctr:predict${query}`, {
    method: 'POST',
    headers: { 'content-type': 'text/tab-separated-values', ...keyHeaders(key) },
    body: toTsv(ROWS),
  });
  const text = await response.text();
  assert.equal(response.status, 200, text);
  const { version, probabilities } = JSON.parse(text);
  const variants = parseVariants(response.headers.get('hypercube-experiments'));
  return { variants, version, clicks: probabilities };
}

async function postInfer(key: string): Promise<Scored> {
  const shape = [ROWS.length];
  const columns = ['C1', 'C2', 'C3'].map((name, slot) => ({
    name,
    datatype: 'BYTES',
    shape,
    data: ROWS.map(({ categorical }) => categorical[slot]),
  }));
  const dense = ['I1', 'I2'].map((name, at) => ({
    name,
    datatype: 'FP64',
    shape,
    data: ROWS.map((row) => (Number.isNaN(row.dense[at]) ? null : row.dense[at])),
  }));
  const response = await fetch(`${url}/v2/models/${BUNDLE}/infer`, {
    method: 'POST',
    headers: keyHeaders(key),
    body: JSON.stringify({ inputs: [...columns, ...dense] }),
  });
  const text = await response.text();
  assert.equal(response.status, 200, text);
  const { model_version: version, outputs } = JSON.parse(text);
  const data: number[] = outputs[0].data;
  return {
    variants: parseVariants(response.headers.get('hypercube-experiments')),
    version,
    clicks: data.filter((_, i) => i % 2 === 1),
  };
}

async function postInstances(key: string): Promise<Scored> {
  const instances = ROWS.map(({ dense, categorical }) => ({
    ...Object.fromEntries(categorical.map((text, i) => [`C${i + 1}`, text])),
    ...Object.fromEntries(dense.map((v, i) => [`I${i + 1}`, Number.isNaN(v) ? null : v])),
  }));
  const response = await fetch(`${url}/v1/models/${BUNDLE}:predict`, {
    method: 'POST',
    headers: keyHeaders(key),
    body: JSON.stringify({ instances }),
  });
  const text = await response.text();
  assert.equal(response.status, 200, text);
  const variants = parseVariants(response.headers.get('hypercube-experiments'));
  const clicks = JSON.parse(text).predictions.map((scores: number[]) => scores[1]);
  return { variants, version: VERSION_OF[variants['ranking'] ?? ''] ?? '', clicks };
}

test('a key has the same variant over every protocol, and its version answers', async () => {
  const experiments = parseTraffic(RANKING, 'test').experiments;
  const seen = new Set<string>();
  for (const key of KEYS) {
    const expected = Object.fromEntries(
      experiments.map((each) => [each.name, assignVariant(each, key).name]),
    );
    for (const call of [postTsv, postInfer, postInstances]) {
      const answer = await call(key);
      assert.deepEqual(answer.variants, expected, `${call.name} ${key}`);
      assert.equal(answer.version, VERSION_OF[expected['ranking'] ?? '']);
      assertScores(answer, ROWS);
    }
    seen.add(expected['ranking'] ?? '');
  }
  assert.deepEqual([...seen].sort(), ['control', 'new']);
  const { variants, version } = await postTsv('tester');
  assert.deepEqual([variants['ranking'], version], ['new', '2']);
});

test('over gRPC the key is metadata and the variants are a trailer', async () => {
  const client = new OipClient(url);
  cleanUps.push(() => client.close());
  const metadata = new Metadata();
  metadata.set('x-experiment-key', 'tester');
  const { answer, trailers } = await client.callForTrailers(
    'ModelInfer',
    {
      model_name: BUNDLE,
      inputs: [
        {
          name: 'categorical',
          datatype: 'BYTES',
          shape: [1, 3],
          contents: { bytes_contents: ['a', 'b', 'c'].map((text) => Buffer.from(text)) },
        },
        {
          name: 'dense',
          datatype: 'FP32',
          shape: [1, 2],
          contents: { fp32_contents: [1, 2] },
        },
      ],
    },
    metadata,
  );
  assert.equal(answer.model_version, '2');
  const variants = parseVariants(String(trailers.get('hypercube-experiments')[0]));
  assert.equal(variants['ranking'], 'new');
});

test('a request that names a version or a label is not assigned', async () => {
  for (const query of ['?version=1&model=toy', '?label=canary&model=toy', '?version=1']) {
    const { variants } = await postTsv('tester', query);
    assert.deepEqual(variants, {});
  }
});

test('without a key both variants answer, and the header names the one that did', async () => {
  const seen = new Set<string>();
  await until(async () => {
    const answer = await postTsv(undefined);
    assert.equal(answer.version, VERSION_OF[answer.variants['ranking'] ?? '']);
    assertScores(answer, ROWS);
    seen.add(answer.version);
    return seen.size === 2;
  });
});

test('a key that is too long is refused', async () => {
  const response = await fetch(`${url}/v1/ctr:predict`, {
    method: 'POST',
    headers: { 'content-type': 'text/tab-separated-values', 'x-experiment-key': 'x'.repeat(257) },
    body: toTsv(ROWS),
  });
  assert.equal(response.status, 400);
  assert.match(await response.text(), /x-experiment-key: expected one value of at most 256/);
});

test('metrics and exposures are by variant, and keys are not written', async () => {
  await postTsv('tester');
  const metrics = await (await fetch(`${url}/metrics`)).text();
  const labels = 'experiment="ranking",variant="new"';
  assert.match(metrics, new RegExp(`experiment_requests_total{${labels},code="OK"} \\d+`));
  assert.match(metrics, new RegExp(`experiment_score_count{${labels}} \\d+`));
  const hash = createHash('sha256').update('tester').digest('hex');
  const find = (): string | undefined =>
    readFileSync(exposureFile, 'utf8')
      .split('\n')
      .find((line) => line.includes(hash));
  await until(() => find() !== undefined);
  const exposure = JSON.parse(find() ?? '');
  assert.equal(exposure.version, '2');
  assert.equal(exposure.variants.ranking, 'new');
  assert.equal(exposure.scores.length > 0, true);
  assert.ok(!readFileSync(exposureFile, 'utf8').includes('tester'));
});

test('the file is read again when it changes, and an invalid one changes nothing', async () => {
  replaceFile(RANKING.replace('overrides: { tester: new }', 'overrides: { tester: control }'));
  await until(async () => (await postTsv('tester')).variants['ranking'] === 'control');
  replaceFile('experiments: [{ name: broken }]');
  replaceFile(RANKING.replace('channel: canary', 'channel: absent'));
  // A variant whose channel is not served: the request is not part of the experiment.
  await until(async () => {
    const { variants, version } = await postTsv('tester');
    assert.equal(version, variants['ranking'] === 'new' ? '2' : '1');
    return variants['ranking'] === undefined;
  });
  const { variants } = await postTsv('tester');
  assert.deepEqual(Object.keys(variants), ['layout']);
  const metrics = await (await fetch(`${url}/metrics`)).text();
  assert.match(
    metrics,
    /experiment_variant_missing_total{experiment="ranking",variant="new"} [1-9]/,
  );
  replaceFile('experiments: []');
  await until(async () => Object.keys((await postTsv('tester')).variants).length === 0);
});

test('a shadow answers copies by its version, and callers get the primary only', async () => {
  const shadow = `shadows:
  - { name: all, model: ${BUNDLE}, share: 1, channel: canary, timeout-ms: 60000 }
  - { name: absent, model: ${BUNDLE}, share: 1, channel: absent }
  - { name: none, model: ${BUNDLE}, share: 0, channel: canary }
`;
  replaceFile(shadow);
  let metrics = '';
  await until(async () => {
    const answer = await postTsv(undefined);
    assert.equal(answer.version, '1');
    assert.deepEqual(answer.variants, {});
    assertScores(answer, ROWS);
    metrics = await (await fetch(`${url}/metrics`)).text();
    return /shadow_requests_total{shadow="all",outcome="OK"} [1-9]/.test(metrics);
  });
  assert.match(metrics, /shadow_requests_total{shadow="absent",outcome="NOT_FOUND"} [1-9]/);
  assert.ok(!metrics.includes('shadow="none"'));
  // The largest difference of the two versions' scores, by an oracle.
  const differences = ROWS.map((row) => Math.abs(first.score(row)[1] - second.score(row)[1]));
  const sum = differences.reduce((total, value) => total + value, 0);
  const count = Number(/shadow_score_difference_count{shadow="all"} (\d+)/.exec(metrics)?.[1]);
  const total = Number(/shadow_score_difference_sum{shadow="all"} (\S+)/.exec(metrics)?.[1]);
  assert.equal(count % ROWS.length, 0);
  assert.ok(Math.abs(total / (count / ROWS.length) - sum) < 1e-4, `${total} of ${count}`);
  assert.match(metrics, /shadow_score_psi{shadow="all"} [0-9]/);
  assert.match(metrics, /shadow_request_duration_seconds_count{shadow="all",side="primary"} [1-9]/);
  replaceFile('{}');
});

test('the JSON Schema takes the example of the page, and the reader too', () => {
  const root = join(import.meta.dirname, '../../..');
  const page = readFileSync(join(root, 'docs/traffic.md'), 'utf8');
  const example = /```yaml\n([\s\S]*?)```/.exec(page)?.[1] ?? '';
  assert.equal(parseTraffic(example, 'page').experiments.length, 1);
  const schema = readFileSync(join(root, 'docs/schemas/traffic.schema.json'), 'utf8');
  const validate = new Ajv({ allowUnionTypes: true }).compile(JSON.parse(schema));
  assert.ok(validate(parse(example)), JSON.stringify(validate.errors));
  assert.ok(validate(parse(RANKING)), JSON.stringify(validate.errors));
  assert.ok(!validate(parse(RANKING.replace('weight: 60', 'wieght: 60'))));
  const shadows = /```yaml\n(# traffic.yaml\nshadows[\s\S]*?)```/.exec(page)?.[1] ?? '';
  assert.equal(parseTraffic(shadows, 'page').shadows.length, 1);
  assert.ok(validate(parse(shadows)), JSON.stringify(validate.errors));
});

test('errors of the file name line and field', () => {
  const toText = (list: string): string =>
    `experiments: [{ name: x, model: m, variants: ${list} }]`;
  const variants = 'variants: [{ name: a, weight: 1 }, { name: b, weight: 1 }]';
  for (const [text, problem] of [
    ['experiment: []', /unknown.*experiment/],
    ['experiments: [{ name: x }]', /test:1:\d+: experiments\[0\]: variants is missing/],
    [`experiments: [{ name: x, model: m, wieghts: 1, ${variants} }]`, /wieghts/],
    [toText('[{ name: a, weight: 1 }]'), /expected 2 to/],
    [
      toText('[{ name: a, weight: -1 }, { name: b, weight: 1 }]'),
      /expected a number in 0\.\.1000000/,
    ],
    [toText('[{ name: a, weight: 0 }, { name: b, weight: 0 }]'), /no variant has a weight above 0/],
    [toText('[{ name: a, weight: 1 }, { name: a, weight: 1 }]'), /the name a is used twice/],
    [
      `experiments: [{ name: x, model: m, ${variants}, overrides: { u: c } }]`,
      /expected one of a, b/,
    ],
    [
      `experiments: [{ name: x, model: m, ${variants} }, { name: x, model: m, ${variants} }]`,
      /the name x is used twice/,
    ],
    [
      RANKING.replace('salt: independent', 'salt: other').replace(
        '{ name: a, weight: 1 }',
        '{ name: a, weight: 1, version: 2 }',
      ),
      /ranking chooses the version of toy already/,
    ],
    [RANKING.replace('channel: canary', 'channel: canary, version: 2'), /not both/],
    [`experiments: [{ name: x, model: m, slot: '', ${variants} }]`, /expected the name of a slot/],
    [
      `experiments: [{ name: x, model: m, slot: C1, ${variants} }, ` +
        `{ name: y, model: m, slot: C2, ${variants} }]`,
      /another experiment takes the keys of m from slot C1/,
    ],
    [RANKING.replace('channel: canary', 'channel: ../x'), /expected a name/],
    ['shadows: [{ name: s, model: m, share: 2, channel: c }]', /expected a number in 0\.\.1/],
    [
      'shadows: [{ name: s, model: m, share: 1, endpoint: "ftp://h" }]',
      /expected http:\/\/host:port or https/,
    ],
    ['shadows: [{ name: s, model: m, share: 1 }]', /needs a channel, a version, a target/],
  ] as const) {
    assert.throws(() => parseTraffic(text, 'test'), problem, text);
  }
});

test('a start that fails ends the process, also with a store that reconnects', async () => {
  const flags = ['--repository', dirname(file), '--bundle', BUNDLE, '--port', '0'];
  const store = ['--store', 'redis', '--redis-url', 'redis://127.0.0.1:1'];
  const missing = ['--traffic-file', `${file}.none`];
  const { code, stderr } = await runProcess('serving/main.js', ...flags, ...store, ...missing);
  assert.equal(code, 1, stderr);
  assert.match(stderr, /traffic\.yaml\.none/);
});
