/** The threads that copy layers and free the space of removed ones. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import { CopyThreads } from '../../../cube-agent/host/copy-threads.ts';
import { HostData } from '../../../cube-agent/host/host-data.ts';
import type { LayerRef } from '../../../lib/core/manifest.ts';
import { ByteRateLimiter } from '../../../lib/platform/byte-rate-limiter.ts';
import { systemClock } from '../../../lib/platform/clock.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { getBaseLayer, makeVersion, temporaryFolder } from '../../repository/support/fixtures.ts';
import { StaticServer } from '../../repository/support/static-server.ts';

const NICE_FIELD = 16;
const POLICY_FIELD = 38;
const SCHED_IDLE = '5';
const LAYER_BYTES = 3 << 20;

const onlyWithPolicies = {
  skip: spawnSync('chrt', ['-p', `${process.pid}`]).status !== 0 && 'there is no chrt',
};

interface Source {
  readonly server: StaticServer;
  readonly layer: LayerRef;
  /** The content of the layer. */
  readonly bytes: Buffer;
  readonly data: HostData;
}

async function makeSource(t: TestContext, closeFile?: (descriptor: number) => void) {
  const folder = temporaryFolder(t);
  const location = join(folder, 'repository');
  const repository = openRepository(location, { create: true });
  const publication = makeVersion(join(folder, 'built'), { version: '1', layerBytes: LAYER_BYTES });
  await repository.publish(publication);
  const layer = getBaseLayer(await repository.readManifest('ctr', '1'), 0);
  const bytes = readFileSync(join(folder, 'built', `${layer.contentId}.cube`));
  const server = await StaticServer.start(t, location);
  return { server, layer, bytes, data: new HostData(join(folder, 'data'), 'ctr', closeFile) };
}

function copy(
  { layer, data }: Source,
  threads: CopyThreads,
  options: { rate?: ByteRateLimiter; signal?: AbortSignal; onBytes?: (bytes: number) => void } = {},
): Promise<void> {
  const target = data.layerPath('t', layer.contentId);
  return threads.copy({ bundle: 'ctr', table: 't', layer, target }, { ...options });
}

/** The nice value and the policy of each thread of this process. */
function listThreads(): { nice: string | undefined; policy: string | undefined }[] {
  return readdirSync('/proc/self/task').map((thread) => {
    const stat = readFileSync(`/proc/self/task/${thread}/stat`, 'utf8');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return { nice: fields[NICE_FIELD], policy: fields[POLICY_FIELD] };
  });
}

const countIdle = (): number => listThreads().filter(({ policy }) => policy === SCHED_IDLE).length;
const countLow = (): number => {
  return listThreads().filter(({ nice, policy }) => nice === '5' && policy !== SCHED_IDLE).length;
};

test('a layer is copied in idle time', onlyWithPolicies, async (t) => {
  const source = await makeSource(t);
  const idle = countIdle();
  const threads = new CopyThreads(source.server.url);
  await copy(source, threads);
  assert.deepEqual(readFileSync(source.data.layerPath('t', source.layer.contentId)), source.bytes);
  // The thread does not wait until it has the policy.
  while (countIdle() === idle) await setTimeout(10);
  assert.equal(countIdle(), idle + 1);
});

test('a copy that stalls goes on in a thread of low priority', onlyWithPolicies, async (t) => {
  const source = await makeSource(t);
  const low = countLow();
  source.server.faults.stall = 1;
  let askedWhen: number | undefined;
  const threads = new CopyThreads(source.server.url, {
    stalledMs: 200,
    useUsualPolicy: async () => {
      askedWhen = countLow();
    },
  });
  await copy(source, threads);
  assert.deepEqual(readFileSync(source.data.layerPath('t', source.layer.contentId)), source.bytes);
  assert.equal(countLow(), low + 1);
  assert.equal(askedWhen, low, 'the policy was asked for before the thread started');
});

test('a copy that was stopped by its caller is not begun again', async (t) => {
  const source = await makeSource(t);
  const threads = new CopyThreads(source.server.url, { stalledMs: 200 });
  const stop = new AbortController();
  const copying = copy(source, threads, {
    rate: new ByteRateLimiter(1 << 20, systemClock),
    onBytes: () => stop.abort(),
    signal: stop.signal,
  });
  await assert.rejects(copying, { code: 'STOPPING' });
  assert.ok(!existsSync(source.data.layerPath('t', source.layer.contentId)));
});

test('a removed layer is gone at once, and its space is freed by the copy thread', {
  skip: process.platform !== 'linux' && 'the system does not list descriptors',
}, async (t) => {
  const folder = temporaryFolder(t);
  const threads = new CopyThreads(folder);
  const data = new HostData(folder, 'ctr', (descriptor) => threads.closeFile(descriptor));
  const contentId = 'a'.repeat(32);
  const path = data.layerPath('t', contentId);
  mkdirSync(join(path, '..'), { recursive: true });
  writeFileSync(path, 'layer');
  writeFileSync(`${path}.part`, 'part');
  data.removeLayer(`t/${contentId}`);
  assert.deepEqual(readdirSync(join(path, '..')), []);
  const isOpen = (): boolean => {
    return readdirSync('/proc/self/fd').some((descriptor) => {
      try {
        return readlinkSync(`/proc/self/fd/${descriptor}`).startsWith(path);
      } catch {
        return false;
      }
    });
  };
  while (isOpen()) await setTimeout(10);
  data.removeLayer(`t/${contentId}`);
});
