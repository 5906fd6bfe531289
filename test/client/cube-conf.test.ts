/** cube.conf: valid files, names whose servers change, and invalid files. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, unlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { CubeConf, type CubeConfOptions } from '../../lib/client/cube-conf.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { Fleet } from '../../lib/core/fleet.ts';
import type { Clock } from '../../lib/platform/clock.ts';

let folder = '';
let nowMs = 0;
const clock: Clock = {
  nowMs: () => nowMs,
  isoTime: () => '',
  sleep: () => Promise.reject(new Error('nobody sleeps here')),
};

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'hypercube-conf-'));
  nowMs = 1_000;
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const NUMBERS = { dup: 1, timeout: 200, retry: 3, backup_request: 100 };
const DICT = {
  dict_name: 't',
  shard: 2,
  ...NUMBERS,
  type: 'ipport_list',
  load_balancer: 'rr',
  nodes: [
    { ipport_list: 'list://127.0.0.1:8000,127.0.0.1:8001' },
    { ipport_list: 'list://h:8002' },
  ],
};

async function open(dicts: unknown, options: CubeConfOptions = {}): Promise<CubeConf> {
  const path = join(folder, 'cube.conf');
  writeFileSync(path, typeof dicts === 'string' ? dicts : JSON.stringify(dicts));
  return CubeConf.open(path, { clock, ...options });
}

/** Lists endpoint*weight by shard. */
function listServers(fleet: Fleet, dict: string): string[][] {
  const [map] = fleet.bundles.get(dict)!;
  assert.ok(map);
  assert.equal(map.shardNum, map.shards.length);
  return map.shards.map((replicas) => replicas.map(({ data, weight }) => `${data}*${weight}`));
}

test("the three node types and brpc's policies are read", async () => {
  const conf = await open([
    DICT,
    {
      dict_name: 'one',
      shard: 2,
      ...NUMBERS,
      backup_request: 0,
      type: 'ipport',
      nodes: [
        { ip: '10.0.0.1', port: 8027 },
        { ip: '10.0.0.2', port: 8028 },
      ],
    },
    {
      dict_name: 'shared',
      shard: 3,
      ...NUMBERS,
      backup_request: -1,
      type: 'ipport_parallel',
      nodes: [{ ip: '10.0.0.3', port: 8029 }],
    },
  ]);
  assert.deepEqual(listServers(conf.fleet(), 't'), [
    ['127.0.0.1:8000*1', '127.0.0.1:8001*1'],
    ['h:8002*1'],
  ]);
  assert.deepEqual(listServers(conf.fleet(), 'one'), [['10.0.0.1:8027*1'], ['10.0.0.2:8028*1']]);
  assert.deepEqual(listServers(conf.fleet(), 'shared'), Array(3).fill(['10.0.0.3:8029*1']));
  const policy = { loadBalancer: 'rr', retryMax: 3, timeoutMs: 200 };
  assert.deepEqual(conf.getPolicy('t'), { ...policy, backupRequest: 100 });
  assert.deepEqual(conf.getPolicy('one'), { ...policy, backupRequest: 'never' });
  assert.deepEqual(conf.dictNames, ['t', 'one', 'shared']);
  assert.throws(() => conf.getPolicy('x'), /has no dict "x" \(it has: t, one, shared\)/);
});

test('weights are read from tags; a changed file of servers is read again', async () => {
  const servers = join(folder, 'servers');
  writeFileSync(servers, '# ours\n10.0.0.1:1 5 # big\n\n10.0.0.2:2\t1\n10.0.0.2:2 7\n10.0.0.3:3\n');
  const reported: CubeError[] = [];
  const dict = {
    ...DICT,
    shard: 1,
    load_balancer: 'wrr',
    nodes: [{ ipport_list: `file://${servers}` }],
  };
  const conf = await open([dict], { onInvalid: (error) => reported.push(error) });
  const first = conf.fleet();
  assert.deepEqual(listServers(first, 't'), [['10.0.0.1:1*5', '10.0.0.2:2*1', '10.0.0.3:3*1']]);
  nowMs += 2_000;
  assert.equal(conf.fleet(), first, 'unchanged: the same object');
  writeFileSync(servers, '10.0.0.9:9 2\n');
  assert.equal(conf.fleet(), first, 'looked at only now and then');
  nowMs += 2_000;
  assert.deepEqual(listServers(conf.fleet(), 't'), [['10.0.0.9:9*2']]);
  for (const bad of ['10.0.0.9', '10.0.0.9:1 heavy', '# nobody']) {
    writeFileSync(servers, bad);
    nowMs += 2_000;
    assert.deepEqual(listServers(conf.fleet(), 't'), [['10.0.0.9:9*2']], bad);
    nowMs += 2_000;
    conf.fleet();
  }
  unlinkSync(servers);
  nowMs += 2_000;
  conf.fleet();
  const texts = reported.map(({ message }) => message);
  assert.equal(texts.length, 4, texts.join('\n'));
  assert.match(texts[0]!, /server 1: endpoint: expected host:port/);
  assert.match(texts[1]!, /expected a weight in 1 … 10000, got "heavy"/);
  assert.match(texts[2]!, /expected 1 to 1000 servers, got 0/);
  assert.match(texts[3]!, /no such file/);
});

