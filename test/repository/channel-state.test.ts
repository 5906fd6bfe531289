/** Where a rollback goes: properties over all histories, quarantines and outcomes. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { type ChannelEntry, computeChannelState } from '../../lib/repository/channel-log.ts';
import { FolderBackend } from '../../lib/repository/folder-backend.ts';
import { Repository } from '../../lib/repository/repository.ts';
import { makeVersion, temporaryFolder } from './support/fixtures.ts';

const version: fc.Arbitrary<string> = fc.constantFrom('1', '2', '3', '4', '5');
const versions = fc.uniqueArray(version).map((names) => new Set(names));

function makeHistory(names: readonly string[]): ChannelEntry[] {
  return names.map((name, i) => ({ seq: i + 1, version: name, at: '', by: '', reason: '' }));
}

test('a rollback goes to the newest version that has served', () => {
  fc.assert(
    fc.property(
      fc.array(version, { maxLength: 12 }).map(makeHistory),
      versions,
      fc.record({ served: versions, failed: versions }),
      (history, quarantine, outcomes) => {
        const state = computeChannelState(history, quarantine, outcomes);
        const pointer = history.at(-1)?.version;
        const { previous, fallbacks } = state;
        const candidates = history.filter(
          (entry) => entry.version !== pointer && !quarantine.has(entry.version),
        );
        const served = candidates.filter((entry) => outcomes.served.has(entry.version));
        const unknown = candidates.filter(
          (entry) => !outcomes.served.has(entry.version) && !outcomes.failed.has(entry.version),
        );
        assert.equal(previous, served.at(-1) ?? unknown.at(-1));
        assert.equal(fallbacks[0], previous);
        const names = new Set(fallbacks.map((entry) => entry.version));
        assert.equal(names.size, fallbacks.length, 'each version once');
        assert.deepEqual(names, new Set([...served, ...unknown].map((entry) => entry.version)));
      },
    ),
    { numRuns: 2_000 },
  );
});

test('a rollback passes over a version that failed, and refuses if no other is left', async (t) => {
  const repository = new Repository(new FolderBackend(temporaryFolder(t)));
  const by = { by: 'test', reason: 'test' };
  for (const name of ['1', '4', '2']) {
    await repository.publish(makeVersion(temporaryFolder(t), { version: name }));
    await repository.activate('ctr', 'stable', { version: name, ...by });
    const outcome = name === '4' ? 'failed' : 'served';
    assert.equal(await repository.recordOutcome('ctr', name, outcome, by), true);
    assert.equal(await repository.recordOutcome('ctr', name, outcome, by), false, 'once');
  }
  const entry = await repository.rollback('ctr', 'stable', 'test', 'worse');
  assert.deepEqual([entry.version, entry.quarantines], ['1', '2']);
  await assert.rejects(repository.rollback('ctr', 'stable', 'test', 'worse'), {
    code: 'CONFLICT',
    message: /no previous version .* 4 failed to load and never served/,
  });
});
