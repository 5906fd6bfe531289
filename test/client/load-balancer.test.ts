/** The load balancers, on replicas in states set by the tests. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import type { CallPolicy, LoadBalancer } from '../../lib/client/call-policy.ts';
import { murmur32, murmur32OfKey } from '../../lib/client/murmur32.ts';
import { Replica } from '../../lib/client/replica.ts';
import { ReplicaSet } from '../../lib/client/replica-set.ts';
import { CubeError } from '../../lib/core/errors.ts';

function createReplicas(count: number): Replica[] {
  return Array.from(
    { length: count },
    (_, i) => new Replica(`10.0.0.${i + 1}:8000`, 'single', undefined),
  );
}

function createSet(
  loadBalancer: LoadBalancer,
  replicas: readonly Replica[],
  weights: readonly number[] = replicas.map(() => 1),
  policy: CallPolicy = {},
): ReplicaSet {
  return new ReplicaSet(0, replicas, weights, { loadBalancer, ...policy });
}

const probeNothing = async (): Promise<void> => undefined;

/** Counts how often each replica is picked. */
function countPicks(
  set: ReplicaSet,
  picks: number,
  getHash: (i: number) => number = (i) => i,
): number[] {
  const counts = set.replicas.map(() => 0);
  for (let i = 0; i < picks; i++) {
    const replica = set.pick('v', [], 0, getHash(i));
    assert.ok(replica);
    counts[set.replicas.indexOf(replica)]!++;
  }
  return counts;
}

/** Records many calls of a given latency. */
function takeMs(replica: Replica, latencyMs: number): void {
  for (let i = 0; i < 100; i++) {
    void replica.call('s', 'm', new Uint8Array(0), new Uint8Array(0), 1, 0).catch(() => undefined);
    replica.endCall(0, latencyMs);
  }
  replica.close();
}

test('rr, wrr, random and wr share requests equally or by weight', () => {
  assert.deepEqual(countPicks(createSet('rr', createReplicas(3)), 30), [10, 10, 10]);
  const weighted = createSet('wrr', createReplicas(3), [5, 1, 1]);
  const order = Array.from({ length: 7 }, () =>
    weighted.replicas.indexOf(weighted.pick('v', [], 0, 0)!),
  );
  assert.deepEqual(order, [0, 0, 1, 0, 2, 0, 0]);
  assert.deepEqual(countPicks(weighted, 700), [500, 100, 100]);
  for (const count of countPicks(createSet('random', createReplicas(4), [9, 1, 1, 1]), 4_000)) {
    assert.ok(count > 700 && count < 1_300, `${count} of 4000 for one of four`);
  }
  const [heavy = 0, light = 0] = countPicks(createSet('wr', createReplicas(2), [9, 1]), 4_000);
  assert.ok(heavy > 3_300 && light > 200, `${heavy}:${light} for 9:1`);
});

test('la gives less to slow replicas, and almost nothing to hanging ones', () => {
  const replicas = createReplicas(3);
  takeMs(replicas[0]!, 1);
  takeMs(replicas[1]!, 4);
  takeMs(replicas[2]!, 1);
  const [fast = 0, slow = 0, other = 0] = countPicks(createSet('la', replicas), 6_000);
  assert.ok(fast > 2_000 && other > 2_000 && slow > 300 && slow < 1_100, `${slow} of 6000`);
  void replicas[2]!.call('s', 'm', new Uint8Array(0), new Uint8Array(0), 1, -1_000).catch(() => 0);
  const hanging = countPicks(createSet('la', replicas), 6_000)[2]!;
  assert.ok(hanging < 300, `${hanging} of 6000 to a replica that has not answered for a second`);
  assert.deepEqual(
    countPicks(createSet('la', createReplicas(1)), 3),
    [3],
    'one of which nothing is known is asked',
  );
});

