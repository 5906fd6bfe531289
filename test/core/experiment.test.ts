import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import fc from 'fast-check';
import {
  assignVariant,
  drawVariant,
  type Experiment,
  findConflict,
} from '../../lib/core/experiment.ts';

const NO_OVERRIDES: ReadonlyMap<string, string> = new Map();

function makeExperiment(weights: readonly number[], salt = 'salt'): Experiment {
  const variants = weights.map((weight, i) => ({ name: `v${i}`, weight, target: {} }));
  return { name: 'test', model: 'm', salt, variants, overrides: NO_OVERRIDES };
}

const weightLists = fc.array(fc.integer({ min: 1, max: 100 }), { minLength: 2, maxLength: 6 });

/** Chi-square of counts against expected ones. */
function chiSquare(counts: readonly number[], expected: readonly number[]): number {
  return counts.reduce((sum, count, i) => sum + (count - expected[i]!) ** 2 / expected[i]!, 0);
}

test('a million keys are shared by weight', () => {
  const weights = [65, 35];
  const experiment = makeExperiment(weights);
  const counts = weights.map(() => 0);
  const keyCount = 1_000_000;
  for (let i = 0; i < keyCount; i++) {
    counts[Number(assignVariant(experiment, `user-${i}`).name.slice(1))]!++;
  }
  const expected = weights.map((weight) => (keyCount * weight) / 100);
  // 1 degree of freedom: 10.8 is exceeded by one in a thousand.
  assert.ok(chiSquare(counts, expected) < 10.8, `${counts}`);
});

test('a weight that changes moves only keys to or from its variant', () => {
  const keys = Array.from({ length: 300 }, (_, i) => `key ${i}`);
  fc.assert(
    fc.property(weightLists, fc.nat(5), fc.integer({ min: 0, max: 200 }), (weights, at, weight) => {
      const changed = at % weights.length;
      const before = makeExperiment(weights);
      const after = makeExperiment(weights.with(changed, weight));
      for (const key of keys) {
        const [from, to] = [assignVariant(before, key).name, assignVariant(after, key).name];
        if (from === to) continue;
        const moved = weight > weights[changed]! ? to : from;
        assert.equal(moved, `v${changed}`);
      }
    }),
    { numRuns: 50 },
  );
});

test('a variant that is added takes keys and moves no others', () => {
  fc.assert(
    fc.property(weightLists, fc.string(), (weights, key) => {
      const before = assignVariant(makeExperiment(weights), key).name;
      const after = assignVariant(makeExperiment([...weights, 7]), key).name;
      assert.ok(after === before || after === `v${weights.length}`);
    }),
  );
});

test('experiments with different salts are independent', () => {
  const [first, second] = [makeExperiment([1, 1], 'a'), makeExperiment([1, 1], 'b')];
  const counts = [0, 0, 0, 0];
  for (let i = 0; i < 40_000; i++) {
    const one = Number(assignVariant(first, `${i}`).name.slice(1));
    const two = Number(assignVariant(second, `${i}`).name.slice(1));
    counts[2 * one + two]!++;
  }
  assert.ok(chiSquare(counts, [10_000, 10_000, 10_000, 10_000]) < 16.3, `${counts}`);
});

test('an override wins, and one that names no variant is ignored', () => {
  const overrides = new Map([
    ['tester', 'v1'],
    ['other', 'gone'],
  ]);
  const experiment = { ...makeExperiment([1, 0]), overrides };
  assert.equal(assignVariant(experiment, 'tester').name, 'v1');
  assert.equal(assignVariant(experiment, 'other').name, 'v0');
  assert.equal(assignVariant(experiment, 'anyone').name, 'v0');
});

test('without a key variants are drawn by weight', () => {
  const { variants } = makeExperiment([3, 1]);
  const counts = new Map<string, number>();
  let state = 1;
  const random = (): number => {
    state = (state * 48_271) % 2_147_483_647;
    return state / 2_147_483_647;
  };
  for (let i = 0; i < 40_000; i++) {
    const { name } = drawVariant(variants, random);
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  const observed = [counts.get('v0') ?? 0, counts.get('v1') ?? 0];
  assert.ok(chiSquare(observed, [30_000, 10_000]) < 10.8, `${observed}`);
});

test('the published test vectors hold', () => {
  const text = readFileSync(
    new URL('../../../docs/experiment-vectors.json', import.meta.url),
    'utf8',
  );
  interface Vector {
    salt: string;
    variants: { name: string; weight: number }[];
    key: string;
    variant: string;
  }
  const vectors = JSON.parse(text) as Vector[];
  assert.ok(vectors.length > 90);
  for (const { salt, variants, key, variant } of vectors) {
    const experiment = {
      ...makeExperiment([], salt),
      variants: variants.map((each) => ({ ...each, target: {} })),
    };
    assert.equal(assignVariant(experiment, key).name, variant, JSON.stringify({ salt, key }));
  }
});

test('experiments of one model conflict over the version, the slot and names only', () => {
  const choosing = (name: string, model = 'm'): Experiment => ({
    ...makeExperiment([1, 1]),
    name,
    model,
    variants: [
      { name: 'a', weight: 1, target: { channel: 'canary' } },
      { name: 'b', weight: 1, target: {} },
    ],
  });
  const reporting = (name: string, slot: string): Experiment => ({
    ...makeExperiment([1, 1]),
    name,
    slot,
  });
  assert.equal(
    findConflict([choosing('x'), reporting('y', 'C1'), choosing('z', 'other')]),
    undefined,
  );
  const cases: [Experiment[], number, RegExp][] = [
    [[choosing('x'), choosing('y')], 1, /x chooses the version of m already/],
    [[reporting('x', 'C1'), reporting('y', 'C2')], 1, /from slot C1: use the same slot/],
    [[choosing('x'), reporting('y', 'C1'), choosing('x', 'other')], 2, /the name x is used twice/],
  ];
  for (const [experiments, index, reason] of cases) {
    const conflict = findConflict(experiments);
    assert.equal(conflict?.index, index);
    assert.match(conflict?.reason ?? '', reason);
  }
});
