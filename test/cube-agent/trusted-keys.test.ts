/** An agent with trusted keys takes only what they signed. */
import assert from 'node:assert/strict';
import { copyFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { HostData } from '../../cube-agent/host/host-data.ts';
import { manifestSignaturePath } from '../../lib/repository/layout.ts';
import { openRepository, type Repository } from '../../lib/repository/repository.ts';
import { type KeyPair, makeKeyPair, SigningKey } from '../../lib/repository/signatures.ts';
import { allAt, by, makeHost, publish, start } from './host.ts';
import { agent, until } from './processes.ts';

test('an unsigned channel and version are reported, and nothing of them is fetched or loaded', async (t) => {
  const host = await makeHost(t, 1);
  await publish(host, { version: '1', shardNum: 1 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  const keys = join(host.folder, 'publisher.pub');
  writeFileSync(keys, makeKeyPair().publicPem);
  const running = start(t, host, host.servers, '--trusted-keys', keys);
  await until('refused', () => running.messages().includes('cannot read channel stable'));
  const line = running.lines.find(({ msg }) => msg === 'cannot read channel stable');
  assert.match(String(line?.['error']), /sign/);
  assert.deepEqual(host.servers[0]?.calls, []);
  assert.ok(!running.messages().some((message) => message.startsWith('fetch')));
});

test('what is signed is taken; a signature by another key, of another manifest or none keeps the old version, and status says so', async (t) => {
  const host = await makeHost(t, 1);
  const [own, other] = [makeKeyPair(), makeKeyPair()];
  const signedBy = ({ privatePem }: KeyPair): Repository =>
    openRepository(host.location, { keys: { signing: new SigningKey(privatePem, 'key') } });
  const file = join(host.folder, 'publisher.pub');
  writeFileSync(file, own.publicPem);
  const publisher = signedBy(own);
  await publish({ ...host, repository: publisher }, { version: '1', shardNum: 1 });
  await publisher.activate('ctr', 'stable', { version: '1', ...by });
  const running = start(t, host, host.servers, '--trusted-keys', file);
  await until('at 1', allAt('1', host.servers));

  const signature = (version: string): string =>
    join(host.location, manifestSignaturePath('ctr', version, own.keyId));
  const wrongs: [Repository, (version: string) => void, RegExp][] = [
    [host.repository, () => undefined, /is not signed/],
    [signedBy(other), () => undefined, /is not signed/],
    [publisher, (version) => rmSync(signature(version)), /is not signed/],
    [publisher, (version) => copyFileSync(signature('1'), signature(version)), /no good signature/],
  ];
  for (const [i, [repository, spoil, why]] of wrongs.entries()) {
    const version = String(i + 2);
    await publish({ ...host, repository }, { version, table: version, shardNum: 1 });
    spoil(version);
    await publisher.activate('ctr', 'stable', { version, ...by });
    const what = `read the manifest of ${version}`;
    const notes = new HostData(host.dataDir, 'ctr');
    await until(`${version} is refused again and again`, () => {
      const problem = notes.recall('stable')?.problems.find((one) => one.what === what);
      if (problem === undefined || problem.attempts < 2) return notes.recall('stable')?.problems;
      assert.equal(problem.code, 'DENIED');
      assert.match(problem.message, why);
      return true;
    });
    assert.equal(host.servers[0]?.active, '1');
  }
  const { stdout } = await agent(
    ...['status', '--repository', host.location, '--bundle', 'ctr', '--data-dir', host.dataDir],
  );
  assert.match(stdout, /read the manifest of 5 .*DENIED .*no good signature/);
  // Signed afterwards, it is as good as any other.
  await publisher.sign('ctr', '2');
  await publisher.activate('ctr', 'stable', { version: '2', ...by });
  await until('at 2', () => allAt('2', host.servers)() === true || running.messages());
  assert.equal((await host.repository.quarantined('ctr')).size, 0);
});
