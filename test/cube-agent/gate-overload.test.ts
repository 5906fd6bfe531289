/** A replay against a server that refuses requests for overload, over real HTTP. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type TestContext, test } from 'node:test';
import { NO_LABEL } from '../../cube-agent/gate/golden-rows.ts';
import { replay } from '../../cube-agent/gate/replay.ts';
import type { ReplayRecord } from '../../cube-agent/gate/replay-record.ts';
import { CtrClient } from '../../lib/client/ctr-client.ts';

const ANSWER = {
  model: 'ctr',
  version: '2',
  tables_version: '2',
  probabilities: [0.25],
  unseen: 0,
  unavailable: 0,
  degraded: false,
};
const REFUSAL = { code: 'OVERLOADED', error: 'the queue is full; try again later' };

/** Replays four rows. @param isRefused by the number of the request, from 0 */
async function replayRows(
  t: TestContext,
  isRefused: (request: number) => boolean,
  timeoutMs: number,
): Promise<ReplayRecord> {
  let requests = 0;
  const server = createServer((request, response) => {
    request.resume().once('end', () => {
      const refused = isRefused(requests++);
      response.writeHead(refused ? 503 : 200, { 'content-type': 'application/json' });
      response.end(JSON.stringify(refused ? REFUSAL : ANSWER));
    });
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const client = new CtrClient({ url: `http://127.0.0.1:${port}`, retryMax: 0 });
  t.after(() => {
    client.close();
    server.close();
  });
  const rows = [1, 2, 3, 4].map((line) => {
    return { line, value: { C1: 'a' }, label: NO_LABEL, score: Number.NaN, isKeyed: false };
  });
  const target = { role: 'candidate', version: '2', client, requireAlive: async () => undefined };
  const [record] = await replay([target], {
    bundle: 'ctr',
    rows,
    rowsPerRequest: 1,
    requestsPerSecond: 1_000,
    requestsMin: 0,
    timeoutMs,
    signal: new AbortController().signal,
    onRequest: () => undefined,
  });
  assert.ok(record !== undefined);
  return record;
}

test('a request refused for overload is sent again within its timeout', async (t) => {
  const record = await replayRows(t, (request) => request < 6, 60_000);
  assert.deepEqual([...record.failedRows], []);
  assert.deepEqual([...record.scores], [0.25, 0.25, 0.25, 0.25]);
});

test('requests that are refused until their timeout count as failed', async (t) => {
  const warnings: string[] = [];
  const addWarning = ({ message }: Error): unknown => warnings.push(message);
  process.on('warning', addWarning);
  t.after(() => process.off('warning', addWarning));
  const record = await replayRows(t, () => true, 120);
  const failed = [...record.failedRows.values()].reduce((sum, rows) => sum + rows, 0);
  assert.ok(failed >= 4);
  assert.equal(record.failedLines.length, failed);
  assert.deepEqual(warnings, [], 'a user of the gate sees no warnings of Node');
});
