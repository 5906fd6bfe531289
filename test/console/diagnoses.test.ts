/** Findings of the console: only those that two diagnoses in a row have. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Diagnoses } from '../../cube-agent/console/diagnoses.ts';
import type { Finding } from '../../lib/core/findings.ts';
import { VirtualClock } from '../client/support/virtual-clock.ts';

function makeFinding(check: string, what = check): Finding {
  return { severity: 'error', check, where: 'here', what, todo: '' };
}

test('a finding is shown when the next diagnosis has it too, and removed with it', async () => {
  const clock = new VirtualClock();
  let found: readonly Finding[] | Error = [];
  let runs = 0;
  const diagnoses = new Diagnoses(async () => {
    runs++;
    if (found instanceof Error) throw found;
    return found;
  }, clock);
  /** The findings after a diagnosis, if one is due. */
  const read = async (waitMs: number): Promise<string[]> => {
    await clock.advance(waitMs);
    diagnoses.list();
    await clock.advance(0);
    return diagnoses.list().map(({ what }) => what);
  };
  assert.deepEqual(await read(0), []);
  found = [makeFinding('moving')];
  assert.deepEqual(await read(15_000), [], 'new');
  found = [];
  assert.deepEqual(await read(4_000), [], 'a moment of a rollout');
  found = [makeFinding('down', '1 server is down')];
  assert.deepEqual(await read(15_000), []);
  found = [makeFinding('down', '2 servers are down'), makeFinding('other')];
  assert.deepEqual(await read(4_000), ['2 servers are down']);
  assert.deepEqual(await read(4_000), ['2 servers are down', 'other']);
  const before = runs;
  assert.deepEqual(await read(14_000), ['2 servers are down', 'other']);
  assert.equal(runs, before, 'not yet due');
  found = new Error('the repository cannot be read');
  assert.deepEqual(await read(1_000), []);
});
