/** The feed of the console: what it costs without a page, and what pages get. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, get, type IncomingMessage, type ServerResponse } from 'node:http';
import { connect, createServer as createHttp2Server } from 'node:http2';
import type { AddressInfo } from 'node:net';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { ConsoleFeed, type ConsoleSource, PAGES_MAX } from '../../lib/console/console-feed.ts';
import { LatencyHistogram } from '../../lib/console/latency-histogram.ts';
import { HISTORY_SAMPLES, SampleHistory } from '../../lib/console/sample-history.ts';

class CountingSource implements ConsoleSource {
  readonly role = 'serving';
  readonly views: ConsoleSource['views'] = ['live'];
  readonly series: readonly string[] = ['requestRate', 'p50Ms'];
  readonly idleValues: readonly number[] = [0, Number.NaN];
  states = 0;
  text = 'ok';

  sample(): number[] {
    return [2, Number.NaN];
  }

  getState(): object {
    this.states++;
    return { text: this.text };
  }
}

function createFeed(): { feed: ConsoleFeed; source: CountingSource; setNow: (ms: number) => void } {
  const source = new CountingSource();
  let nowMs = 0;
  const clock = { nowMs: () => nowMs, isoTime: () => '', sleep: async () => undefined };
  const feed = new ConsoleFeed(source, clock);
  return {
    feed,
    source,
    setNow: (ms) => {
      nowMs = ms;
    },
  };
}

async function serve(
  t: TestContext,
  feed: ConsoleFeed,
  authorize: () => Promise<void> = async () => undefined,
): Promise<string> {
  const server = createServer((_request, response) => feed.addStream(response, authorize));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    feed.close();
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

async function openStream(url: string): Promise<IncomingMessage> {
  const [response] = (await once(get(url, { agent: false }), 'response')) as [IncomingMessage];
  return response;
}

async function waitUntil(condition: () => boolean): Promise<void> {
  while (!condition()) await sleep(20);
}

test('without a page, requests make one sample a second, and nothing else happens', async () => {
  const { feed, source, setNow } = createFeed();
  for (let ms = 0; ms <= 3_000; ms += 10) {
    setNow(ms);
    feed.touch();
  }
  assert.equal(feed.samples, 3);
  assert.equal(source.states, 0);
  setNow(60_000);
  feed.touch();
  const { history, series } = await feed.takeSnapshot();
  const getValues = (name: string): readonly (number | null)[] =>
    history.values[series.indexOf(name)] ?? [];
  assert.deepEqual(getValues('requestRate'), [2, 2, 2, 0, 0, 2]);
  assert.deepEqual(getValues('p50Ms'), Array(6).fill(null));
  for (const name of ['rssBytes', 'heapBytes', 'cpuPercent']) {
    assert.ok(!getValues(name).includes(null), `${name} has no gap`);
  }
});

test('the history ends now when a page is opened after a time without requests', async () => {
  const { feed, setNow } = createFeed();
  setNow(600_000);
  const { history } = await feed.takeSnapshot();
  assert.ok(Math.abs((history.times.at(-1) ?? 0) - Date.now()) < 60_000);
  assert.equal(history.times.length, 3);
});

test('pages get samples and changed states, until the last one is closed', async (t) => {
  const { feed, source } = createFeed();
  const url = await serve(t, feed);
  const stream = await openStream(url);
  let text = '';
  stream.setEncoding('utf8').on('data', (piece: string) => {
    text += piece;
  });
  await waitUntil(() => text.includes('"text":"ok"') && source.states > 2);
  assert.equal(text.match(/event: state/g)?.length, 1, 'an unchanged state is sent once');
  source.text = 'line\nbreak';
  await waitUntil(() => text.includes('event: state\ndata: {"text":"line\\nbreak"}\n\n'));
  assert.match(text, /event: sample\ndata: \[\d+,[^\n]*,2,null\]\n\n/);
  stream.destroy();
  await waitUntil(() => feed.pages === 0);
  const { samples } = feed;
  const states = source.states;
  // The timer was stopped with the last page: nothing is left that could sample.
  await sleep(1_500);
  assert.equal(feed.samples, samples);
  assert.equal(source.states, states);
});

test('a page whose caller may no longer read gets no more events', async (t) => {
  const { feed } = createFeed();
  let isAllowed = true;
  const url = await serve(t, feed, async () => {
    if (!isAllowed) throw new Error('revoked');
  });
  const response = await openStream(url);
  let text = '';
  response.on('data', (piece) => {
    text += piece;
  });
  const ended = once(response, 'end');
  await waitUntil(() => text.includes('event: sample'));
  isAllowed = false;
  await ended;
  assert.equal(feed.pages, 0);
});

test('a page that went before its stream began is not counted as open', async (t) => {
  const { feed } = createFeed();
  let ends = 0;
  const addLate = async (_request: unknown, response: unknown): Promise<void> => {
    const late = response as ServerResponse;
    await once(late, 'close');
    feed.addStream(late, async () => undefined);
    ends++;
  };
  const [http, http2] = [createServer(addLate), createHttp2Server(addLate)];
  for (const server of [http, http2]) {
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    t.after(() => server.close());
  }
  const [port, port2] = [http, http2].map((server) => (server.address() as AddressInfo).port);
  const page = get({ port, host: '127.0.0.1', agent: false }).on('error', () => undefined);
  http.once('request', () => page.destroy());
  const session = connect(`http://127.0.0.1:${port2}`);
  const page2 = session.request({ ':path': '/' }).on('error', () => undefined);
  http2.once('request', () => page2.close(8));
  await waitUntil(() => ends === 2);
  session.close();
  assert.equal(feed.pages, 0);
});

test('a slow reader is dropped, and pages are limited', async (t) => {
  const { feed, source } = createFeed();
  const url = await serve(t, feed);
  const slow = await openStream(url);
  slow.pause();
  const dropped = once(slow, 'close').catch(() => undefined);
  slow.on('error', () => undefined);
  for (let i = 0; feed.slowReaders === 0; i++) {
    source.text = String(i).padEnd(8 << 20, 'x');
    await sleep(100);
  }
  await waitUntil(() => feed.pages === 0);
  slow.resume();
  await dropped;
  source.text = '';
  const streams = await Promise.all(Array.from({ length: PAGES_MAX }, () => openStream(url)));
  assert.throws(() => feed.addStream({} as never, async () => undefined), { code: 'OVERLOADED' });
  const ended = Promise.all(streams.map((stream) => once(stream.resume(), 'end')));
  feed.close();
  await ended;
  assert.throws(() => feed.addStream({} as never, async () => undefined), { code: 'STOPPING' });
});

test('a page whose key is revoked gets no more events, while other pages do', async (t) => {
  const { feed } = createFeed();
  let isRevoked = false;
  const revocable = async (): Promise<void> => {
    if (isRevoked) throw new Error('the key was revoked');
  };
  const revoked = await openStream(await serve(t, feed, revocable));
  const kept = await openStream(await serve(t, feed));
  let text = '';
  kept.on('data', (chunk) => {
    text += chunk;
  });
  const ended = once(revoked.resume(), 'end');
  isRevoked = true;
  await ended;
  const seen = text.length;
  await waitUntil(() => text.length > seen);
});

test('the history has a fixed length, and percentiles are those since the last call', () => {
  const history = new SampleHistory(1);
  for (let i = 0; i < HISTORY_SAMPLES + 10; i++) history.add(i, Float64Array.of(i));
  const { times, values } = history.toJson();
  assert.equal(times.length, HISTORY_SAMPLES);
  assert.equal(times[0], 10);
  assert.equal(values[0]?.at(-1), HISTORY_SAMPLES + 9);
  const latencies = new LatencyHistogram();
  for (let ms = 1; ms <= 1_000; ms++) latencies.record(ms);
  const [p50 = 0, p99 = 0] = latencies.takePercentiles([0.5, 0.99]);
  assert.ok(Math.abs(p50 / 500 - 1) < 0.15, String(p50));
  assert.ok(Math.abs(p99 / 990 - 1) < 0.15, String(p99));
  assert.deepEqual(latencies.takePercentiles([0.5]), [Number.NaN]);
  latencies.record(0);
  latencies.record(1e12);
  assert.ok(latencies.takePercentiles([0.5, 1]).every(Number.isFinite));
});
