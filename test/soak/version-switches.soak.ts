/** A hundred versions, each loaded, switched to and given up again: memory is in the end what it was at the beginning. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { type TestContext, test } from 'node:test';
import { ControlClient } from '../../cube-agent/fleet/control-client.ts';
import { DeltaSource } from '../cube-agent/deltas.ts';
import { freePort, makePlace } from '../cube-agent/place.ts';
import { Running, runAgent, until } from '../cube-agent/processes.ts';
import { ServingProcess } from '../serving/serving-process.ts';
import { BUNDLE, ToyBundle } from '../serving/toy-bundle.ts';
import { ToyRepository, Traffic } from '../serving/toy-service.ts';

const VERSIONS = 120;
/** By then everything has been done several times. */
const WARM = 20;
const SAMPLES = 20;
/** On whatever machine. */
const SOON_MS = 120_000;
/** Pages that the allocator keeps come and go. */
const GROWTH_MAX = 1.15;
/** Its two write buffers (serving/stores/layer-database.ts) are filled by many small versions before one is given back. */
const LEVELDB_BYTES = 2 * (16 << 20);

function residentBytes(pid: number | undefined): number {
  const [, kib] = /VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))!;
  return Number(kib) * 1024;
}

/** Takes the least of the samples at the beginning and at the end: what is not given back is in both. */
class Growth {
  readonly #early: number[] = [];
  readonly #late: number[] = [];

  note(version: number, bytes: number): void {
    if (version > WARM && version <= WARM + SAMPLES) this.#early.push(bytes);
    if (version > VERSIONS - SAMPLES) this.#late.push(bytes);
  }

  /** @param buffersBytes what is filled once and then kept */
  requireFlat(t: TestContext, what: string, buffersBytes = 0): void {
    const [early, late] = [Math.min(...this.#early), Math.min(...this.#late)];
    const mib = (bytes: number): string => `${(bytes / 2 ** 20).toFixed(0)} MiB`;
    t.diagnostic(`${what}: ${mib(early)} after ${WARM} versions, ${mib(late)} after ${VERSIONS}`);
    assert.ok(
      late < GROWTH_MAX * early + buffersBytes,
      `${what}: ${mib(early)} became ${mib(late)}`,
    );
  }
}

for (const store of ['memory', 'local']) {
  test(`serving, tables in store ${store}, under traffic`, async (t) => {
    const toys = new ToyRepository(t);
    const served = Array.from({ length: VERSIONS }, (_, i) => {
      return new ToyBundle({ version: String(i + 1), seed: 7 * i + 1, wide: i % 2 === 0 });
    });
    await toys.publish(served[0]!);
    await toys.activate('1');
    const folder = store === 'local' ? ['--data-dir', `${toys.folder}/data`] : [];
    const serving = await ServingProcess.start(t, [
      ...['--repository', toys.location, '--bundle', BUNDLE, '--store', store, ...folder],
      ...['--instances', '1', '--timeout-ms', '30000'],
    ]);
    await serving.untilReady();
    const traffic = new Traffic(serving, served, 2);
    const growth = new Growth();
    for (let version = 2; version <= VERSIONS; version++) {
      await toys.publish(served[version - 1]!);
      await toys.activate(String(version));
      await traffic.untilAnswered(String(version), 3);
      growth.note(version, residentBytes(serving.child.pid));
    }
    await traffic.stop();
    assert.deepEqual([traffic.refused, traffic.degraded], [[], 0]);
    growth.requireFlat(t, `serving with ${store}`, store === 'local' ? LEVELDB_BYTES : 0);
    assert.equal(await serving.stop(), 0);
  });
}

test('cube-server under its agent', async (t) => {
  const place = makePlace(t);
  const source = new DeltaSource(place.folder, 1);
  const port = await freePort();
  const own = [
    '--shard',
    '0',
    '--shard-num',
    '1',
    '--data-dir',
    place.dataDir,
    '--port',
    `${port}`,
  ];
  const server = new Running(t, 'cube-server/main.js', own);
  await until('listening', () => server.messages().includes('listening'), SOON_MS);
  const control = new ControlClient(`127.0.0.1:${port}`);
  runAgent(t, { ...place, servers: [`127.0.0.1:${port}`] });
  const growth = new Growth();
  for (let version = 1; version <= VERSIONS; version++) {
    await source.publish(version, 5);
    const wish = { version: String(version), by: 'test', reason: 'soak' };
    await source.repository.activate('ctr', 'stable', wish);
    await until(
      `version ${version}`,
      async () => {
        const { bundles } = await control.status();
        return bundles[0]?.active === String(version);
      },
      SOON_MS,
    );
    growth.note(version, residentBytes(server.child.pid));
  }
  growth.requireFlat(t, 'cube-server');
});
