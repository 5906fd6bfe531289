/**
 * The seek client against a stand-in for the original server, with captured bytes, and against our
 * own server.
 */
import assert from 'node:assert/strict';
import { createServer, type Server, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { CubeDictClient } from '../../lib/client/dict-client.ts';
import { packKeys } from '../../lib/client/pack-keys.ts';
import type { Fleet } from '../../lib/core/fleet.ts';
import { OUTCOME_HIT, OUTCOME_UNAVAILABLE, OUTCOME_UNSEEN } from '../../lib/core/lookup-group.ts';
import { FrameDecoder } from '../../proto/baidu-std.ts';
import { DictRequest } from '../../proto/dict.ts';
import { DataFolder } from '../cube-server/support/data-folder.ts';
import { killServers, ServerProcess } from '../cube-server/support/server-process.ts';
import { createReplica } from './support/test-fleet.ts';

const stops: (() => void)[] = [];
after(() => {
  for (const stop of stops) stop();
  killServers();
});

function hex(text: string): Buffer {
  return Buffer.from(text.replace(/\s/g, ''), 'hex');
}

/** A stand-in for a brpc 1.17 server with one dict, whose responses have the same bytes. */
class BrpcStandIn {
  readonly values: ReadonlyMap<bigint, Buffer>;
  version = '';
  /** Received payloads, without probes. */
  readonly requests: Buffer[] = [];
  probes = 0;
  answer: (payload: Buffer) => Buffer | undefined = (payload) => this.#payload(payload);
  #server: Server | undefined;
  readonly #sockets = new Set<Socket>();
  endpoint = '';

  constructor(values: ReadonlyMap<bigint, Buffer>) {
    this.values = values;
  }

  async start(): Promise<this> {
    const server = createServer((socket) => this.#accept(socket));
    const port = Number(this.endpoint.split(':')[1] ?? 0);
    await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
    this.endpoint = `127.0.0.1:${(server.address() as { port: number }).port}`;
    this.#server = server;
    stops.push(() => this.stop());
    return this;
  }

  stop(): void {
    this.#server?.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  #accept(socket: Socket): void {
    const decoder = new FrameDecoder();
    this.#sockets.add(socket);
    socket.on('error', () => undefined);
    socket.on('data', (chunk) => {
      decoder.push(chunk);
      while (decoder.next()) {
        const { frame } = decoder;
        assert.deepEqual([frame.service, frame.method], ['rec.mcube.DictService', 'seek']);
        const payload = Buffer.from(frame.bytes.slice(frame.payloadStart, frame.payloadEnd));
        if (payload.length === 0) this.probes++;
        else this.requests.push(payload);
        const correlation = frame.bytes.slice(frame.correlationStart, frame.correlationEnd);
        const answer = this.answer(payload);
        if (answer === undefined) continue;
        // response {0}, compress_type 0, correlation_id, content_type 0, checksum_type 0,
        // checksum_value ""
        const meta = Buffer.concat([hex('120208001800 20'), correlation, hex('5000 5800 6200')]);
        const header = Buffer.from('PRPC\0\0\0\0\0\0\0\0', 'latin1');
        header.writeUInt32BE(meta.length + answer.length, 4);
        header.writeUInt32BE(meta.length, 8);
        socket.write(Buffer.concat([header, meta, answer]));
      }
    });
  }

  #payload(payload: Buffer): Buffer {
    const request = new DictRequest(1_000).decode(payload, 0, payload.length);
    const keys = new BigUint64Array(request.keyBytes.slice(0, 8 * request.count).buffer);
    const parts = [...keys].map((key) => {
      const value = this.values.get(key);
      if (value === undefined) return hex('0a08 08ffffffff0f 1200');
      return Buffer.concat(
        [hex('0a'), varint(3 + varint(value.length).length + value.length)].concat([
          hex('0800 12'),
          varint(value.length),
          value,
        ]),
      );
    });
    if (request.versionRequired) {
      parts.push(hex('12'), varint(this.version.length), Buffer.from(this.version));
    }
    return Buffer.concat(parts);
  }
}

function varint(value: number): Buffer {
  const bytes: number[] = [];
  for (; value > 0x7f; value >>>= 7) bytes.push((value & 0x7f) | 0x80);
  return Buffer.from([...bytes, value]);
}

function createFleet(...shards: string[][]): Fleet {
  const map = { shardNum: shards.length, shards: shards.map((each) => each.map(createReplica)) };
  return { bundles: new Map([['t', [map]]]) };
}

function createClient(fleet: Fleet, timeoutMs = 5_000): CubeDictClient {
  const client = new CubeDictClient({ fleet: () => fleet, policy: { timeoutMs } });
  stops.push(() => client.close());
  return client;
}

function floats(...values: number[]): Buffer {
  return Buffer.from(new Float32Array(values).buffer);
}

test('the bytes of requests and responses are those of the original', async () => {
  const server = await new BrpcStandIn(new Map()).start();
  const row = hex('3f862239 62de3f3e'.repeat(5));
  server.answer = () =>
    Buffer.concat([
      hex('0a2c 0800 1228'),
      row,
      hex('0a2c 0800 1228'),
      row,
      hex('0a08 08ffffffff0f 1200 1200'),
    ]);
  const client = createClient(createFleet([server.endpoint]));
  const answer = await client.seek('t', packKeys([1, 5, 2_000_000]));
  assert.deepEqual(server.requests, [hex('0801 0805 0880897a 1001')], 'unpacked, with the version');
  assert.deepEqual([...answer.outcomes], [OUTCOME_HIT, OUTCOME_HIT, OUTCOME_UNSEEN]);
  assert.deepEqual([...answer.ends], [40, 80, 80]);
  assert.deepEqual(Buffer.from(answer.values), Buffer.concat([row, row]));
  assert.deepEqual([answer.versions, answer.mixed], [[''], false]);
});

test('seeks over shards and requests return what a Map returns', async () => {
  const keys = [
    0n,
    1n,
    127n,
    128n,
    2n ** 28n,
    2n ** 32n - 1n,
    2n ** 35n + 7n,
    2n ** 56n,
    2n ** 63n,
    2n ** 64n - 1n,
  ];
  const values = new Map(
    keys.map((key, i) => [key, Buffer.alloc([0, 3, 40, 1_024][i % 4]!, i + 1)]),
  );
  const servers = await Promise.all([0, 1, 2].map(() => new BrpcStandIn(values).start()));
  const fleet = createFleet(...servers.map(({ endpoint }) => [endpoint]));
  const client = new CubeDictClient({ fleet: () => fleet, keysPerRequestMax: 3 });
  stops.push(() => client.close());
  const soughtKeys = [...keys, 5n, ...keys.toReversed(), 5n, 2n ** 63n + 1n];
  const { values: bytes, ends, outcomes, unseen } = await client.seek('t', packKeys(soughtKeys));
  soughtKeys.forEach((key, i) => {
    const value = Buffer.from(bytes.subarray(i === 0 ? 0 : ends[i - 1]!, ends[i]!));
    assert.deepEqual(value, values.get(key) ?? Buffer.alloc(0), `key ${key}`);
    assert.equal(outcomes[i], values.has(key) ? OUTCOME_HIT : OUTCOME_UNSEEN);
  });
  assert.equal(unseen, 3);
  assert.ok(
    servers.every(({ requests }) => requests.length > 1),
    'split',
  );
  servers.forEach(({ requests }, shard) => {
    for (const request of requests) {
      const { count, keyBytes } = new DictRequest(100).decode(request, 0, request.length);
      const ofShard = new BigUint64Array(keyBytes.slice(0, 8 * count).buffer);
      assert.ok(count <= 3 && ofShard.every((key) => key % 3n === BigInt(shard)));
    }
  });
});

test('a failed shard is unavailable, not empty; mixed versions are reported', async () => {
  const values = new Map([0n, 1n, 2n, 3n].map((key) => [key, floats(Number(key), 7)]));
  const servers = await Promise.all([0, 1].map(() => new BrpcStandIn(values).start()));
  const [even, odd] = servers;
  assert.ok(even && odd);
  [even.version, odd.version] = ['100', '20'];
  const client = createClient(createFleet([even.endpoint], [odd.endpoint]));
  const rows = new Float32Array(10).fill(Number.NaN);
  const task = {
    keys: packKeys([3, 9, 0, 1, 2]),
    count: 5,
    dim: 2,
    rows,
    outcomes: new Uint8Array(5),
  };
  const whole = await client.seekRows('t', task);
  assert.deepEqual([whole.versions, whole.mixed, whole.unseen], [['100', '20'], true, 1]);
  assert.deepEqual([...rows], [3, 7, 0, 0, 0, 7, 1, 7, 2, 7]);
  odd.stop();
  const half = await client.seekRows('t', task);
  assert.deepEqual([...task.outcomes], [2, 2, 0, 2, 0]);
  assert.deepEqual([...rows], [0, 0, 0, 0, 0, 7, 0, 0, 2, 7]);
  assert.equal(half.unavailable, 3);
  assert.match(half.reason!, new RegExp(`shard 1 of 2: ${odd.endpoint}: UNAVAILABLE`));
  assert.deepEqual([half.versions, half.mixed], [['100'], false]);
  const values2 = await client.seek('t', packKeys([1, 2]));
  assert.deepEqual([...values2.outcomes], [OUTCOME_UNAVAILABLE, OUTCOME_HIT]);
  assert.deepEqual([...values2.ends], [0, 8]);
  assert.equal(client.stats().unavailableKeys, 4);
});

test('a corrupted response counts as a failure of its replica', async () => {
  const values = new Map([1n, 2n].map((key) => [key, floats(Number(key))]));
  const damaged = [
    '',
    '0a',
    '0a05',
    '0a0408001201',
    '0a040800120161',
    '0a0808ffffffff0f120161',
    '0a020800',
    '0a0308021200',
    '0800',
    'ffffff',
    `${'0a0408001200'.repeat(9)}`,
  ];
  for (const bytes of damaged) {
    const bad = await new BrpcStandIn(values).start();
    const good = await new BrpcStandIn(values).start();
    bad.answer = (payload) => (payload.length === 0 ? Buffer.alloc(0) : hex(bytes));
    const client = createClient(createFleet([bad.endpoint, good.endpoint]));
    for (let i = 0; i < 2; i++) {
      const { outcomes, values: found } = await client.seek('t', packKeys([2, 1, 4]));
      assert.deepEqual([...outcomes], [0, 0, 1], `after ${bytes}`);
      assert.deepEqual(Buffer.from(found), floats(2, 1));
    }
    assert.equal(bad.requests.length, 1, 'and is left alone');
    while (bad.probes === 0) {
      await client.seek('t', packKeys([1]));
      await sleep(5);
    }
    client.close();
  }
});

test('an unknown dict, a wrong dim and invalid keys are rejected', async () => {
  const server = await new BrpcStandIn(new Map([[7n, floats(1, 2, 3)]])).start();
  const client = createClient(createFleet([server.endpoint]));
  await assert.rejects(client.seek('x', packKeys([1])), /the fleet has no "x" \(it has: t\)/);
  const rows = {
    keys: packKeys([7]),
    count: 1,
    dim: 2,
    rows: new Float32Array(2),
    outcomes: new Uint8Array(1),
  };
  await assert.rejects(
    client.seekRows('t', rows),
    /the value of key 7 has 12 bytes, but a row of dim 2 has 8/,
  );
  assert.throws(() => packKeys([2 ** 60]), /above 2\^53 as a bigint/);
  assert.throws(() => packKeys([-1n]), /key 0: expected an integer/);
  client.close();
  await assert.rejects(client.seek('t', packKeys([7])), { code: 'STOPPING' });
});

test('our servers answer alike, with a version; swapped shards are rejected', async () => {
  const folder = new DataFolder();
  stops.push(() => folder.remove());
  const keys = Array.from(
    { length: 300 },
    (_, i) => (BigInt(i) * 0x9e37_79b9_7f4a_7c15n) % 2n ** 64n,
  );
  const table = {
    name: 'table',
    dim: 3,
    keys,
    value: (key: bigint, j: number) => Number(key % 1_000n) + j,
  };
  const manifest = folder.write({ bundle: 'ctr', version: '8', shardNum: 2, tables: [table] });
  const servers = await Promise.all(
    [0, 1].map((shard) =>
      ServerProcess.start([
        '--shard',
        String(shard),
        '--shard-num',
        '2',
        '--data-dir',
        folder.path,
      ]),
    ),
  );
  for (const server of servers) {
    const { bundle, version } = manifest;
    await server.control('load', { bundle, version });
    await server.control('activate', { bundle, version });
  }
  const endpoints = servers.map(({ address }) => [address]);
  const client = createClient(createFleet(...endpoints));
  const soughtKeys = [...keys, 11n, 12n];
  const rows = new Float32Array(3 * soughtKeys.length);
  const outcomes = new Uint8Array(soughtKeys.length);
  const task = { keys: packKeys(soughtKeys), count: soughtKeys.length, dim: 3, rows, outcomes };
  const summary = await client.seekRows('t', task);
  assert.deepEqual([summary.versions, summary.unseen, summary.unavailable], [['8'], 2, 0]);
  keys.forEach((key, i) => {
    const expected = [0, 1, 2].map((j) => Number(key % 1_000n) + j);
    assert.deepEqual([...rows.subarray(3 * i, 3 * i + 3)], expected);
  });
  const exchanged = createClient(createFleet(...endpoints.toReversed()));
  await assert.rejects(exchanged.seek('t', packKeys([11, 12])), { code: 'WRONG_SHARD' });
});
