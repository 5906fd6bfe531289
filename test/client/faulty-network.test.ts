/**
 * A network that corrupts frames costs availability, but never gives a wrong row.
 */
import assert from 'node:assert/strict';
import { type AddressInfo, connect, createServer } from 'node:net';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import fc from 'fast-check';
import { CubeClient } from '../../lib/client/cube-client.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { Fleet } from '../../lib/core/fleet.ts';
import { OUTCOME_HIT, OUTCOME_UNAVAILABLE } from '../../lib/core/lookup-group.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { SeededRandom } from '../rpc/support/fuzz.ts';
import {
  type AnyChain,
  arbitraryChain,
  computeExpected,
} from '../store/support/arbitrary-chain.ts';
import { packKeys } from '../store/support/layers.ts';
import { serveChain } from './support/chain-server.ts';
import { FaultyProxy } from './support/faulty-proxy.ts';
import { createReplica } from './support/test-fleet.ts';

const LOOKUPS = 1_000;
const IN_FLIGHT = 8;
const PROXIES = 3;

const chain: AnyChain = fc
  .sample(arbitraryChain(1), { numRuns: 400, seed: 5 })
  .find(
    ({ table, probes }) => table.shardNum === 1 && table.dtype === 'f32' && probes.length > 50,
  )!;
const { dim } = chain.table;
const answers: ReadonlyMap<bigint, string> = new Map(
  (computeExpected(chain, chain.probes, true) as string[]).map((text, i) => [
    chain.probes[i]!,
    text,
  ]),
);

interface Counts {
  hits: number;
  unavailable: number;
  refused: number;
  wrong: number;
}

/** Looks up some keys, and compares every row with the Map. */
async function lookUpSome(
  client: CubeClient,
  manifest: Manifest,
  random: SeededRandom,
  counts: Counts,
): Promise<void> {
  const probes = Array.from({ length: 1 + random.below(20) }, () => random.pick(chain.probes));
  const count = probes.length;
  const rows = new Float32Array(count * dim);
  const outcomes = new Uint8Array(count);
  try {
    const group = { table: 't', keys: packKeys(probes), count, rows, outcomes };
    await client.lookup(manifest, [group], 400);
  } catch (error) {
    assert.ok(error instanceof CubeError, String(error));
    assert.notEqual(error.code, 'INTERNAL', error.message);
    counts.refused++;
    return;
  }
  probes.forEach((key, i) => {
    const outcome = outcomes[i];
    if (outcome === OUTCOME_UNAVAILABLE) {
      counts.unavailable++;
      return;
    }
    const row = rows.slice(i * dim, (i + 1) * dim);
    const hex = Buffer.from(row.buffer).toString('hex');
    const text = outcome === OUTCOME_HIT ? hex : `default: ${hex}`;
    if (outcome === OUTCOME_HIT) counts.hits++;
    if (text !== answers.get(key)) counts.wrong++;
  });
}

test('late, lost, repeated, reordered and corrupted frames give no wrong row', async (context) => {
  const { manifest, fleet } = await serveChain(context, chain);
  const { data } = fleet.bundles.get('test')![0]!.shards[0]![0]!;
  const seed = Date.now() % 1e9;
  const port = Number(data.slice(data.lastIndexOf(':') + 1));
  const proxies = Array.from(
    { length: PROXIES },
    (_, i) => new FaultyProxy(port, new SeededRandom(seed + i)),
  );
  for (const proxy of proxies) await proxy.start();
  const shards = [proxies.map(({ endpoint }) => createReplica(endpoint))];
  const damaging: Fleet = { bundles: new Map([['test', [{ shardNum: 1, shards }]]]) };
  const policy = { backupRequest: 30 };
  const client = new CubeClient({ fleet: () => damaging, policy });
  const random = new SeededRandom(seed + PROXIES);
  const counts: Counts = { hits: 0, unavailable: 0, refused: 0, wrong: 0 };
  let left = LOOKUPS;
  const one = async (): Promise<void> => {
    while (left-- > 0) {
      await lookUpSome(client, manifest, random, counts);
      await sleep(2);
    }
  };
  await Promise.all(Array.from({ length: IN_FLIGHT }, one));
  client.close();
  for (const proxy of proxies) await proxy.stop();
  const summary = `seed ${seed}: ${JSON.stringify(counts)}`;
  assert.equal(counts.wrong, 0, summary);
  assert.ok(counts.hits > LOOKUPS / 4, summary);
  const damaged = proxies.reduce((sum, proxy) => sum + proxy.damagedFrames, 0);
  assert.ok(damaged > 10, summary);
});

/** Forwards connections to a port; one bit of each response frame after its header is flipped. */
async function startFlippingProxy(
  context: TestContext,
  port: number,
  random: SeededRandom,
): Promise<{ readonly endpoint: string; readonly count: () => number }> {
  let flipped = 0;
  const proxy = createServer({ noDelay: true }, (near) => {
    const far = connect({ port, host: '127.0.0.1', noDelay: true });
    near.on('error', () => undefined).on('close', () => far.destroy());
    far.on('error', () => undefined).on('close', () => near.destroy());
    near.pipe(far);
    let pending: Buffer = Buffer.alloc(0);
    far.on('data', (chunk: Buffer) => {
      pending = Buffer.concat([pending, chunk]);
      while (pending.length >= 12 && pending.length >= 12 + pending.readUInt32BE(4)) {
        const end = 12 + pending.readUInt32BE(4);
        const at = 12 + random.below(end - 12);
        pending[at]! ^= 1 << random.below(8);
        near.write(Buffer.from(pending.subarray(0, end)));
        pending = pending.subarray(end);
        flipped++;
      }
    });
  });
  await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve));
  context.after(() => proxy.close());
  const endpoint = `127.0.0.1:${(proxy.address() as AddressInfo).port}`;
  return { endpoint, count: () => flipped };
}

test('with default options a bit flipped in each response gives no wrong row', async (context) => {
  const { manifest, fleet } = await serveChain(context, chain);
  const { data } = fleet.bundles.get('test')![0]!.shards[0]![0]!;
  const seed = Date.now() % 1e9;
  const random = new SeededRandom(seed);
  const port = Number(data.slice(data.lastIndexOf(':') + 1));
  const flipping = await startFlippingProxy(context, port, random);
  for (const [replicas, isRetried] of [
    [[flipping.endpoint], false],
    [[flipping.endpoint, data], true],
  ] as const) {
    const shards = [replicas.map((endpoint) => createReplica(endpoint))];
    const client = new CubeClient({
      fleet: () => ({ bundles: new Map([['test', [{ shardNum: 1, shards }]]]) }),
    });
    const before = flipping.count();
    const counts: Counts = { hits: 0, unavailable: 0, refused: 0, wrong: 0 };
    for (let i = 0; i < 200 || (isRetried && flipping.count() < before + 3); i++) {
      await lookUpSome(client, manifest, random, counts);
      await sleep(2);
    }
    client.close();
    const summary = `seed ${seed}, ${replicas.length} replicas: ${JSON.stringify(counts)}`;
    assert.equal(counts.wrong, 0, summary);
    assert.ok(flipping.count() > before, summary);
    if (isRetried) assert.ok(counts.hits > 0 && counts.unavailable + counts.refused === 0, summary);
  }
});
