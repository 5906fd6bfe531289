/** Over a hundred versions, each loaded, activated and unloaded: memory stays flat. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { type TestContext, test } from 'node:test';
import { ControlClient } from '../../cube-agent/fleet/control-client.ts';
import { DeltaSource } from '../cube-agent/support/delta-source.ts';
import { createWorkspace, freePort } from '../cube-agent/support/workspace.ts';
import { ServingProcess } from '../serving/support/serving-process.ts';
import { BUNDLE, ToyBundle } from '../serving/support/toy-bundle.ts';
import { LoadRunner, ToyRepository } from '../serving/support/toy-service.ts';
import { RunningProcess, startAgentProcess, waitFor } from '../support/processes.ts';

const VERSIONS = 120;
/** Versions before the first sample. */
const WARM_UP_VERSIONS = 20;
const SAMPLES = 20;
/** Allows for slow machines. */
const TIMEOUT_MS = 120_000;
/** Tolerance for pages that the allocator keeps. */
const GROWTH_MAX = 1.15;
/**
 * LevelDB fills two write buffers (serving/stores/layer-database.ts) before it releases one.
 */
const LEVELDB_BYTES = 2 * (16 << 20);

function residentBytes(pid: number | undefined): number {
  const [, kib] = /VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))!;
  return Number(kib) * 1024;
}

/**
 * Compares the smallest samples of the beginning and the end: memory that is never released is in
 * both.
 */
class Growth {
  readonly #early: number[] = [];
  readonly #late: number[] = [];

  record(version: number, bytes: number): void {
    if (version > WARM_UP_VERSIONS && version <= WARM_UP_VERSIONS + SAMPLES)
      this.#early.push(bytes);
    if (version > VERSIONS - SAMPLES) this.#late.push(bytes);
  }

  /** @param buffersBytes buffers that are filled once and kept */
  assertFlat(t: TestContext, name: string, buffersBytes = 0): void {
    const [early, late] = [Math.min(...this.#early), Math.min(...this.#late)];
    const mib = (bytes: number): string => `${(bytes / 2 ** 20).toFixed(0)} MiB`;
    t.diagnostic(
      `${name}: ${mib(early)} after ${WARM_UP_VERSIONS}, ${mib(late)} after ${VERSIONS}`,
    );
    assert.ok(
      late < GROWTH_MAX * early + buffersBytes,
      `${name}: ${mib(early)} became ${mib(late)}`,
    );
  }
}

for (const store of ['memory', 'local']) {
  test(`memory of serving with store ${store} stays flat under load`, async (t) => {
    const toys = new ToyRepository(t);
    const served = Array.from({ length: VERSIONS }, (_, i) => {
      return new ToyBundle({ version: String(i + 1), seed: 7 * i + 1, wide: i % 2 === 0 });
    });
    await toys.publish(served[0]!);
    await toys.activate('1');
    const folder = store === 'local' ? ['--data-dir', `${toys.folder}/data`] : [];
    const serving = await ServingProcess.start(t, [
      '--repository',
      toys.location,
      '--bundle',
      BUNDLE,
      '--store',
      store,
      ...folder,
      '--instances',
      '1',
      '--timeout-ms',
      '30000',
    ]);
    await serving.waitUntilReady();
    const load = new LoadRunner(serving, served, 2);
    const growth = new Growth();
    for (let version = 2; version <= VERSIONS; version++) {
      await toys.publish(served[version - 1]!);
      await toys.activate(String(version));
      await load.waitForAnswers(String(version), 3);
      growth.record(version, residentBytes(serving.child.pid));
    }
    await load.stop();
    assert.deepEqual([load.refused, load.degraded], [[], 0]);
    growth.assertFlat(t, `serving with ${store}`, store === 'local' ? LEVELDB_BYTES : 0);
    assert.equal(await serving.stop(), 0);
  });
}

test('memory of a cube-server managed by its agent stays flat', async (t) => {
  const workspace = createWorkspace(t);
  const source = new DeltaSource(workspace.folder, 1);
  const port = await freePort();
  const own = [
    '--shard',
    '0',
    '--shard-num',
    '1',
    '--data-dir',
    workspace.dataDir,
    '--port',
    `${port}`,
  ];
  const server = new RunningProcess(t, 'cube-server/main.js', own);
  await waitFor('listening', () => server.messages().includes('listening'), TIMEOUT_MS);
  const control = new ControlClient(`127.0.0.1:${port}`);
  startAgentProcess(t, { ...workspace, servers: [`127.0.0.1:${port}`] });
  const growth = new Growth();
  for (let version = 1; version <= VERSIONS; version++) {
    await source.publish(version, 5);
    const request = { version: String(version), by: 'test', reason: 'soak' };
    await source.repository.activate('ctr', 'stable', request);
    await waitFor(
      `version ${version}`,
      async () => {
        const { bundles } = await control.status();
        return bundles[0]?.active === String(version);
      },
      TIMEOUT_MS,
    );
    growth.record(version, residentBytes(server.child.pid));
  }
  growth.assertFlat(t, 'cube-server');
});