test('c_murmurhash keeps equal hashes together, and moves few when one leaves', () => {
  const replicas = createReplicas(5);
  const set = createSet('c_murmurhash', replicas);
  const spread = countPicks(set, 5_000, (i) => murmur32OfKey(i, 0));
  for (const count of spread) assert.ok(count > 500, `${count} of 5000 for one of five`);
  const without = createSet('c_murmurhash', replicas.slice(0, 4));
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

test('murmur3 matches the reference values', () => {
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

test('every balancer orders replicas by rank and tries each at most once', () => {
  const balancers: LoadBalancer[] = ['rr', 'wrr', 'random', 'wr', 'la', 'c_murmurhash'];
  const state = fc.constantFrom('holds', 'unknown', 'failed', 'absent');
  const ranksByState = { holds: 0, unknown: 1, failed: 3, absent: 4 };
  fc.assert(
    fc.property(
      fc.constantFrom(...balancers),
      fc.array(state, { minLength: 2, maxLength: 6 }),
      fc.nat(),
      (balancer, states, hash) => {
        const replicas = createReplicas(states.length);
        replicas.forEach((replica, i) => {
          if (states[i] === 'holds') replica.recordAnswer('v', 0);
          if (states[i] === 'failed')
            replica.recordFailure(new CubeError('INTERNAL', 'x'), 0, probeNothing);
          if (states[i] === 'absent') replica.recordVersionAbsent('v', [], 0);
        });
        const set = createSet(balancer, replicas);
        const tried: Replica[] = [];
        for (;;) {
          const replica = set.pick('v', tried, 0, hash);
          if (replica === undefined) break;
          assert.ok(!tried.includes(replica));
          tried.push(replica);
        }
        const ranks = tried.map((replica) => ranksByState[states[replicas.indexOf(replica)]!]);
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

test('a backup is only sent to a replica that is not known to be unhealthy', () => {
  const [slow, dead] = createReplicas(2);
  assert.ok(slow && dead);
  const set = createSet('rr', [slow, dead], [1, 1], { backupRequest: 7 });
  assert.equal(set.backupDelayMs(), 7);
  assert.equal(set.pickBackup('v', [slow], 0, 0), dead);
  dead.recordFailure(new CubeError('INTERNAL', 'x'), 0, probeNothing);
  assert.equal(set.pickBackup('v', [slow], 0, 0), undefined);
  const alone = createSet('rr', [slow], [1], { backupRequest: 7 });
  assert.equal(alone.backupDelayMs(), Number.POSITIVE_INFINITY, 'nobody else to ask');
});

const spreadHash = (i: number): number => murmur32OfKey(i, 0);

test('a replica that is slower than the others, or silent, loses its requests at once', () => {
  for (const balancer of ['rr', 'wrr', 'random', 'wr', 'la', 'c_murmurhash'] as const) {
    const [fast, slow] = createReplicas(2);
    assert.ok(fast && slow);
    const set = createSet(balancer, [fast, slow]);
    takeMs(fast, 2);
    takeMs(slow, 12);
    assert.ok(
      countPicks(set, 100, spreadHash)[1]! > 0,
      `${balancer}: 12 ms are not slow beside 2 ms`,
    );
    takeMs(slow, 30);
    assert.deepEqual(countPicks(set, 100, spreadHash), [100, 0], `${balancer}: 30 ms are`);
    assert.equal(set.pickBackup('v', [fast], 0, 0), slow, 'better a slow backup than none');
    assert.equal(set.pickProbe(fast, 0), undefined, 'of an unknown version nothing is probed');
    fast.recordAnswer('v', 0);
    set.pick('v', [], 0, 0);
    assert.equal(set.pickProbe(fast, 0), slow);
    slow.endProbe(0, 0.1);
    slow.recordAnswer('v', 0);
    const both = countPicks(set, 100, spreadHash);
    assert.ok(both[1]! > 0, `${balancer}: a probe ends that`);
    assert.ok(both[0]! > 0, `${balancer}: a probe of 0.1 ms does not make 2 ms slow`);
    takeMs(slow, 3);
    void fast.call('s', 'm', new Uint8Array(0), new Uint8Array(0), 1, -20).catch(() => undefined);
    assert.deepEqual(countPicks(set, 100, spreadHash), [0, 100], `${balancer}: silent for 20 ms`);
    fast.endCall(-20, 0);
    assert.ok(countPicks(set, 100, spreadHash)[0]! > 0, `${balancer}: its answer ends that`);
    fast.close();
  }
});

test('one outlier does not make a replica slow, and neither does a slow first call', () => {
  const [steady, other] = createReplicas(2);
  assert.ok(steady && other);
  const set = createSet('rr', [steady, other]);
  takeMs(steady, 1);
  other.endCall(0, 60);
  for (let i = 0; i < 20; i++) other.endCall(0, 1);
  other.endCall(0, 500);
  assert.deepEqual(countPicks(set, 100), [50, 50]);
});

test('p95 is the percentile of recent latencies, 20 ms before there are enough', () => {
  const set = createSet('rr', createReplicas(2), [1, 1], { backupRequest: 'p95' });
  for (let i = 0; i < 31; i++) set.recordLatency(1);
  assert.equal(set.backupDelayMs(), 20);
  for (let i = 0; i < 256; i++) set.recordLatency(i);
  set.recordLatency(0);
  assert.ok(set.backupDelayMs() >= 240 && set.backupDelayMs() <= 246, `${set.backupDelayMs()}`);
  for (let i = 0; i < 512; i++) set.recordLatency(2.5);
  assert.equal(set.backupDelayMs(), 3);
});
