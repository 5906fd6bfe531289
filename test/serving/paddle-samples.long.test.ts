/**
 * The sample configurations of Paddle Serving's documentation (paddle-conf/README.md): each is
 * started with the documented command, and answers under its service name.
 */
import assert from 'node:assert/strict';
import { cpSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { Channel } from '../../lib/rpc/channel.ts';
import { GENERAL_MODEL_SERVICE } from '../../proto/general-model.ts';
import {
  locateConfFolder,
  locateFlagFile,
  readPaddleConf,
} from '../../serving/config/paddle-conf.ts';
import type { PaddleConfLocation } from '../../serving/config/paddle-gflags.ts';
import { completeConfig } from '../../serving/config/serving-config.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { CubeServers } from './stores/support/cube-servers.ts';
import { encodeRequest } from './support/paddle-client.ts';
import { createPaddleRequest, readPaddleAnswer } from './support/protocol-clients.ts';
import { ServingProcess } from './support/serving-process.ts';
import { exportBundle, ToyBundle, toyRows } from './support/toy-bundle.ts';
import { ToyRepository } from './support/toy-service.ts';

const SAMPLES = 'test/serving/paddle-conf';
const DICT = 'test_dict';
const toy = new ToyBundle({ version: '1', seed: 811 });
const rows = toyRows(5);

interface Sample {
  readonly name: string;
  /** The documented command; its paths begin at the sample's folder. */
  readonly command: readonly string[];
  readonly locate: (folder: string) => PaddleConfLocation;
  readonly modelDir: string;
  readonly service: string;
  /** A slot and an output under the names that clients of general_model.prototxt use. */
  readonly aliases?: readonly [string, string];
  readonly cubeConf?: string;
  /** In the folder that its log_dir names. */
  readonly logFile?: string;
}

const LOCAL: readonly Sample[] = [
  {
    name: 'server-configuration',
    command: ['--g=true', '--flagfile=conf/gflags.conf.new'],
    locate: (folder) => locateFlagFile('conf/gflags.conf.new', folder),
    modelDir: 'data/model/paddle/fluid/ad_click',
    service: 'AdClickService',
    logFile: 'serving_log/serving.log',
  },
  {
    name: 'from-scratch',
    command: ['--conf-dir', 'conf'],
    locate: (folder) => locateConfFolder(join(folder, 'conf')),
    modelDir: 'data/model/paddle/fluid/ad_click',
    service: 'AdClickService',
  },
  {
    name: 'custom-configuration',
    command: ['--flagfile=proj.conf'],
    locate: (folder) => locateFlagFile('proj.conf', folder),
    modelDir: 'ctr_model',
    service: 'GeneralModelService',
    aliases: ['user', 'click'],
  },
  {
    name: 'quick-start',
    command: ['--conf-dir', 'workdir_9393'],
    locate: (folder) => locateConfFolder(join(folder, 'workdir_9393')),
    modelDir: 'serving_model',
    service: 'GeneralModelService',
    aliases: ['user', 'click'],
  },
];

const REMOTE: readonly Sample[] = [
  {
    name: 'ctr-with-cube',
    command: ['--conf-dir', 'conf'],
    locate: (folder) => locateConfFolder(join(folder, 'conf')),
    modelDir: 'data/model/paddle/fluid/ctr_prediction',
    service: 'CTRPredictionService',
    cubeConf: 'conf/cube.conf',
  },
  {
    name: 'cube-operator',
    command: ['--conf-dir', 'workdir_9292'],
    locate: (folder) => locateConfFolder(join(folder, 'workdir_9292')),
    modelDir: 'ctr_serving_model_kv',
    service: 'GeneralModelService',
    aliases: ['user', 'click'],
    cubeConf: 'workdir_9292/cube.conf',
  },
];

/** Copies a sample to a folder of its own and puts a bundle where its model is. */
function copySample(t: TestContext, { name, modelDir }: Sample): string {
  const folder = temporaryFolder(t);
  cpSync(join(SAMPLES, name), folder, { recursive: true });
  exportBundle(toy, join(folder, modelDir), 'layers', DICT);
  writeFileSync(join(folder, dirname(modelDir), 'fluid_time_file'), '');
  return folder;
}

function createRequest([slot, output]: readonly [string, string] = ['C1', 'prob']): string {
  const { tensor } = createPaddleRequest(rows);
  const named = tensor.map((one) => (one.name === 'C1' ? { ...one, name: slot } : one));
  return JSON.stringify({ tensor: named, fetch_var_names: [output] });
}

async function startAndPredict(t: TestContext, folder: string, sample: Sample): Promise<void> {
  const logFile = sample.logFile === undefined ? {} : { logFile: join(folder, sample.logFile) };
  const serving = await ServingProcess.start(t, sample.command, { cwd: folder, ...logFile });
  await serving.waitUntilReady();
  const path = `/${sample.service}/inference`;
  const { headers, body } = await serving.post(path, createRequest(sample.aliases));
  const { clicks, marks } = readPaddleAnswer(body, [
    headers.get('hypercube-degraded') ?? undefined,
  ]);
  assert.deepEqual([...new Set(marks)], [false]);
  rows.forEach((row, i) => {
    assert.ok(Math.abs(clicks[i]! - toy.score(row)[1]) < 1e-5, `row ${i}`);
  });
  assert.equal(await serving.stop(), 0);
}

test('every sample is read whole: no setting is unknown, and no path is invented', (t) => {
  for (const sample of [...LOCAL, ...REMOTE]) {
    const folder = copySample(t, sample);
    const { settings, ignored } = readPaddleConf(sample.locate(folder));
    const unknown = ignored.filter(({ reason }) => reason.startsWith('unknown'));
    assert.deepEqual(unknown, [], sample.name);
    const [model] = completeConfig(settings).models;
    assert.ok(model?.source.kind === 'folder');
    assert.equal(model.source.folder, join(folder, sample.modelDir));
    if (sample.cubeConf === undefined) continue;
    assert.ok(model.store.kind === 'remote', sample.name);
    assert.equal(model.store.fleetPath, join(folder, sample.cubeConf));
  }
});

test('every sample of one process starts with its documented command and answers', async (t) => {
  for (const sample of LOCAL) {
    await t.test(sample.name, (t) => startAndPredict(t, copySample(t, sample), sample));
  }
});

test('every sample with Cube answers from the servers of its cube.conf', async (t) => {
  const toys = new ToyRepository(t);
  await toys.publish(toy, {}, DICT);
  const servers = new CubeServers(DICT, toys.location);
  t.after(() => servers.stop());
  await servers.load(await toys.repository.readManifest(DICT, '1'));
  const [map] = servers.fleet.bundles.get(DICT) ?? [];
  for (const sample of REMOTE) {
    await t.test(sample.name, async (t) => {
      const folder = copySample(t, sample);
      const path = join(folder, sample.cubeConf ?? '');
      const [dict] = JSON.parse(readFileSync(path, 'utf8'));
      const nodes = map?.shards.map(([one]) => ({ ipport_list: `list://${one?.data}` }));
      writeFileSync(path, JSON.stringify([{ ...dict, nodes }]));
      await startAndPredict(t, folder, sample);
    });
  }
});

test('enable_protocol_list switches baidu_std off, and never HTTP or gRPC', async (t) => {
  const sample = LOCAL[1]!;
  const folder = copySample(t, sample);
  const flagFile = join(folder, 'conf', 'gflags.conf');
  const callBaidu = async (url: string): Promise<unknown> => {
    const channel = new Channel(new URL(url).host);
    t.after(() => channel.close());
    const request = encodeRequest(JSON.parse(createRequest()));
    const none = new Uint8Array(0);
    return channel.call(GENERAL_MODEL_SERVICE, 'inference', request, none, 10_000);
  };
  for (const [list, isAccepted] of [
    ['baidu_std', true],
    ['h2:grpc', false],
  ] as const) {
    writeFileSync(flagFile, `--enable_protocol_list=${list}\n`);
    const logFile = sample.logFile === undefined ? {} : { logFile: join(folder, sample.logFile) };
    const serving = await ServingProcess.start(t, sample.command, { cwd: folder, ...logFile });
    await serving.waitUntilReady();
    assert.equal((await serving.post('/AdClickService/inference', createRequest())).status, 200);
    if (isAccepted) await callBaidu(serving.url);
    else await assert.rejects(callBaidu(serving.url), { code: 'UNAVAILABLE' });
  }
});
