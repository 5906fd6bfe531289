/** Bulk scoring over a real socket: one response line per row, in bounded memory. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type ClientRequest, request as httpRequest, type IncomingMessage } from 'node:http';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ServingProcess } from './support/serving-process.ts';
import { hashKey, ToyBundle, type ToyRow, toyRows } from './support/toy-bundle.ts';
import { startLocal } from './support/toy-service.ts';

const TOLERANCE = 1e-6;
const toy = new ToyBundle({ version: '5', seed: 8 });
const nan = (value: number): number | null => (Number.isNaN(value) ? null : value);

const formatLine = ({ dense, categorical }: ToyRow): string =>
  `${JSON.stringify({ dense: dense.map(nan), categorical })}\n`;

interface LineAnswer {
  readonly probability?: number;
  readonly version?: string;
  readonly line?: number;
  readonly code?: string;
  readonly error?: string;
}

/** A call whose body is written, and whose response is read, in pieces. */
async function open(
  serving: ServingProcess,
  query = '',
): Promise<{ call: ClientRequest; answer: Promise<IncomingMessage> }> {
  const call = httpRequest(`${serving.url}/v1/ctr:predict${query}`, {
    method: 'POST',
    headers: { 'content-type': 'application/x-ndjson' },
  });
  const answer = once(call, 'response').then(([response]) => response as IncomingMessage);
  answer.catch(() => undefined);
  return { call, answer };
}

async function* readLines(answer: AsyncIterable<Buffer>): AsyncGenerator<LineAnswer> {
  let text = '';
  for await (const piece of answer) {
    text += piece.toString();
    const lines = text.split('\n');
    text = lines.pop()!;
    for (const line of lines) yield JSON.parse(line) as LineAnswer;
  }
  assert.equal(text, '', 'half a line at the end');
}

async function start(t: TestContext): Promise<ServingProcess> {
  return (await startLocal(t, [toy])).serving;
}

function checkScore(answer: LineAnswer | undefined, row: ToyRow): void {
  assert.ok(answer?.probability !== undefined, JSON.stringify(answer));
  assert.ok(Math.abs(answer.probability - toy.score(row)[1]) < TOLERANCE);
  assert.equal(answer.version, '5');
}

test('every line gets its response in order, however the body is split', async (t) => {
  const serving = await start(t);
  const rows = toyRows(3_000);
  const body = Buffer.from(rows.map(formatLine).join('').trimEnd());
  const { call, answer } = await open(serving);
  const sent = (async () => {
    for (let at = 0, i = 0; at < body.length; i++) {
      const end = at + 1 + ((i * 7919) % 9000);
      if (!call.write(body.subarray(at, end))) await once(call, 'drain');
      at = end;
    }
    call.end();
  })();
  let count = 0;
  for await (const line of readLines(await answer)) checkScore(line, rows[count++]!);
  assert.equal(count, rows.length);
  await sent;
});

test('a line gets its response while the body is still arriving', async (t) => {
  const serving = await start(t);
  const rows = toyRows(5);
  const { call, answer } = await open(serving);
  call.write(formatLine(rows[0]!));
  const lines = readLines(await answer);
  for (const [i, row] of rows.entries()) {
    if (i > 0) call.write(formatLine(row));
    checkScore((await lines.next()).value as LineAnswer, row);
  }
  call.end();
  assert.equal((await lines.next()).done, true);
});

