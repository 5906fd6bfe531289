/** What a process counts of each version by itself, as rollouts read it: right across switches, from zero after a warm-up. */
import assert from 'node:assert/strict';
import { it } from 'node:test';
import { addCounts, type VersionCounts } from '../../cube-agent/rollout/version-health.ts';
import type { ServingProcess } from './serving-process.ts';
import { keyOf, ToyBundle, toTsv, toyRows } from './toy-bundle.ts';
import { ToyRepository } from './toy-service.ts';

const SLOTS = 3;
const ROWS = toyRows(40, 11);
const one = new ToyBundle({ version: '1', seed: 501, golden: true });
const two = new ToyBundle({ version: '2', seed: 502, golden: true });
/** On rows with this feature the graph of version 2 fails. */
const POISON = 'poison';
two.tables[0]!.rows.get(keyOf(0, POISON))?.fill(Number.NaN);

async function countsOf(serving: ServingProcess): Promise<Map<string, VersionCounts>> {
  const counts = new Map<string, VersionCounts>();
  addCounts((await serving.get('/metrics')).body, 'toy', counts);
  return counts;
}

/** Versions of any series that has one. */
async function versionsIn(serving: ServingProcess): Promise<string[]> {
  const { body } = await serving.get('/metrics');
  const labels = (body as string).matchAll(/^(?:hypercube_engine|nv)_\S*version="([^"]*)"/gm);
  return [...new Set([...labels].map(([, version]) => version!))].sort();
}

/** @returns what `requests` of ROWS amount to, by the plain computation */
function expectedOf(toy: ToyBundle, requests: number): Omit<VersionCounts, 'durations'> {
  const sum = (of: (row: (typeof ROWS)[number]) => number): number =>
    ROWS.reduce((total, row) => total + of(row), 0) * requests;
  return {
    ...{ requests, failures: 0, unanswered: 0, unavailable: 0 },
    ...{ scoredRows: ROWS.length * requests, lookups: ROWS.length * SLOTS * requests },
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

it('counts each version by itself, across switches and back, and forgets those that go', async (t) => {
  const toys = new ToyRepository(t);
  for (const toy of [one, two]) await toys.publish(toy);
  await toys.activate('1');
  const serving = await toys.startLocal(t, ['--store', 'memory', '--instances', '1']);
  await serving.untilReady();
  const ask = async (requests: number): Promise<void> => {
    for (let i = 0; i < requests; i++) {
      assert.equal((await serving.postTsv(toTsv(ROWS))).status, 200);
    }
  };
  // Its warm-up asked for many rows; nobody else did.
  assertCounts((await countsOf(serving)).get('1'), expectedOf(one, 0), '1 after its warm-up');
  await ask(3);
  await toys.activate('2');
  await serving.untilActive('2');
  assertCounts((await countsOf(serving)).get('2'), expectedOf(two, 0), '2 after its warm-up');
  await ask(2);
  const row = { ...ROWS[0]!, categorical: [POISON, 'b', 'c'] };
  const { status, body } = await serving.postTsv(toTsv([row]));
  assert.deepEqual([status, body.code], [500, 'INTERNAL']);
  const both = await countsOf(serving);
  assertCounts(both.get('1'), expectedOf(one, 3), '1 once it is previous');
  assertCounts(both.get('2'), { ...expectedOf(two, 2), failures: 1 }, '2');

  await toys.rollback();
  await serving.untilActive('1');
  await ask(1);
  await serving.until('/v1/status', (answer) => answer.body.held.length === 1);
  assertCounts((await countsOf(serving)).get('1'), expectedOf(one, 4), '1 after the way back');
  assert.deepEqual(await versionsIn(serving), ['1'], 'what was rolled back is not counted on');

  // However many versions there were: series of the pointer's and the previous one.
  for (const version of ['3', '4']) {
    await toys.publish(new ToyBundle({ ...one.wish, version }));
    await toys.activate(version);
    await serving.untilActive(version);
  }
  await serving.until('/v1/status', (answer) => answer.body.held.length === 2);
  assert.deepEqual(await versionsIn(serving), ['3', '4']);
});