test('a host is resolved again; after a failure the previous addresses stay', async () => {
  let addresses: string[] | Error = ['10.0.0.2', '::1', '10.0.0.2'];
  const resolve = async (host: string): Promise<string[]> => {
    assert.equal(host, 'cube.example');
    if (addresses instanceof Error) throw addresses;
    return addresses;
  };
  const reported: string[] = [];
  const options = { resolve, onInvalid: (error: CubeError) => reported.push(error.message) };
  const dict = { ...DICT, shard: 1, nodes: [{ ipport_list: 'dns://cube.example:8000' }] };
  const conf = await open([dict], options);
  const first = conf.fleet();
  assert.deepEqual(listServers(first, 't'), [['10.0.0.2:8000*1', '[::1]:8000*1']]);
  const later = async (): Promise<Fleet> => {
    nowMs += 10_000;
    conf.fleet(); // starts resolving; the next call returns the result
    await turn();
    nowMs += 1_000;
    return conf.fleet();
  };
  addresses = ['::1', '10.0.0.2'];
  assert.equal(await later(), first);
  addresses = new Error('SERVFAIL');
  assert.equal(await later(), first);
  assert.equal(await later(), first);
  addresses = [];
  assert.equal(await later(), first);
  assert.deepEqual(reported, ['cannot resolve cube.example: SERVFAIL'], 'told once');
  addresses = ['10.0.0.7'];
  assert.deepEqual(listServers(await later(), 't'), [['10.0.0.7:8000*1']]);
  addresses = new Error('NXDOMAIN');
  await assert.rejects(open([dict], options), /cannot resolve cube.example: NXDOMAIN/);
});

test('invalid files are rejected with the location', async () => {
  const nodes = DICT.nodes;
  const refused: [unknown, RegExp][] = [
    ['[{', /cube\.conf: not JSON/],
    [{}, /expected an array/],
    [[], /at least 1 items/],
    [[DICT, DICT], /\[1\]\.dict_name: expected a name that no other dict has/],
    [[{ ...DICT, shard: 3 }], /nodes: expected 3 nodes, one for each shard of t \(they are 2\)/],
    [[{ ...DICT, shard: 1 }], /nodes: expected 1 nodes, one for each shard of t \(they are 2\)/],
    [[{ ...DICT, nodes: undefined }], /nodes.* expected an array/],
    [[{ ...DICT, type: 'ipport_parallel', nodes: [] }], /a node, which all 2 shards of t share/],
    [[{ ...DICT, type: 'bns' }], /type: expected one of ipport, ipport_list, ipport_parallel/],
    [[{ ...DICT, timeout: '200' }], /timeout: expected an integer ≥ 1, got "200"/],
    [[{ ...DICT, retry: undefined }], /retry is missing; expected an integer ≥ 0/],
    [[{ ...DICT, load_balancer: 'c_ketama' }], /load_balancer: expected one of rr, wrr, random/],
    [
      [{ ...DICT, nodes: [{ ipport_list: 'bns://x' }, nodes[1]] }],
      /nodes\[0\]\.ipport_list: .*list:\/\//,
    ],
    [[{ ...DICT, nodes: [nodes[0], { ipport_list: 'list://h:0' }] }], /nodes\[1\].*host:port/],
    [[{ ...DICT, nodes: [nodes[0], { ipport_list: 'list://' }] }], /expected 1 to 1000 servers/],
    [[{ ...DICT, type: 'ipport', nodes: [{ ip: 'a,b', port: 1 }, {}] }], /ip: expected an address/],
    [[{ ...DICT, nodes: [{ ipport_list: 'file:///no/such' }, nodes[1]] }], /\/no\/such: no such/],
  ];
  for (const [dicts, text] of refused) {
    await assert.rejects(open(dicts), (error: unknown) => {
      assert.ok(error instanceof CubeError);
      assert.match(error.message, text);
      return true;
    });
  }
  await assert.rejects(CubeConf.open(join(folder, 'none')), { code: 'NOT_FOUND' });
});
