/** Invalid requests: each gets one clear error, and the process keeps serving. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BUNDLE, ToyBundle, toTsv, toyRows } from './support/toy-bundle.ts';
import { startLocal } from './support/toy-service.ts';

const tensor = (name: string, datatype: string, shape: unknown, data: unknown): object => {
  return { name, datatype, shape, data };
};
const categorical = tensor('categorical', 'BYTES', [1, 3], ['a', 'b', 'c']);
const dense = tensor('dense', 'FP32', [1, 2], [1, 2]);
const infer = (...inputs: object[]): string => JSON.stringify({ inputs });
const inferPath = `/v2/models/${BUNDLE}/infer`;

const good = toTsv(toyRows(1));

/** Body, status, error. */
const badRows: [string, number, RegExp][] = [
  ['1\t2\t3\ta\tb\tc\td\n', 400, /row 1: expected 6 .*or 5 without label, got 7/],
  [`${good}1\t2\ta\tb\n`, 400, /row 2: expected 6 .* got 4/],
  ['x\t2\ta\tb\tc\n', 400, /row 1, column 1 \(I1\): expected a number or nothing, got "x"/],
  ['0\t5\t0x10\ta\tb\tc\n', 400, /row 1, column 3 \(I2\)/],
  ['2\t5\t1\ta\tb\tc\n', 400, /column 1 \(label\): expected 0 or 1/],
  ['1e999\t2\ta\tb\tc\n', 400, /row 1 \(I1\): Infinity is beyond/],
  [`1\t2\ta\tb\t${'c'.repeat(1_000_000)}\n`, 400, /row 1: a line of 1000008 characters/],
  ['\n'.repeat(10_001), 413, /10001 rows in one request, the limit is 10000/],
  ['', 400, /the body is empty/],
  ['x'.repeat(2 << 20), 413, /the body is too large/],
];

