/** Counts per version, as rollouts read them: correct across switches, reset after the warm-up. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { addMetrics, type VersionCounts } from '../../cube-agent/rollout/version-health.ts';
import type { ServingProcess } from './support/serving-process.ts';
import { hashKey, ToyBundle, toTsv, toyRows } from './support/toy-bundle.ts';
import { ToyRepository } from './support/toy-service.ts';

const SLOTS = 3;
const ROWS = toyRows(40, 11);
const one = new ToyBundle({ version: '1', seed: 501, golden: true });
const two = new ToyBundle({ version: '2', seed: 502, golden: true });
/** The graph of version 2 fails on rows with this feature. */
const POISON = 'poison';
two.tables[0]!.rows.get(hashKey(0, POISON))?.fill(Number.NaN);

async function readCounts(serving: ServingProcess): Promise<Map<string, VersionCounts>> {
  const counts = new Map<string, VersionCounts>();
  addMetrics((await serving.get('/metrics')).body, 'toy', counts);
  return counts;
}

/** The versions in any metric series. */
async function listVersions(serving: ServingProcess): Promise<string[]> {
  const { body } = await serving.get('/metrics');
  const labels = (body as string).matchAll(/^(?:hypercube_engine|nv)_\S*version="([^"]*)"/gm);
  return [...new Set([...labels].map(([, version]) => version!))].sort();
}

/** @returns the expected counts for `requests` requests of ROWS */
function computeExpected(toy: ToyBundle, requests: number): Omit<VersionCounts, 'durations'> {
  const sum = (of: (row: (typeof ROWS)[number]) => number): number =>
    ROWS.reduce((total, row) => total + of(row), 0) * requests;
  return {
    requests,
    failures: 0,
    unanswered: 0,
    unavailable: 0,
    scoredRows: ROWS.length * requests,
    lookups: ROWS.length * SLOTS * requests,
    scoreSum: sum((row) => toy.score(row)[1]),
    unseen: sum((row) => toy.unseen(row)),
  };
}

function assertCounts(
  actual: VersionCounts | undefined,
  expected: Omit<VersionCounts, 'durations'>,
  what: string,
): void {
  const { durations, scoreSum, ...counts } = actual!;
  const { scoreSum: expectedSum, ...others } = expected;
  assert.deepEqual(counts, others, what);
  assert.ok(Math.abs(scoreSum - expectedSum) < 1e-3, `${what}: ${scoreSum}, not ${expectedSum}`);
  const timed = [...durations.values()].reduce((sum, count) => sum + count, 0);
  assert.equal(timed, expected.requests, `${what}, requests by duration`);
}

test('each version has its own counts across switches; retired versions have none', async (t) => {
  const toys = new ToyRepository(t);
  for (const toy of [one, two]) await toys.publish(toy);
  await toys.activate('1');
  const serving = await toys.startLocal(t, ['--store', 'memory', '--instances', '1']);
  await serving.waitUntilReady();
  const ask = async (requests: number): Promise<void> => {
    for (let i = 0; i < requests; i++) {
      assert.equal((await serving.postTsv(toTsv(ROWS))).status, 200);
    }
  };
  // Only its warm-up has requested rows.
  assertCounts(
    (await readCounts(serving)).get('1'),
    computeExpected(one, 0),
    '1 after its warm-up',
  );
  await ask(3);
  await toys.activate('2');
  await serving.waitUntilActive('2');
  assertCounts(
    (await readCounts(serving)).get('2'),
    computeExpected(two, 0),
    '2 after its warm-up',
  );
  await ask(2);
  const row = { ...ROWS[0]!, categorical: [POISON, 'b', 'c'] };
  const { status, body } = await serving.postTsv(toTsv([row]));
  assert.deepEqual([status, body.code], [500, 'INTERNAL']);
  const both = await readCounts(serving);
  assertCounts(both.get('1'), computeExpected(one, 3), '1 once it is previous');
  assertCounts(both.get('2'), { ...computeExpected(two, 2), failures: 1 }, '2');

  await toys.rollback();
  await serving.waitUntilActive('1');
  await ask(1);
  await serving.waitFor('/v1/status', (answer) => answer.body.held.length === 1);
  assertCounts(
    (await readCounts(serving)).get('1'),
    computeExpected(one, 4),
    '1 after the way back',
  );
  assert.deepEqual(await listVersions(serving), ['1'], 'what was rolled back is not counted on');

  // Only the active and the previous version have series.
  for (const version of ['3', '4']) {
    await toys.publish(new ToyBundle({ ...one.options, version }));
    await toys.activate(version);
    await serving.waitUntilActive(version);
  }
  await serving.waitFor('/v1/status', (answer) => answer.body.held.length === 2);
  assert.deepEqual(await listVersions(serving), ['3', '4']);
});
