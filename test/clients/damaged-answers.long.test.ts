/**
 * Every client meets damaged answers with an error of its own: a server that answers each case as
 * the table says. A language without its tools on the PATH is skipped.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { createServer, type OutgoingHttpHeaders, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { pipeline, Readable } from 'node:stream';
import { type TestContext, test } from 'node:test';
import { createGzip, gzipSync } from 'node:zlib';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { findSkipReason, LANGUAGES, runCases } from './languages.ts';

interface Answer {
  readonly status?: number;
  readonly headers?: OutgoingHttpHeaders;
  readonly body: string | Uint8Array;
  /** Followed by more spaces than a client reads; compressed if the headers say so. */
  readonly isPadded?: boolean;
}
interface Damage {
  readonly name: string;
  /** Default: rows. */
  readonly call?: 'rows' | 'columns';
  readonly experimentKey?: string;
  /** What the server answers, by the end of the path; the other paths have the right answers. */
  readonly answers: Readonly<Record<string, Answer>>;
  readonly code: string;
  /** Tries of the damaged path: two where the answer may be better at another address. */
  readonly tries: number;
}

/** What a client reads of an answer, in MiB. */
const ANSWER_MIB_MAX = 256;
const SPACES = Buffer.alloc(1 << 20, ' ');
const COUNTS = { tables_version: '1', unseen: 0, unavailable: 0, degraded: false };
const PREDICTION = { model: 'm', version: '1', ...COUNTS, probabilities: [0.5] };
const OUTPUT = { name: 'click', datatype: 'FP32', shape: [1, 1], data: [0.5] };
const INFERENCE = { model_name: 'm', model_version: '1', parameters: COUNTS, outputs: [OUTPUT] };
const FEATURES = {
  hash: { scheme: 'xxh64-concat', seed: '0', modulo: '0' },
  slots: [{ name: 'C1', index: 0 }],
  click: { output: 'click', column: 0 },
};
const RIGHT: Readonly<Record<string, unknown>> = {
  predict: PREDICTION,
  models: { models: ['m'] },
  features: FEATURES,
  infer: INFERENCE,
};

const gzipped = (body: Uint8Array): Answer => ({ headers: { 'content-encoding': 'gzip' }, body });
const json = (value: unknown): Answer => ({ body: JSON.stringify(value) });
const PACKED = gzipSync(JSON.stringify(PREDICTION));
const LARGE: Answer = { ...json(PREDICTION), isPadded: true };

function refuse(retryAfter: string): Answer {
  const body = JSON.stringify({ code: 'RATE_LIMITED', error: 'too many requests' });
  return { status: 429, headers: { 'retry-after': retryAfter }, body };
}

/** An answer in JSON without what the call needs, which is no usable answer. */
function lack(name: string, path: string, value: unknown): Damage {
  const call = path === 'predict' ? 'rows' : 'columns';
  return { name, call, answers: { [path]: json(value) }, code: 'UNAVAILABLE', tries: 2 };
}

