/**
 * Encrypted versions in a cluster of real processes: nothing clear lies on any disk, a missing key
 * leaves the old version serving, and keys are rotated without touching a layer.
 */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { toArguments } from '../../lib/platform/arguments.ts';
import { scorePruned } from '../../tools/demo/expected-scores.ts';
import { perturbTables } from '../../tools/demo/perturb-tables.ts';
import type { ServerProcess } from '../../tools/demo/processes.ts';
import { Cluster, waitUntil } from './support/cluster.ts';

const SHARD_NUM = 2;
const BUNDLE = 'ctr-dnn';
let cluster: Cluster;
let servers: ServerProcess[] = [];
let serving: ServerProcess;
let agent: ServerProcess;
/** The keys that the servers and serving have. */
let ring: string;

before(async () => {
  cluster = await Cluster.create();
  ring = cluster.path('ring');
  for (const name of ['old.key', 'new.key']) {
    await cluster.run('tools/cube-builder/main.js', ['keygen', '--out', cluster.path(name)]);
  }
  writeFileSync(ring, readKey('old.key'));
  await publish('1', 1, 'old.key');
  await publish('2', 2, 'old.key');
  await cluster.agent('activate', '--version', '1', '--reason', 'first');
  await start();
});
after(() => cluster.destroy());

function readKey(name: string): string {
  return readFileSync(cluster.path(name), 'utf8');
}

async function publish(version: string, perturbation: number, key: string): Promise<void> {
  const input = perturbTables(
    cluster.path('pruned'),
    cluster.path(`pruned-${version}`),
    perturbation,
  );
  cluster.reference[version] = await scorePruned(
    input,
    join(import.meta.dirname, '../../../data/demo/rows.tsv'),
  );
  await cluster.run(
    'tools/cube-builder/main.js',
    toArguments({
      input,
      outputPath: cluster.path('repository'),
      bundle: BUNDLE,
      shardNum: SHARD_NUM,
      curVersion: version,
      encryptKeyFile: cluster.path(key),
    }),
  );
}

/** The agent has no key: it copies what it cannot open. */
async function start(): Promise<void> {
  const keys = ['--decrypt-key-file', ring];
  servers = await Promise.all(
    [0, 1].map((shard) =>
      cluster.processes.start(`shard-${shard}`, 'cube-server/main.js', [
        ...toArguments({ shard, shardNum: SHARD_NUM, port: 0, dataDir: cluster.path('host') }),
        ...keys,
      ]),
    ),
  );
  const shards = servers.map(({ address }) => [{ data: address }]);
  const map = { shardNum: SHARD_NUM, shards };
  const fleet = cluster.path('fleet.json');
  writeFileSync(fleet, JSON.stringify({ format: 1, bundles: { [BUNDLE]: [map] } }));
  agent = await cluster.processes.start('agent', 'cube-agent/main.js', [
    'run',
    ...toArguments({
      repository: cluster.path('repository'),
      bundle: BUNDLE,
      dataDir: cluster.path('host'),
      pollMs: 100,
      server: servers.map(({ address }) => address),
    }),
  ]);
  serving = await cluster.startServing('--store', 'remote', '--fleet', fleet, ...keys);
}

async function stop(): Promise<void> {
  cluster.processes.onUnexpectedExit = () => undefined;
  for (const { process } of [serving, agent, ...servers]) {
    const ended = new Promise((resolve) => process.once('exit', resolve));
    process.kill('SIGTERM');
    await ended;
  }
}

/** A row of the demo: label, 13 numbers, features. */
function toGoldenRow(line: string): string {
  const [label, ...columns] = line.split('\t');
  return JSON.stringify({
    label: Number(label),
    dense: columns.slice(0, 13).map((text) => (text === '' ? null : Number(text))),
    categorical: columns.slice(13),
  });
}

async function serves(version: string): Promise<boolean> {
  const answer = await cluster.predict(0, 20);
  if (answer.version !== version) return false;
  assert.ok(cluster.difference(answer, 0) <= 1e-5);
  assert.equal(answer.degraded ?? false, false);
  return true;
}

function versionFolder(version: string): string {
  return cluster.path(`repository/${BUNDLE}/versions/${version}`);
}

/** Bytes of every file that the processes write. */
function readWrittenFiles(): Map<string, Buffer> {
  const files = new Map<string, Buffer>();
  for (const folder of ['repository', 'host', 'logs']) {
    const entries = readdirSync(cluster.path(folder), { recursive: true, withFileTypes: true });
    for (const entry of entries.filter((one) => one.isFile())) {
      const path = join(entry.parentPath, entry.name);
      try {
        files.set(path, readFileSync(path));
      } catch (error) {
        // A file that was being written has its name by now.
        if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
      }
    }
  }
  return files;
}

