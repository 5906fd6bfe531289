/** With checksums on, a network that damages what it carries costs answers, and never gives a wrong one. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import fc from 'fast-check';
import { CubeClient } from '../../lib/client/cube-client.ts';
import { OUTCOME_HIT, OUTCOME_UNAVAILABLE } from '../../lib/client/lookup-group.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { Fleet } from '../../lib/core/fleet.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { Random } from '../rpc/fuzz.ts';
import { type AnyChain, anyChain, expected } from '../store/chains.ts';
import { packKeys } from '../store/layers.ts';
import { serveChain } from './chain-server.ts';
import { DamagingProxy } from './damaging-proxy.ts';
import { replicaAt } from './test-fleet.ts';

const LOOKUPS = 1_000;
const IN_FLIGHT = 8;
const PROXIES = 3;

const chain: AnyChain = fc
  .sample(anyChain(1), { numRuns: 400, seed: 5 })
  .find(
    ({ table, probes }) => table.shardNum === 1 && table.dtype === 'f32' && probes.length > 50,
  )!;
const { dim } = chain.table;
const answers: ReadonlyMap<bigint, string> = new Map(
  (expected(chain, chain.probes, true) as string[]).map((text, i) => [chain.probes[i]!, text]),
);

interface Counts {
  hits: number;
  unavailable: number;
  refused: number;
  wrong: number;
}

/** A lookup of some keys, each answer of which is held against the Map. */
async function lookUpSome(
  client: CubeClient,
  manifest: Manifest,
  random: Random,
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

test('frames late, lost, twice, out of order, in pieces, with bits turned over: no wrong row', async (context) => {
  const { manifest, fleet } = await serveChain(context, chain);
  const { data } = fleet.bundles.get('test')![0]!.shards[0]![0]!;
  const seed = Date.now() % 1e9;
  const port = Number(data.slice(data.lastIndexOf(':') + 1));
  const proxies = Array.from(
    { length: PROXIES },
    (_, i) => new DamagingProxy(port, new Random(seed + i)),
  );
  for (const proxy of proxies) await proxy.start();
  const shards = [proxies.map(({ endpoint }) => replicaAt(endpoint))];
  const damaging: Fleet = { bundles: new Map([['test', [{ shardNum: 1, shards }]]]) };
  const policy = { backupRequest: 30 };
  const client = new CubeClient({ fleet: () => damaging, checksum: true, policy });
  const random = new Random(seed + PROXIES);
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
  const what = `seed ${seed}: ${JSON.stringify(counts)}`;
  assert.equal(counts.wrong, 0, what);
  assert.ok(counts.hits > LOOKUPS / 4, what);
  const damaged = proxies.reduce((sum, proxy) => sum + proxy.damaged, 0);
  assert.ok(damaged > 10, what);
});