const UNUSABLE = { code: 'UNAVAILABLE', tries: 2 };
const DAMAGES: readonly Damage[] = [
  { name: 'truncated gzip', answers: { predict: gzipped(PACKED.subarray(0, 40)) }, ...UNUSABLE },
  { name: 'gzip without header', answers: { predict: gzipped(PACKED.subarray(4)) }, ...UNUSABLE },
  {
    name: 'gzip with a wrong byte',
    answers: { predict: gzipped(PACKED.with(20, PACKED[20]! ^ 0xff)) },
    ...UNUSABLE,
  },
  { name: 'an answer that is too large', answers: { predict: LARGE }, ...UNUSABLE },
  {
    name: 'an answer that is too large when decompressed',
    answers: { predict: { ...LARGE, headers: { 'content-encoding': 'gzip' } } },
    ...UNUSABLE,
  },
  {
    name: 'a retry at a date, after the deadline',
    answers: { predict: refuse(new Date(Date.now() + 3_600_000).toUTCString()) },
    code: 'RATE_LIMITED',
    tries: 1,
  },
  ...['Wed, 21 Oct 2015 07:28:00 GMT', 'soon', '', 'nan', '-1'].map((text) => ({
    name: `a retry after ${JSON.stringify(text)}`,
    answers: { predict: refuse(text) },
    code: 'RATE_LIMITED',
    tries: 2,
  })),
  {
    name: 'an error whose fields have other types',
    answers: { predict: { status: 503, body: '{"code":{},"error":null}' } },
    ...UNUSABLE,
  },
  lack('null', 'predict', null),
  lack('an empty object', 'predict', {}),
  ...Object.keys(PREDICTION).flatMap((field) => [
    lack(`no ${field}`, 'predict', { ...PREDICTION, [field]: undefined }),
    lack(`${field} as an object`, 'predict', { ...PREDICTION, [field]: { x: 1 } }),
  ]),
  lack('text as probability', 'predict', { ...PREDICTION, probabilities: ['x'] }),
  lack('null as probability', 'predict', { ...PREDICTION, probabilities: [null] }),
  lack('no list of models', 'models', {}),
  lack('a model without name', 'models', { models: [null] }),
  lack('no features', 'features', {}),
  lack('slots without names', 'features', { ...FEATURES, slots: [{ index: 0 }] }),
  lack('no click output', 'features', { ...FEATURES, click: {} }),
  lack('no inference', 'infer', {}),
  lack('no counts', 'infer', { ...INFERENCE, parameters: null }),
  lack('other outputs', 'infer', { ...INFERENCE, outputs: [{ ...OUTPUT, name: 'other' }] }),
  lack('no shape', 'infer', { ...INFERENCE, outputs: [{ ...OUTPUT, shape: [] }] }),
  lack('more rows than data', 'infer', { ...INFERENCE, outputs: [{ ...OUTPUT, shape: [5, 1] }] }),
  ...['a\nb', 'a\rb', 'a\0b', 'a\tb', 'a\x7fb'].map((experimentKey) => ({
    name: `experiment key ${JSON.stringify(experimentKey)}`,
    experimentKey,
    answers: {},
    code: 'INVALID_ARGUMENT',
    tries: 0,
  })),
  { name: 'no damage of rows', answers: {}, code: 'OK', tries: 1 },
  { name: 'no damage of columns', call: 'columns', answers: {}, code: 'OK', tries: 1 },
];

/** The cases for the conformance programs; the scenario is the position in the table. */
function toCase({ name, call = 'rows', experimentKey }: Damage, i: number): object {
  return {
    name,
    call,
    scenario: `${i}`,
    client: { compress: true, retries_max: 1, timeout_ms: 60_000 },
    options: experimentKey === undefined ? {} : { experiment_key: experimentKey },
    input: { rows: [{ C1: 'a' }], columns: { C1: ['a'] } },
  };
}

function* pad(body: string | Uint8Array): Iterable<string | Uint8Array> {
  yield body;
  for (let i = 0; i < ANSWER_MIB_MAX; i++) yield SPACES;
}

function send(response: ServerResponse, { status = 200, headers, body, isPadded }: Answer): void {
  response.writeHead(status, { 'content-type': 'application/json', ...headers });
  if (isPadded !== true) {
    response.end(body);
    return;
  }
  const packers = headers === undefined ? [] : [createGzip({ level: 1 })];
  // The client closes the connection before the end.
  pipeline([Readable.from(pad(body)), ...packers, response], () => undefined);
}

/** @returns the address of a server of damaged answers, and its tries of a path by case */
async function startServer(t: TestContext) {
  const tries = new Map<string, number>();
  const server = createServer((request, response) => {
    const [, i = '', path = ''] = /^\/(\d+)\/.*?(\w+)(?:\?.*)?$/.exec(request.url ?? '') ?? [];
    tries.set(`${i} ${path}`, (tries.get(`${i} ${path}`) ?? 0) + 1);
    const answer = DAMAGES[Number(i)]?.answers[path] ?? json(RIGHT[path]);
    request.resume().on('end', () => send(response, answer));
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close().closeAllConnections());
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, tries };
}

for (const language of LANGUAGES) {
  const skip = findSkipReason(language);
  test(`the ${language.name} client refuses damaged answers`, { skip }, async (t) => {
    const folder = temporaryFolder(t);
    const cases = join(folder, 'cases.json');
    writeFileSync(cases, JSON.stringify({ cases: DAMAGES.map(toCase) }));
    const { url, tries } = await startServer(t);
    const answers = await runCases<{ codes: string[] }>(language, folder, cases, url);
    assert.equal(answers.length, DAMAGES.length);
    const wrong = DAMAGES.flatMap((damage, i) => {
      const { name, call, answers: damaged, code, tries: expected } = damage;
      const [path = call === 'columns' ? 'infer' : 'predict'] = Object.keys(damaged);
      const got = `${answers[i]?.codes} after ${tries.get(`${i} ${path}`) ?? 0} tries`;
      return got === `${code} after ${expected} tries` ? [] : [`${name}: ${got}`];
    });
    assert.deepEqual(wrong, []);
  });
}
