/**
 * Publishers, activators and rollbacks in any order on one bucket, against what a single reader
 * sees in between: the log is linear, nobody is told that he won who did not, and no pointer ever
 * leads to half a version or back to a quarantined one.
 */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import type { Backend } from '../../lib/repository/backend.ts';
import { FolderBackend } from '../../lib/repository/folder-backend.ts';
import type { ChannelEntry } from '../../lib/repository/repository.ts';
import { Repository } from '../../lib/repository/repository.ts';
import { makeVersion, temporaryFolder } from './support/fixtures.ts';

type Request =
  | { readonly kind: 'publish' | 'activate' | 'rollback'; readonly version: string }
  | { readonly kind: 'pin' | 'unpin' };

const version = fc.constantFrom('1', '2', '3', '4');
const request: fc.Arbitrary<Request> = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.record({ kind: fc.constantFrom('publish', 'activate', 'rollback'), version }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constantFrom('pin', 'unpin') }) },
) as fc.Arbitrary<Request>;

/** Every call of the store is put off until the scheduler lets it happen. */
function scheduled(backend: Backend, scheduler: fc.Scheduler): Backend {
  return new Proxy(backend, {
    get(target, member: keyof Backend) {
      const value = target[member];
      if (typeof value !== 'function' || member === 'localPath') {
        return typeof value === 'function' ? value.bind(target) : value;
      }
      return async (...args: never[]): Promise<unknown> => {
        await scheduler.schedule(Promise.resolve(), member);
        return (value as (...all: never[]) => unknown).apply(target, args);
      };
    },
  });
}

async function act(
  t: TestContext,
  repository: Repository,
  request: Request,
  by: string,
): Promise<ChannelEntry | undefined> {
  const mover = { by, reason: 'test' };
  if (request.kind === 'publish') {
    const publication = makeVersion(temporaryFolder(t), { version: request.version, graph: by });
    await repository.publish(publication);
    return undefined;
  }
  if (request.kind === 'activate') {
    return repository.activate('ctr', 'stable', { version: request.version, ...mover });
  }
  if (request.kind === 'rollback') {
    return repository.rollback('ctr', 'stable', by, 'test', request.version);
  }
  return request.kind === 'pin'
    ? repository.pin('ctr', 'stable', mover)
    : repository.unpin('ctr', 'stable', mover);
}

/** What must hold at any moment, and how long the log is. */
async function look(backend: Backend): Promise<readonly ChannelEntry[]> {
  const repository = new Repository(backend);
  for (const published of await repository.listVersions('ctr')) {
    await repository.readVersionFile('ctr', published, 'model.onnx');
    const manifest = await repository.readManifest('ctr', published);
    for (const layer of manifest.tables.flatMap((table) => table.shards.flat())) {
      assert.ok(await repository.hasLayer('ctr', 't', layer));
    }
  }
  const { history } = await repository.readChannel('ctr', 'stable');
  const quarantined = new Set<string>();
  let before: ChannelEntry | undefined;
  for (const [i, entry] of history.entries()) {
    assert.equal(entry.seq, i + 1);
    await repository.readManifest('ctr', entry.version);
    assert.ok(!quarantined.has(entry.version), `entry ${entry.seq} goes back to ${entry.version}`);
    if (before?.pinned) assert.equal(entry.version, before.version);
    if (entry.quarantines !== undefined) {
      assert.equal(entry.quarantines, before?.version);
      quarantined.add(entry.quarantines);
    }
    before = entry;
  }
  for (const bad of await repository.listQuarantined('ctr')) assert.ok(quarantined.has(bad));
  return history;
}

test('in whatever order writers come, one wins and readers see whole versions', async (t) => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(request, { minLength: 2, maxLength: 8 }),
      fc.scheduler(),
      async (requests, scheduler) => {
        const backend = new FolderBackend(temporaryFolder(t));
        const first = new Repository(backend);
        for (const name of ['1', '2']) {
          await first.publish(makeVersion(temporaryFolder(t), { version: name }));
          await first.activate('ctr', 'stable', { version: name, by: 'first', reason: 'test' });
        }
        const slow = scheduled(backend, scheduler);
        const outcomes = requests.map((request, i) =>
          act(t, new Repository(slow), request, `writer ${i}`).catch((error: unknown) => {
            assert.match(CubeError.from(error).code, /CONFLICT|NOT_FOUND/, String(error));
            return undefined;
          }),
        );
        let isOver = false;
        void Promise.all(outcomes).then(() => {
          isOver = true;
        });
        let seen: readonly ChannelEntry[] = [];
        while (!isOver) {
          await new Promise(setImmediate);
          if (scheduler.count() === 0) continue;
          await scheduler.waitOne();
          const now = await look(backend);
          assert.deepEqual(now.slice(0, seen.length), seen, 'the log only grows');
          seen = now;
        }
        const told = (await Promise.all(outcomes)).filter((entry) => entry !== undefined);
        const history = await look(backend);
        for (const entry of told) assert.deepEqual(history[entry.seq - 1], entry);
      },
    ),
    { numRuns: 15 },
  );
});
