/**
 * What channels and rollouts must do over every backend that can be written: pins, fences,
 * rollbacks that race or are killed.
 */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import type { Backend } from '../../../lib/repository/backend.ts';
import { channelEntryPath, quarantinePath } from '../../../lib/repository/layout.ts';
import { Repository } from '../../../lib/repository/repository.ts';
import { makeVersion, temporaryFolder } from './fixtures.ts';

type OpenBackend = (t: TestContext) => Promise<Backend>;

const ann = { by: 'ann', reason: 'holidays' };

async function withChannel(
  t: TestContext,
  open: OpenBackend,
  ...versions: string[]
): Promise<{ backend: Backend; repository: Repository }> {
  const backend = await open(t);
  const repository = new Repository(backend);
  for (const version of versions) {
    await repository.publish(makeVersion(temporaryFolder(t), { version }));
    await repository.activate('ctr', 'stable', { version, by: 'ann', reason: 'new' });
  }
  return { backend, repository };
}

export function channelConformance(name: string, open: OpenBackend): void {
  moveTests(name, open);
  rollbackTests(name, open);
  entryTests(name, open);
  rolloutTests(name, open);
}

function moveTests(name: string, open: OpenBackend): void {
  test(`${name}: a pinned channel stays, and says who pinned it and why`, async (t) => {
    const { repository } = await withChannel(t, open, '1', '2');
    const pinned = await repository.pin('ctr', 'stable', ann);
    assert.deepEqual([pinned.seq, pinned.version, pinned.pinned], [3, '2', true]);
    assert.equal((await repository.pin('ctr', 'stable', ann)).seq, 3);
    const refused = {
      code: 'CONFLICT',
      message: /pinned to version 2 by ann \("holidays", entry 3\); unpin/,
    };
    const request = { version: '1', by: 'bot', reason: 'x' };
    await assert.rejects(repository.activate('ctr', 'stable', request), refused);
    await assert.rejects(repository.rollback('ctr', 'stable', 'bot', 'x'), refused);
    assert.equal((await repository.listQuarantined('ctr')).size, 0);
    assert.equal((await repository.unpin('ctr', 'stable', ann)).seq, 4);
    assert.equal((await repository.unpin('ctr', 'stable', ann)).seq, 4);
    assert.equal((await repository.rollback('ctr', 'stable', 'bot', 'x')).version, '1');
  });

  test(`${name}: an activation that expects another entry changes nothing`, async (t) => {
    const { repository } = await withChannel(t, open, '1', '2');
    const request = { version: '1', by: 'bot', reason: 'x' };
    await assert.rejects(repository.activate('ctr', 'stable', { ...request, expected: 1 }), {
      code: 'CONFLICT',
      message: /is not at entry 1: entry 2 by ann \("new"\) points to version 2/,
    });
    assert.equal((await repository.activate('ctr', 'stable', { ...request, expected: 2 })).seq, 3);
    assert.equal((await repository.activate('ctr', 'new', { ...request, expected: 0 })).seq, 1);
  });
}

function rollbackTests(name: string, open: OpenBackend): void {
  test(`${name}: of concurrent rollbacks one moves the channel`, async (t) => {
    const { backend, repository } = await withChannel(t, open, '1', '2', '3', '4');
    const outcomes = await Promise.allSettled(
      Array.from({ length: 6 }, (_, i) =>
        new Repository(backend).rollback('ctr', 'stable', `by ${i}`, 'bad', i % 2 ? '4' : 4),
      ),
    );
    const { pointer, history } = await repository.readChannel('ctr', 'stable');
    assert.deepEqual([pointer?.version, history.length], ['3', 5]);
    assert.deepEqual([...(await repository.listQuarantined('ctr'))], ['4']);
    for (const outcome of outcomes) {
      if (outcome.status === 'fulfilled') assert.equal(outcome.value.seq, 5);
      else assert.equal(outcome.reason.code, 'CONFLICT');
    }
    await assert.rejects(repository.rollback('ctr', 'stable', 'late', 'bad', '4'), {
      code: 'CONFLICT',
      message: /does not point to 4: entry 5 .* nothing was rolled back/,
    });
  });

  test(`${name}: a rollback killed before its quarantine is finished by the next`, async (t) => {
    const { backend, repository } = await withChannel(t, open, '1', '2', '3');
    const dying = new Proxy(backend, {
      get(target, member: keyof Backend) {
        const value = target[member];
        if (typeof value !== 'function') return value;
        if (member !== 'putIfAbsent') return value.bind(target);
        return async (path: string, bytes: Uint8Array): Promise<boolean> => {
          if (path === quarantinePath('ctr', '3')) throw new Error('killed');
          return target.putIfAbsent(path, bytes);
        };
      },
    });
    await assert.rejects(new Repository(dying).rollback('ctr', 'stable', 'ann', 'bad'), /killed/);
    const state = await repository.readChannel('ctr', 'stable');
    assert.deepEqual([state.pointer?.version, state.previous?.version], ['2', '1']);
    assert.deepEqual([...state.quarantined], ['3']);
    for (const channel of ['stable', 'canary']) {
      const back = { version: '3', by: 'bot', reason: 'x' };
      await assert.rejects(repository.activate('ctr', channel, back), /is quarantined/);
    }
    assert.equal((await repository.rollback('ctr', 'stable', 'bob', 'again')).seq, 4);
    assert.deepEqual([...(await repository.listQuarantined('ctr'))], ['3']);
    assert.equal((await repository.rollback('ctr', 'stable', 'bob', 'again')).version, '1');
  });
}