test('invalid lines get errors with their numbers, and the others are scored', async (t) => {
  const serving = await start(t);
  const row = toyRows(1)[0]!;
  const good = formatLine(row).trimEnd();
  const keys = row.categorical.map((feature, slot) => String(hashKey(slot, feature)));
  const [i1, i2] = row.dense.map((value) => (Number.isNaN(value) ? 0 : value));
  const scaled = [(Math.log1p(i1!) - 1.25) * 0.5, (Number.isNaN(row.dense[1]!) ? -1 : i2!) * 0.125];
  const lines: [string | Buffer, RegExp | undefined][] = [
    [good, undefined],
    ['{"dense":', /line 2: not JSON/],
    ['', /line 3: not JSON/],
    ['7', /rows\[0\]: expected an object/],
    [good, undefined],
    ['{"dense":[1],"categorical":["a","b","c"]}', /line 6: rows\[0\]\.dense/],
    ['{"dense":[1e999,1],"categorical":["a","b","c"]}', /line 7/],
    ['{"C9":"x"}', /line 8: rows\[0\]: unknown field "C9"/],
    [JSON.stringify({ keys, scaled }), undefined],
    [Buffer.from([0xff, 0xfe]), /not UTF-8/],
    [`"${'x'.repeat(300_000)}"`, /longer than 262144 bytes/],
    [good, undefined],
  ];
  const body = Buffer.concat(lines.flatMap(([line]) => [Buffer.from(line), Buffer.from('\n')]));
  const { call, answer } = await open(serving);
  call.end(body);
  const response = await answer;
  assert.equal(response.statusCode, 200);
  let i = 0;
  for await (const line of readLines(response)) {
    const [text, message] = lines[i++]!;
    if (message === undefined) checkScore(line, row);
    else {
      assert.match(line.error!, message, String(text));
      assert.equal(line.line, i);
      assert.match(line.code!, /INVALID_ARGUMENT|TOO_LARGE/);
    }
  }
  assert.equal(i, lines.length);
});

test('a client that does not read is not read from; a closed connection is released', async (t) => {
  const serving = await start(t);
  const block = Buffer.from(toyRows(500).map(formatLine).join(''));
  const { call, answer } = await open(serving);
  call.on('error', () => undefined);
  let sent = 0;
  // Write until the buffers of kernel and server are full and nothing moves for a while.
  for (let still = 0; still < 10; ) {
    if (call.writableNeedDrain) {
      await Promise.race([once(call, 'drain'), sleep(50)]);
      still = call.writableNeedDrain ? still + 1 : 0;
      continue;
    }
    call.write(block);
    sent += block.length;
    assert.ok(sent < 256 << 20, 'it reads on and on');
  }
  const { body } = await serving.get('/v1/status');
  assert.equal(body.ready, true);
  (await answer).destroy();
  call.destroy();
  await serving.waitFor('/v1/status', (status) => status.body.inFlight === 0);
  assert.equal((await serving.postTsv('1\t2\ta\tb\tc\n')).status, 200);
  assert.equal(await serving.stop(), 0);
});

test('invalid options are rejected before the lines are read', async (t) => {
  const serving = await start(t);
  const cases: [string, number, RegExp][] = [
    ['?priority=9', 400, /"priority" is not in 0\.\.2/],
    ['?colour=red', 400, /"colour" is not one of model, version/],
    ['?detail=1', 400, /"detail" is neither true nor false/],
    ['?label=a&label=b', 400, /"label" is given more than once/],
  ];
  for (const [query, status, message] of cases) {
    const { call, answer } = await open(serving, query);
    call.end(formatLine(toyRows(1)[0]!));
    const response = await answer;
    assert.equal(response.statusCode, status);
    const text = Buffer.concat(await response.toArray()).toString();
    assert.match(JSON.parse(text).error, message);
  }
  for (const [query, message] of [
    ['?model=other', /model "other" is not served/],
    ['?version=9', /"?9"?/],
  ] as const) {
    const { call, answer } = await open(serving, query);
    call.end(formatLine(toyRows(1)[0]!));
    const { value: line } = await readLines(await answer).next();
    assert.match((line as LineAnswer).error!, message);
    assert.equal((line as LineAnswer).code, 'NOT_FOUND');
  }
  const chosen = await open(serving, '?model=toy&version=5&priority=0');
  const [row] = toyRows(1);
  chosen.call.end(formatLine(row!));
  checkScore((await readLines(await chosen.answer).next()).value as LineAnswer, row!);
});
