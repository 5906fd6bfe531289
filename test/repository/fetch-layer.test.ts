/** Fetching a layer: whole and right, or not at all. */
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { type TestContext, test } from 'node:test';
import type { LayerRef } from '../../lib/core/manifest.ts';
import { ByteRateLimiter } from '../../lib/platform/byte-rate-limiter.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import { layerPath } from '../../lib/repository/layout.ts';
import { openRepository, type Repository } from '../../lib/repository/repository.ts';
import { getBaseLayer, makeVersion, sha256, temporaryFolder } from './support/fixtures.ts';

interface Source {
  readonly repository: Repository;
  readonly layer: LayerRef;
  /** The layer's file in the repository. */
  readonly path: string;
  /** Where to fetch it to. */
  readonly target: string;
  /** Every wait that was asked for, in milliseconds; no time passes but by them. */
  readonly waits: number[];
  readonly nowMs: () => number;
  /** 10,000 bytes a second. */
  readonly rate: ByteRateLimiter;
}

async function makeSource(t: TestContext, layerBytes: number): Promise<Source> {
  const folder = temporaryFolder(t);
  let nowMs = 0;
  const waits: number[] = [];
  const clock: Clock = {
    nowMs: () => nowMs,
    isoTime: () => '2026-01-31T12:00:00.000Z',
    sleep: async (ms) => {
      if (ms <= 0) return;
      waits.push(ms);
      // Sleepers wake in the order of their times, as with a real clock.
      const wakeMs = nowMs + ms;
      await Promise.resolve();
      nowMs = Math.max(nowMs, wakeMs);
    },
  };
  const repository = openRepository(join(folder, 'repository'), { create: true, clock });
  await repository.publish(makeVersion(join(folder, 'built'), { version: '1', layerBytes }));
  const layer = getBaseLayer(await repository.readManifest('ctr', '1'), 0);
  const path = join(repository.location, layerPath('ctr', 't', layer.contentId));
  return {
    repository,
    layer,
    path,
    target: join(folder, 'data', 'layer.cube'),
    waits,
    nowMs: clock.nowMs,
    rate: new ByteRateLimiter(10_000, clock),
  };
}

const fetchLayer = ({ repository, layer, target }: Source, options = {}): Promise<void> =>
  repository.fetchLayer('ctr', 't', layer, target, options);

const nothingArrived = ({ target }: Source): boolean => readdirSync(dirname(target)).length === 0;

test('layers that are fetched at the same time do not mix, also in used buffers', async (t) => {
  const folder = temporaryFolder(t);
  const repository = openRepository(join(folder, 'repository'), { create: true });
  const version = { version: '1', shardNum: 4, layerBytes: 3_000_001 };
  await repository.publish(makeVersion(join(folder, 'built'), version));
  const manifest = await repository.readManifest('ctr', '1');
  const layers = [0, 1, 2, 3].map((shard) => getBaseLayer(manifest, shard));
  for (const round of ['first', 'second']) {
    const targets = layers.map(({ contentId }) => join(folder, round, contentId));
    await Promise.all(
      layers.map((layer, i) => repository.fetchLayer('ctr', 't', layer, targets[i] ?? '')),
    );
    assert.deepEqual(
      targets.map((target) => sha256(readFileSync(target))),
      layers.map((layer) => layer.sha256),
    );
  }
});

test('a layer of several pieces arrives whole; again it reads nothing', async (t) => {
  const source = await makeSource(t, 9_000_001);
  let arrived = 0;
  const onBytes = (bytes: number): void => {
    arrived += bytes;
  };
  await fetchLayer(source, { onBytes });
  assert.equal(arrived, 9_000_001);
  assert.equal(sha256(readFileSync(source.target)), source.layer.sha256);
  assert.deepEqual(readdirSync(dirname(source.target)), ['layer.cube']);
  await fetchLayer(source, { onBytes });
  assert.equal(arrived, 9_000_001);
});

test('what an earlier attempt left is continued, and a wrong beginning is found out', async (t) => {
  const source = await makeSource(t, 1000);
  mkdirSync(dirname(source.target));
  const part = `${source.target}.part`;
  writeFileSync(part, readFileSync(source.path).subarray(0, 400));
  const pieces: number[] = [];
  await fetchLayer(source, { onBytes: (bytes: number) => pieces.push(bytes) });
  assert.deepEqual(pieces, [400, 600]);
  assert.equal(sha256(readFileSync(source.target)), source.layer.sha256);

  const other = await makeSource(t, 1000);
  mkdirSync(dirname(other.target));
  writeFileSync(`${other.target}.part`, new Uint8Array(400));
  await assert.rejects(fetchLayer(other), { code: 'CORRUPT' });
  assert.ok(nothingArrived(other));
  await fetchLayer(other);
  assert.equal(sha256(readFileSync(other.target)), other.layer.sha256);
});

