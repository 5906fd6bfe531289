/**
 * Random failures over real sockets, with every load balancer, backup policy and connection type: a
 * row is the oracle's or its key is unavailable, and only when no replica of its shard could
 * answer.
 */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import fc from 'fast-check';
import { LOAD_BALANCERS } from '../../lib/client/call-policy.ts';
import { CONNECTION_TYPES } from '../../lib/client/connections.ts';
import type { CubeClient } from '../../lib/client/cube-client.ts';
import { OUTCOME_UNAVAILABLE } from '../../lib/core/lookup-group.ts';
import {
  assertLookup,
  createGroup,
  createManifest,
  createOracleTable,
  KEY_MAX,
} from './support/oracle.ts';
import type { FakeBehavior } from './support/shard-server.ts';
import { TestFleet } from './support/test-fleet.ts';

const SHARDS = 3;
const KEYS = [...Array.from({ length: 40 }, (_, i) => BigInt(i)), KEY_MAX];
const SMALL = createOracleTable('small', 1, KEYS.slice(5, 20), { salt: 3 });
const LARGE = createOracleTable('large', 40, KEYS.slice(0, 35), {
  salt: 4,
  defaultRow: Array(40).fill(9),
});
const VERSION = { bundle: 'ctr', version: '1', shardNum: SHARDS, tables: [SMALL, LARGE] };

let fleet: TestFleet | undefined;
after(() => fleet?.stop());

async function startFleet(): Promise<TestFleet> {
  fleet ??= await TestFleet.start([VERSION], 2);
  return fleet;
}

const FAILING: FakeBehavior[] = [
  'answer another version',
  'answer a row too few',
  'answer more hits than there are',
  'answer one key more than asked',
  'answer rows of another dtype',
  'answer garbage',
  'drop the connection',
  'VERSION_ABSENT',
  'STOPPING',
  'OVERLOADED',
  'INTERNAL',
];
const SLOW: FakeBehavior[] = ['answer late', 'stay silent'];

const key = fc.oneof(fc.constantFrom(0n, KEY_MAX), fc.bigInt({ min: 0n, max: 60n }));
const setting = fc.record({
  loadBalancer: fc.constantFrom(...LOAD_BALANCERS),
  connectionType: fc.constantFrom(...CONNECTION_TYPES),
  dedupe: fc.boolean(),
});
const batch = fc.record({
  small: fc.array(key, { maxLength: 40 }),
  large: fc.array(key, { maxLength: 40 }),
});
type Batch = { small: bigint[]; large: bigint[] };

async function lookUp(
  client: CubeClient,
  { small, large }: Batch,
  options: { dedupe: boolean; timeoutMs: number },
): Promise<number> {
  const groups = [
    { table: SMALL, keys: small, group: createGroup(SMALL, small) },
    { table: LARGE, keys: large, group: createGroup(LARGE, large) },
  ];
  const lookupGroups = groups.map(({ group }) => group);
  const summary = await client.lookup(
    createManifest(VERSION),
    lookupGroups,
    options.timeoutMs,
    options,
  );
  const check = (): void =>
    assertLookup(VERSION, groups, summary, (_shard, outcome) => outcome === OUTCOME_UNAVAILABLE);
  check();
  // Late responses must not write: compare again after all of them have arrived.
  if (options.timeoutMs < 1_000) late.push(check);
  return summary.unavailable;
}
const late: (() => void)[] = [];

test('when one replica per shard fails, dies or hangs, the other answers', async () => {
  const servers = await startFleet();
  const one = fc.record({
    setting,
    batches: fc.array(batch, { minLength: 1, maxLength: 4 }),
    bad: fc.array(fc.nat(1), { minLength: SHARDS, maxLength: SHARDS }),
    script: fc.array(fc.constantFrom<FakeBehavior>('answer', ...FAILING, ...SLOW), {
      minLength: 1,
    }),
    killed: fc.option(fc.nat(SHARDS - 1)),
  });
  await fc.assert(
    fc.asyncProperty(one, async ({ setting: chosen, batches, bad, script, killed }) => {
      let at = 0;
      for (let shard = 0; shard < SHARDS; shard++) {
        const replicas = servers.getReplicas(SHARDS, shard);
        replicas[1 - bad[shard]!]!.nextBehavior = () => 'answer';
        replicas[bad[shard]!]!.nextBehavior = () => script[at++ % script.length]!;
      }
      const { loadBalancer, connectionType, dedupe } = chosen;
      const client = servers.client({
        connectionType,
        keysPerRequestMax: 16,
        policy: { loadBalancer, backupRequest: 5 },
      });
      const dying =
        killed === null ? undefined : servers.getReplicas(SHARDS, killed)[bad[killed]!]!;
      const options = { dedupe, timeoutMs: 5_000 };
      try {
        const lookups = batches.map((each) => lookUp(client, each, options));
        await dying?.kill();
        lookups.push(...batches.map((each) => lookUp(client, each, options)));
        for (const unavailable of await Promise.all(lookups)) assert.equal(unavailable, 0);
      } finally {
        await dying?.start();
        client.close();
      }
    }),
    // Failures are not reproducible, so counterexamples are not shrunk.
    { numRuns: 60, endOnFailure: true },
  );
});

test('when all replicas fail randomly, keys are correct or unavailable', async () => {
  const servers = await startFleet();
  const behaviour = fc.oneof(
    { weight: 3, arbitrary: fc.constant<FakeBehavior>('answer') },
    { weight: 2, arbitrary: fc.constantFrom(...FAILING, ...SLOW) },
  );
  const one = fc.record({
    setting,
    batches: fc.array(batch, { minLength: 1, maxLength: 5 }),
    backupRequest: fc.constantFrom(undefined, 5, 'p95' as const),
    script: fc.array(behaviour, { minLength: 1, maxLength: 12 }),
  });
  const manyClients: CubeClient[] = [];
  await fc.assert(
    fc.asyncProperty(one, async ({ setting: chosen, batches, script, backupRequest }) => {
      let at = 0;
      for (const server of servers.servers)
        server.nextBehavior = () => script[at++ % script.length]!;
      const { loadBalancer, connectionType, dedupe } = chosen;
      const client = servers.client({
        connectionType,
        keysPerRequestMax: 16,
        policy: { loadBalancer, ...(backupRequest === undefined ? {} : { backupRequest }) },
      });
      manyClients.push(client);
      await Promise.all(batches.map((each) => lookUp(client, each, { dedupe, timeoutMs: 60 })));
    }),
    { numRuns: 60, endOnFailure: true },
  );
  for (const server of servers.servers) server.nextBehavior = () => 'answer';
  await sleep(50); // Twice as long as a late answer takes.
  for (const check of late) check();
  const [client] = manyClients;
  const all = { small: KEYS, large: KEYS };
  while ((await lookUp(client!, all, { dedupe: false, timeoutMs: 5_000 })) > 0) await sleep(20);
});