test('encrypted versions pass the gate, are rolled out and rolled back', async () => {
  assert.ok(await serves('1'));
  const golden = cluster.path('golden.jsonl');
  writeFileSync(golden, cluster.lines.slice(0, 32).map(toGoldenRow).join('\n'));
  const rollout = (...keys: string[]): Promise<{ stdout: string }> =>
    cluster.agent(
      'rollout',
      ...toArguments({
        version: '2',
        fleet: cluster.path('fleet.json'),
        gateFlag: [
          `--golden=${golden}`,
          '--rate=500',
          '--requests=64',
          '--timeout-ms=30000',
          '--limit=latencyP50RatioMax=none',
          '--limit=latencyP99RatioMax=none',
        ],
      }),
      ...keys,
    );
  // Without keys the gate cannot run: the fleet's fault, so the version can be rolled out later.
  await assert.rejects(rollout(), /is encrypted with key/);
  await rollout('--resume', '--decrypt-key-file', ring);
  await waitUntil(() => serves('2'), 'version 2');
  await cluster.agent('rollback', '--reason', 'enough');
  await waitUntil(() => serves('1'), 'version 1');
});

test('no process writes rows, graph or slots in clear, nor a key', () => {
  const pruned = cluster.path('pruned-1');
  const pieces = [Buffer.from('"embeddings"'), Buffer.from(readKey('old.key').slice(-60, -4))];
  for (const entry of readdirSync(pruned, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile() || !/\.(onnx|npy)$/.test(entry.name)) continue;
    const clear = readFileSync(join(entry.parentPath, entry.name));
    // From the middle: rows and weights. A layer has each row as it is in the table.
    for (const part of [0.3, 0.5, 0.9]) {
      const at = Math.floor((clear.length * part) / 8) * 8;
      pieces.push(clear.subarray(at, at + 16));
    }
  }
  assert.ok(pieces.length >= 5);
  const files = readWrittenFiles();
  assert.ok([...files.keys()].filter((path) => path.endsWith('.cube')).length >= 8);
  for (const [path, bytes] of files) {
    for (const piece of pieces) assert.equal(bytes.indexOf(piece), -1, path);
  }
});

test('while a key is missing the old version serves; the changed file is read', async () => {
  await publish('3', 3, 'new.key');
  await cluster.agent('activate', '--version', '3', '--reason', 'next key');
  const { keyId } = (
    JSON.parse(
      readFileSync(cluster.path(`repository/${BUNDLE}/versions/3/manifest.json`), 'utf8'),
    ) as { encryption: { keyId: string } }
  ).encryption;
  const missing = `is encrypted with key ${keyId}`;
  const addresses = [
    `${cluster.endpoint}/v1/status`,
    ...servers.map(({ address }) => `http://${address}/hypercube.ControlService/status`),
  ];
  for (const address of addresses) {
    await waitUntil(
      async () => (await (await fetch(address)).text()).includes(missing),
      `the missing key is reported by ${address}`,
    );
  }
  assert.ok(await serves('1'));
  writeFileSync(ring, `${readKey('new.key')}${readKey('old.key')}`);
  await waitUntil(() => serves('3'), 'version 3');
});

test('after a rewrap the new key alone opens every version, and no layer has changed', async () => {
  const layers = (): [string, Buffer][] =>
    [...readWrittenFiles()].filter(([path]) => path.endsWith('.cube'));
  const before = layers();
  const rewrap = (): Promise<{ stdout: string }> =>
    cluster.run('tools/cube-builder/main.js', [
      'rewrap',
      ...toArguments({
        outputPath: cluster.path('repository'),
        bundle: BUNDLE,
        encryptKeyFile: ring,
      }),
    ]);
  const { stdout } = await rewrap();
  assert.match(stdout, /ctr-dnn 1: 4 keys wrapped\nctr-dnn 2: 4 keys wrapped\nctr-dnn 3: nothing/);
  assert.match((await rewrap()).stdout, /1: nothing to do/);
  // A damaged object of keys does not stop a version whose own key is there.
  const [name = ''] = readdirSync(versionFolder('1')).filter((file) => file.startsWith('keys.'));
  const path = join(versionFolder('1'), name);
  const intact = readFileSync(path);
  writeFileSync(path, '{"format":1}');
  const flags = { repository: cluster.path('repository'), bundle: BUNDLE, version: '1' };
  const sample = (key: string): Promise<{ stdout: string }> =>
    cluster.run('tools/cube-cli/main.js', [
      'sample',
      '1',
      ...toArguments({ ...flags, decryptKeyFile: cluster.path(key) }),
    ]);
  assert.match((await sample('old.key')).stdout, /hit/);
  await assert.rejects(sample('new.key'), /is encrypted with key/);
  writeFileSync(path, intact);
  assert.match((await sample('new.key')).stdout, /hit/);
  assert.deepEqual(layers(), before);
  await waitUntil(
    () => [...readWrittenFiles().keys()].some((path) => /host.*versions.1.keys\./.test(path)),
    'the agent has copied the keys of version 1',
  );
  // The running fleet goes on without the old key, and so does one that is started anew.
  writeFileSync(ring, readKey('new.key'));
  await cluster.agent('activate', '--version', '1', '--reason', 'with the new key');
  await waitUntil(() => serves('1'), 'version 1 with the new key');
  await stop();
  await start();
  await waitUntil(() => serves('1'), 'version 1');
  assert.equal(serving.process.exitCode, null);
});