function entryTests(name: string, open: OpenBackend): void {
  test(`${name}: a version that no channel wants is quarantined for good`, async (t) => {
    const { repository } = await withChannel(t, open, '1', '2');
    await assert.rejects(
      repository.quarantine('ctr', '2', ann),
      /channel stable .* roll the channel back/,
    );
    await assert.rejects(repository.quarantine('ctr', '7', ann), { code: 'NOT_FOUND' });
    assert.equal(await repository.quarantine('ctr', '1', ann), true);
    assert.equal(await repository.quarantine('ctr', '1', ann), false);
    assert.equal((await repository.readChannel('ctr', 'stable')).previous, undefined);
  });

  test(`${name}: a damaged entry is named, an old one without checksum is read`, async (t) => {
    const { backend, repository } = await withChannel(t, open, '1');
    const old = { version: '1', at: 'then', by: 'an old writer', reason: 'before checksums' };
    const put = (seq: number, text: string) =>
      backend.putIfAbsent(channelEntryPath('ctr', 'stable', seq), new TextEncoder().encode(text));
    await put(2, JSON.stringify(old));
    assert.equal((await repository.readChannel('ctr', 'stable')).pointer?.by, 'an old writer');
    const path = channelEntryPath('ctr', 'stable', 1);
    const text = new TextDecoder().decode(await backend.read(path, 10_000));
    await put(3, text.replace('"version":"1"', '"version":"2"'));
    await assert.rejects(repository.readChannel('ctr', 'stable'), {
      code: 'CORRUPT',
      message: /0000000003\.json is damaged: its fields do not match its SHA-256/,
    });
  });
}

function rolloutTests(name: string, open: OpenBackend): void {
  test(`${name}: concurrent controllers see each other's rollout steps`, async (t) => {
    const { backend, repository } = await withChannel(t, open, '1');
    const log = () => new Repository(backend).rolloutLog('ctr', '1');
    const step = (state: 'seen' | 'staging' | 'failed', holder: string) =>
      log().append(state === 'seen' ? 0 : 1, {
        state,
        holder,
        reason: 'test',
        detail: { hosts: 3 },
      });
    const same = await Promise.all(['a', 'b', 'c'].map((holder) => step('seen', holder)));
    assert.equal(new Set(same.map(({ holder }) => holder)).size, 1);
    const apart = await Promise.allSettled([step('staging', 'a'), step('failed', 'b')]);
    assert.equal(apart.filter(({ status }) => status === 'fulfilled').length, 1);
    const history = await log().readHistory();
    assert.deepEqual([history.length, history[0]?.detail], [2, { hosts: 3 }]);
    assert.deepEqual(await repository.listRollouts('ctr'), ['1']);
    await assert.rejects(log().append(2, { state: 'active', holder: 'a', reason: 'x' }), {
      code: 'CONFLICT',
      message: /active cannot follow/,
    });
  });

  test(`${name}: every run of a gate keeps its report`, async (t) => {
    const { repository } = await withChannel(t, open, '1');
    const log = repository.rolloutLog('ctr', '1');
    const report = (n: number) => ({ json: `{"n":${n}}`, txt: `run ${n}`, html: `<p>${n}</p>` });
    assert.deepEqual(
      [await log.putGateReport(report(1)), await log.putGateReport(report(2))],
      [1, 2],
    );
    assert.equal(await log.readGateReport(2, 'html'), '<p>2</p>');
    assert.deepEqual(await log.readHistory(), []);
  });
}
