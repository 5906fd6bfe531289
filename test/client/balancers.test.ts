/** How each load balancer shares requests, on replicas whose state the test makes. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import type { CallPolicy, LoadBalancer } from '../../lib/client/call-policy.ts';
import { murmur32, murmur32OfKey } from '../../lib/client/murmur32.ts';
import { Replica } from '../../lib/client/replica.ts';
import { ReplicaSet } from '../../lib/client/replica-set.ts';
import { CubeError } from '../../lib/core/errors.ts';

function replicasOf(count: number): Replica[] {
  return Array.from(
    { length: count },
    (_, i) => new Replica(`10.0.0.${i + 1}:8000`, 'single', undefined),
  );
}

function setOf(
  loadBalancer: LoadBalancer,
  replicas: readonly Replica[],
  weights: readonly number[] = replicas.map(() => 1),
  policy: CallPolicy = {},
): ReplicaSet {
  return new ReplicaSet(0, replicas, weights, { loadBalancer, ...policy });
}

/** How often each replica is chosen. */
function shares(
  set: ReplicaSet,
  picks: number,
  hashOf: (i: number) => number = (i) => i,
): number[] {
  const counts = set.replicas.map(() => 0);
  for (let i = 0; i < picks; i++) {
    const replica = set.pick('v', [], 0, hashOf(i));
    counts[set.replicas.indexOf(replica!)]!++;
  }
  return counts;
}

/** Pretends that a replica took so long for a call, many times. */
function takeMs(replica: Replica, latencyMs: number): void {
  for (let i = 0; i < 100; i++) {
    void replica.call('s', 'm', new Uint8Array(0), new Uint8Array(0), 1, 0).catch(() => undefined);
    replica.exit(0, latencyMs, false);
  }
  replica.close();
}

test('rr goes round, wrr in proportion and never all at once, random and wr by chance', () => {
  assert.deepEqual(shares(setOf('rr', replicasOf(3)), 30), [10, 10, 10]);
  const weighted = setOf('wrr', replicasOf(3), [5, 1, 1]);
  const order = Array.from({ length: 7 }, () =>
    weighted.replicas.indexOf(weighted.pick('v', [], 0, 0)!),
  );
  assert.deepEqual(order, [0, 0, 1, 0, 2, 0, 0]);
  assert.deepEqual(shares(weighted, 700), [500, 100, 100]);
  for (const count of shares(setOf('random', replicasOf(4), [9, 1, 1, 1]), 4_000)) {
    assert.ok(count > 700 && count < 1_300, `${count} of 4000 for one of four`);
  }
  const [heavy, light] = shares(setOf('wr', replicasOf(2), [9, 1]), 4_000);
  assert.ok(heavy! > 3_300 && light! > 200, `${heavy}:${light} for 9:1`);
});

test('la gives less to the slower, and next to nothing to one whose calls hang', () => {
  const replicas = replicasOf(3);
  takeMs(replicas[0]!, 1);
  takeMs(replicas[1]!, 4);
  takeMs(replicas[2]!, 1);
  const [fast, slow, other] = shares(setOf('la', replicas), 6_000);
  assert.ok(fast! > 2_000 && other! > 2_000 && slow! > 300 && slow! < 1_100, `${slow} of 6000`);
  void replicas[2]!.call('s', 'm', new Uint8Array(0), new Uint8Array(0), 1, -1_000).catch(() => 0);
  const hanging = shares(setOf('la', replicas), 6_000)[2]!;
  assert.ok(hanging < 300, `${hanging} of 6000 to a replica that has not answered for a second`);
  assert.deepEqual(
    shares(setOf('la', replicasOf(1)), 3),
    [3],
    'one of which nothing is known is asked',
  );
});