test('a part of more than the whole is started over', async (t) => {
  const source = await makeSource(t, 1000);
  mkdirSync(dirname(source.target));
  writeFileSync(`${source.target}.part`, new Uint8Array(2000));
  await fetchLayer(source);
  assert.equal(statSync(source.target).size, 1000);
});

test('a damaged, cut or missing source leaves nothing behind', async (t) => {
  const source = await makeSource(t, 1000);
  const whole = readFileSync(source.path);
  const flipped = Uint8Array.from(whole);
  flipped[999] = (flipped[999] ?? 0) ^ 0x80;
  writeFileSync(source.path, flipped);
  await assert.rejects(fetchLayer(source), {
    code: 'CORRUPT',
    message: /SHA-256 .* the manifest says .*delete it there, then publish the version again/,
  });
  assert.ok(nothingArrived(source));
  for (const cut of [whole.subarray(0, 999), new Uint8Array(0), Buffer.concat([whole, whole])]) {
    writeFileSync(source.path, cut);
    await assert.rejects(fetchLayer(source), {
      code: 'CORRUPT',
      message: /bytes, but the manifest says 1000/,
    });
  }
  const layer = { ...source.layer, contentId: 'f'.repeat(32) };
  await assert.rejects(fetchLayer({ ...source, layer }), { code: 'NOT_FOUND' });
  assert.ok(nothingArrived(source));
});

test('a rate limit is kept over the whole layer', async (t) => {
  const source = await makeSource(t, 100_000);
  await fetchLayer(source, { rate: source.rate });
  const waitedMs = source.waits.reduce((sum, ms) => sum + ms, 0);
  assert.equal(Math.round(waitedMs), 10_000);
  assert.ok(Math.max(...source.waits) <= 250);
});

test('two copies that share a rate limit are together no faster than one', async (t) => {
  const source = await makeSource(t, 100_000);
  const other = { ...source, target: `${source.target}.other` };
  await Promise.all([
    fetchLayer(source, { rate: source.rate }),
    fetchLayer(other, { rate: source.rate }),
  ]);
  assert.ok(source.nowMs() >= 20_000);
});

test('a fetch that is stopped keeps what has come', async (t) => {
  const source = await makeSource(t, 100_000);
  const stop = new AbortController();
  let arrived = 0;
  const onBytes = (bytes: number): void => {
    arrived += bytes;
    if (arrived >= 50_000) stop.abort();
  };
  await assert.rejects(fetchLayer(source, { rate: source.rate, onBytes, signal: stop.signal }), {
    code: 'STOPPING',
  });
  assert.ok(!existsSync(source.target));
  assert.equal(statSync(`${source.target}.part`).size, arrived);
});

test('a version file is verified when it is read', async (t) => {
  const { repository } = await makeSource(t, 10);
  const path = join(repository.location, 'ctr/versions/1/model.onnx');
  for (const text of ['graph of 2', 'graph', '']) {
    writeFileSync(path, text);
    await assert.rejects(repository.readVersionFile('ctr', '1', 'model.onnx'), { code: 'CORRUPT' });
  }
  await assert.rejects(repository.readVersionFile('ctr', '1', 'other'), {
    code: 'NOT_FOUND',
    message: /has no file "other" \(it has: model\.onnx, slots\.json\)/,
  });
});

test('a large version file is read whole, and one changed byte anywhere is noticed', async (t) => {
  const folder = temporaryFolder(t);
  const repository = openRepository(join(folder, 'repository'), { create: true });
  const graph = 'graph '.repeat(500_000);
  await repository.publish(makeVersion(join(folder, 'built'), { version: '1', graph }));
  const manifest = await repository.readManifest('ctr', '1');
  const read = (): Promise<Uint8Array> => repository.readManifestFile(manifest, 'model.onnx');
  assert.equal(new TextDecoder().decode(await read()), graph);
  const path = join(repository.location, 'ctr/versions/1/model.onnx');
  const good = readFileSync(path);
  for (const at of [0, 1 << 20, good.length - 1]) {
    const damaged = Buffer.from(good);
    damaged[at]! ^= 1;
    writeFileSync(path, damaged);
    await assert.rejects(read(), { code: 'CORRUPT' });
  }
  writeFileSync(path, good.subarray(1));
  await assert.rejects(read(), { code: 'CORRUPT' });
  writeFileSync(path, good);
  assert.equal((await read()).length, good.length);
});

test('requests are answered while a large version file is read', async (t) => {
  const folder = temporaryFolder(t);
  const repository = openRepository(join(folder, 'repository'), { create: true });
  const graph = 'graph '.repeat(2_000_000);
  await repository.publish(makeVersion(join(folder, 'built'), { version: '1', graph }));
  let turns = 0;
  let hasRead = false;
  const takeTurn = (): void => {
    turns++;
    if (!hasRead) setImmediate(takeTurn);
  };
  setImmediate(takeTurn);
  await repository.readVersionFile('ctr', '1', 'model.onnx');
  hasRead = true;
  // 12 MB: about a turn for each slice that is hashed.
  assert.ok(turns >= 20, `${turns} turns of the event loop`);
});
