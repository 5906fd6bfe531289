/** Limits of the gate: parser, JSON Schema and documentation agree; flags override the file. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { Ajv } from 'ajv';
import fc from 'fast-check';
import {
  applyLimitFlags,
  DEFAULT_LIMITS,
  LIMIT_NAMES,
  LIMIT_RULES,
  parsePolicy,
} from '../../../cube-agent/gate/gate-limits.ts';
import { CubeError } from '../../../lib/core/errors.ts';

/** Tests run in the project's folder. */
const schema = JSON.parse(readFileSync('docs/schemas/gate-policy.schema.json', 'utf8'));

test('parser and JSON Schema accept the same policies', () => {
  const validate = new Ajv({ allErrors: true, allowUnionTypes: true }).compile(schema);
  const values = fc.oneof(
    fc.double({ min: -1, max: 2, noNaN: true }),
    fc.constantFrom(null, 0, 1, 100, 600_000, 1e10, 'x', true, [], {}),
  );
  const names = fc.constantFrom(...LIMIT_NAMES, '$schema', 'driftMax', '__proto__', 'toString');
  fc.assert(
    fc.property(fc.dictionary(names, values, { maxKeys: 4 }), (policy) => {
      if (typeof policy['$schema'] !== 'string') delete policy['$schema'];
      const text = JSON.stringify(policy);
      let refused = false;
      try {
        parsePolicy(text, 'policy.json');
      } catch (error) {
        refused = true;
        assert.match((error as CubeError).message, /^policy\.json: /);
      }
      assert.equal(validate(JSON.parse(text)), !refused, text);
    }),
    { numRuns: 500 },
  );
});

test('a missing limit has its default; null disables a limit', () => {
  const limits = parsePolicy('{"psiMax": null, "aucMin": 0.7}', 'policy.json');
  assert.deepEqual(limits, { ...DEFAULT_LIMITS, psiMax: null, aucMin: 0.7 });
  const over = applyLimitFlags(limits, ['aucMin=none', 'psiMax=0.5', 'psiMax=0.25']);
  assert.deepEqual(over, { ...DEFAULT_LIMITS, psiMax: 0.25, aucMin: null });
});

test('an invalid limit flag is refused with the list of limits', () => {
  for (const text of [
    'aucMin',
    'auc=1',
    'aucMin=',
    'aucMin=2',
    'aucMin=-1',
    'aucMin=1,"psiMax":1',
    '=1',
    '__proto__=1',
  ]) {
    assert.throws(
      () => applyLimitFlags(DEFAULT_LIMITS, [text]),
      (error) => error instanceof CubeError && error.code === 'INVALID_ARGUMENT',
      text,
    );
  }
});

test('every limit is in docs/gate.md with its default, and in the schema', () => {
  const page = readFileSync('docs/gate.md', 'utf8');
  for (const name of LIMIT_NAMES) {
    const { defaultValue, meaning, max } = LIMIT_RULES[name];
    assert.ok(page.includes(`| \`${name}\` | ${defaultValue ?? 'none'} | ${meaning} |`), name);
    const { description, maximum } = schema.properties[name];
    assert.deepEqual(
      [description, maximum],
      [`${meaning} (default ${defaultValue ?? 'none'})`, max],
    );
  }
});