test('c_murmurhash: equal hashes go to one replica; one that goes takes only its own along', () => {
  const replicas = replicasOf(5);
  const set = setOf('c_murmurhash', replicas);
  const spread = shares(set, 5_000, (i) => murmur32OfKey(i, 0));
  for (const count of spread) assert.ok(count > 500, `${count} of 5000 for one of five`);
  const without = setOf('c_murmurhash', replicas.slice(0, 4));
  fc.assert(
    fc.property(fc.integer({ min: 0, max: 0xffff_ffff }), (hash) => {
      const chosen = set.pick('v', [], 0, hash)!;
      assert.equal(set.pick('v', [], 0, hash), chosen);
      if (chosen !== replicas[4]) assert.equal(without.pick('v', [], 0, hash), chosen);
      else assert.equal(without.pick('v', [], 0, hash), set.pick('v', [chosen], 0, hash));
    }),
    { numRuns: 300 },
  );
});

test('murmur3 as the world knows it', () => {
  const of = (text: string): number => murmur32(new TextEncoder().encode(text));
  // SMHasher's and the reference implementation's values for seed 0.
  assert.equal(of(''), 0);
  assert.equal(of('test'), 0xba6bd213);
  assert.equal(of('Hello, world!'), 0xc0363e43);
  assert.equal(of('The quick brown fox jumps over the lazy dog'), 0x2e4ff723);
  const key = 0x0123_4567_89ab_cdefn;
  const bytes = new Uint8Array(new BigUint64Array([key]).buffer);
  assert.equal(murmur32OfKey(0x89ab_cdef, 0x0123_4567), murmur32(bytes));
});

test('whatever the balancer: tried and failed replicas last, lacking ones after them, each at most once', () => {
  const balancers: LoadBalancer[] = ['rr', 'wrr', 'random', 'wr', 'la', 'c_murmurhash'];
  const state = fc.constantFrom('holds', 'unknown', 'failed', 'absent');
  const rankOf = { holds: 0, unknown: 1, failed: 3, absent: 4 };
  fc.assert(
    fc.property(
      fc.constantFrom(...balancers),
      fc.array(state, { minLength: 2, maxLength: 6 }),
      fc.nat(),
      (balancer, states, hash) => {
        const replicas = replicasOf(states.length);
        replicas.forEach((replica, i) => {
          if (states[i] === 'holds') replica.answered('v');
          if (states[i] === 'failed') replica.failed(new CubeError('INTERNAL', 'x'), 0);
          if (states[i] === 'absent') replica.lacks('v', [], 0);
        });
        const set = setOf(balancer, replicas);
        const tried: Replica[] = [];
        for (;;) {
          const replica = set.pick('v', tried, 0, hash);
          if (replica === undefined) break;
          assert.ok(!tried.includes(replica));
          tried.push(replica);
        }
        const ranks = tried.map((replica) => rankOf[states[replicas.indexOf(replica)]!]);
        assert.deepEqual(
          ranks,
          ranks.toSorted((a, b) => a - b),
        );
        assert.equal(tried.length, replicas.length);
      },
    ),
    { numRuns: 300 },
  );
});

test('a backup is only asked of a replica that is healthy as far as is known', () => {
  const [slow, dead] = replicasOf(2);
  const set = setOf('rr', [slow!, dead!], [1, 1], { backupRequest: 7 });
  assert.equal(set.backupDelayMs(), 7);
  assert.equal(set.pickBackup('v', [slow!], 0, 0), dead);
  dead!.failed(new CubeError('INTERNAL', 'x'), 0);
  assert.equal(set.pickBackup('v', [slow!], 0, 0), undefined);
  const alone = setOf('rr', [slow!], [1], { backupRequest: 7 });
  assert.equal(alone.backupDelayMs(), Number.POSITIVE_INFINITY, 'nobody else to ask');
});

test('p95: the 95th percentile of what was seen lately, and no backup before enough was', () => {
  const set = setOf('rr', replicasOf(2), [1, 1], { backupRequest: 'p95' });
  for (let i = 0; i < 31; i++) set.observe(1);
  assert.equal(set.backupDelayMs(), Number.POSITIVE_INFINITY);
  for (let i = 0; i < 256; i++) set.observe(i);
  set.observe(0);
  assert.ok(set.backupDelayMs() >= 240 && set.backupDelayMs() <= 246, `${set.backupDelayMs()}`);
  for (let i = 0; i < 512; i++) set.observe(2.5);
  assert.equal(set.backupDelayMs(), 3);
});