/** Path, body, status, error. */
const badBodies: [string, string, number, RegExp][] = [
  ['/v1/ctr:predict', '{"rows":', 400, /not JSON/],
  ['/v1/ctr:predict', '{"rows":[]}', 400, /rows: expected an array of at least 1/],
  ['/v1/ctr:predict', '{"rows":[5]}', 400, /rows\[0\]: expected an object/],
  ['/v1/ctr:predict', '{"rows":[{"dense":[1],"categorical":[]}]}', 400, /rows\[0\]\.dense/],
  ['/v1/ctr:predict', '{"rows":[{"I1":"5"}]}', 400, /rows\[0\]\.I1: expected a finite number/],
  ['/v1/ctr:predict', '{"rows":[{"C9":"5"}]}', 400, /rows\[0\]: unknown field \\?"C9/],
  ['/v1/ctr:predict', '{"rows":[{"C1":9007199254740993}]}', 400, /rows\[0\]\.C1/],
  ['/v1/ctr:predict', '{"rows":[{"I1":1e999}]}', 400, /rows\[0\]\.I1: .*got Infinity/],
  [
    '/v1/ctr:predict',
    '{"rows":[{"dense":[1,2],"categorical":["a","b","c"],"C1":"d"}]}',
    400,
    /rows\[0\]\.C1: expected no named feature: the row gives its features by position/,
  ],
  ['/v1/%ff', '{}', 400, /not a valid url/],
  ['/v2/models/other/infer', infer(categorical, dense), 404, /model "other" is not served/],
  [`/v2/models/${BUNDLE}/versions/9/infer`, infer(categorical), 404, /served: 1/],
  [inferPath, infer(), 400, /inputs: expected an array of at least 1/],
  [inferPath, infer(dense), 400, /either an input categorical or an input keys/],
  [inferPath, infer(categorical), 400, /an input dense too/],
  [inferPath, infer(categorical, categorical), 400, /each input once/],
  [inferPath, infer(tensor('ids', 'INT64', [1], [1])), 400, /name: expected one of/],
  [
    inferPath,
    infer(categorical, dense, tensor('C2', 'BYTES', [1], ['x'])),
    400,
    /"C2": name: the input categorical already contains it/,
  ],
  [
    inferPath,
    infer(categorical, dense, tensor('I2', 'FP32', [1], [1])),
    400,
    /"I2": name: the input dense already contains it/,
  ],
  [inferPath, infer(tensor('dense', 'INT32', [1, 2], [1.5, 2])), 400, /dense, value 0.*1\.5/],
  [inferPath, infer(tensor('dense', 'INT8', [1, 2], [1, 128])), 400, /value 1.*-128\.\.127/],
  [
    inferPath,
    infer(categorical, dense).replace('}]}', '}],"parameters":{"detail":"true"}}'),
    400,
    /detail: expected true or false, got "true"/,
  ],
  [
    inferPath,
    infer(categorical, tensor('dense', 'BOOL', [1, 2], [1, 2])),
    400,
    /"dense": datatype/,
  ],
  [
    inferPath,
    infer(categorical, tensor('dense', 'FP33', [1, 2], [1, 2])),
    400,
    /"dense": datatype/,
  ],
  [
    inferPath,
    infer(categorical, tensor('dense', 'FP32', [1, 3], [1, 2, 3])),
    400,
    /shape.*\[rows, 2\]/,
  ],
  [inferPath, infer(tensor('dense', 'FP32', [0, 2], [])), 400, /shape\[0\]/],
  [inferPath, infer(tensor('dense', 'FP32', [2, 2], [1, 2])), 400, /4 values/],
  [inferPath, infer(categorical, tensor('dense', 'FP32', [1, 2], [1, 'x'])), 400, /value 1/],
  [inferPath, infer(tensor('dense', 'FP32', [20_000, 2], [])), 400, /expected 40000 values/],
  [
    inferPath,
    infer(tensor('dense', 'FP32', [20_000, 2], new Array<number>(40_000).fill(0))),
    413,
    /limit is 10000/,
  ],
  [
    inferPath,
    infer(dense, tensor('keys', 'UINT64', [1, 3], [1, 2 ** 53, 3])),
    400,
    /keys, value 1.*2\^53 are rounded/,
  ],
  [
    inferPath,
    infer(categorical, dense).replace('}]}', '}],"outputs":[{"name":"x"}]}'),
    400,
    /outputs\[0\]\.name.*prob/,
  ],
  ['/v2/nothing', '{}', 404, /Fail to find method on POST .v2.nothing .try/],
];

test('an invalid request gets one clear error, and the next request succeeds', async (t) => {
  const { serving } = await startLocal(
    t,
    [new ToyBundle({ version: '1', seed: 21 })],
    ['--message-bytes', '1500KiB'],
  );
  for (const [body, status, error] of badRows) {
    const answer = await serving.postTsv(body);
    assert.match(answer.body.error, error);
    assert.equal(answer.status, status);
  }
  for (const [path, body, status, error] of badBodies) {
    const answer = await serving.post(path, body);
    assert.match(answer.body.error, error);
    assert.equal(answer.status, status, answer.body.error);
  }
  const headers = { 'content-type': 'text/tab-separated-values' };
  const ctr = '/v1/ctr:predict';
  const others = [
    await serving.post(ctr, good, { 'content-type': 'text/plain' }),
    await serving.post(ctr, good, { ...headers, 'timeout-ms': 'soon' }),
    await serving.post(ctr, Uint8Array.of(0xff, 0xfe, 9), headers),
    await serving.post(inferPath, '{}', { 'inference-header-content-length': '3' }),
  ];
  const errors = [/Content-Type "text\/plain"/, /timeout-ms/, /not UTF-8/, /Inference-Header/];
  others.forEach(({ status, body }, i) => {
    assert.match(body.error, errors[i]!);
    assert.equal(status, 400);
  });
  assert.equal((await serving.postTsv(good)).status, 200);
  assert.equal(await serving.stop(), 0);
});
