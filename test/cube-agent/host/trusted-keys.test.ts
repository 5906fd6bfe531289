/** An agent with trusted keys loads only versions signed with them. */
import assert from 'node:assert/strict';
import { copyFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { HostData } from '../../../cube-agent/host/host-data.ts';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { manifestSignaturePath } from '../../../lib/repository/layout.ts';
import { openRepository, type Repository } from '../../../lib/repository/repository.ts';
import { generateKeyPair, type KeyPair, SigningKey } from '../../../lib/repository/signatures.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { waitFor } from '../../support/processes.ts';
import { AUDIT, areAllActive, createHost, publish, startAgent } from '../support/host.ts';

test('an unsigned channel and version are reported and not fetched', async (t) => {
  const host = await createHost(t, 1);
  await publish(host, { version: '1', shardNum: 1 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const keys = join(host.folder, 'publisher.pub');
  writeFileSync(keys, generateKeyPair().publicPem);
  const running = startAgent(t, host, host.servers, '--trusted-keys', keys);
  await waitFor('refused', () => running.messages().includes('cannot read channel stable'));
  const line = running.lines.find(({ msg }) => msg === 'cannot read channel stable');
  assert.match(String(line?.['error']), /sign/);
  assert.deepEqual(host.servers[0]?.calls, []);
  assert.ok(!running.messages().some((message) => message.startsWith('fetch')));
});

test('only correctly signed versions are loaded; status reports the others', async (t) => {
  const host = await createHost(t, 1);
  const [own, other] = [generateKeyPair(), generateKeyPair()];
  const signedBy = ({ privatePem }: KeyPair): Repository =>
    openRepository(host.location, { keys: { signing: new SigningKey(privatePem, 'key') } });
  const file = join(host.folder, 'publisher.pub');
  writeFileSync(file, own.publicPem);
  const publisher = signedBy(own);
  await publish({ ...host, repository: publisher }, { version: '1', shardNum: 1 });
  await publisher.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const running = startAgent(t, host, host.servers, '--trusted-keys', file);
  await waitFor('at 1', areAllActive('1', host.servers));

  const signature = (version: string): string =>
    join(host.location, manifestSignaturePath('ctr', version, own.keyId));
  const wrongs: [Repository, (version: string) => void, RegExp][] = [
    [host.repository, () => undefined, /is not signed/],
    [signedBy(other), () => undefined, /is not signed/],
    [publisher, (version) => rmSync(signature(version)), /is not signed/],
    [
      publisher,
      (version) => copyFileSync(signature('1'), signature(version)),
      /no valid signature/,
    ],
  ];
  for (const [i, [repository, spoil, why]] of wrongs.entries()) {
    const version = String(i + 2);
    await publish({ ...host, repository }, { version, table: version, shardNum: 1 });
    spoil(version);
    await publisher.activate('ctr', 'stable', { version, ...AUDIT });
    const notes = new HostData(host.dataDir, 'ctr');
    await waitFor(`${version} is refused again and again`, () => {
      const problem = notes
        .readSavedState('stable')
        ?.problems.find(
          (candidate) => candidate.action === 'read-manifest' && candidate.version === version,
        );
      if (problem === undefined || problem.attempts < 2)
        return notes.readSavedState('stable')?.problems;
      assert.equal(problem.code, 'DENIED');
      assert.match(problem.message, why);
      return true;
    });
    assert.equal(host.servers[0]?.active, '1');
  }
  const { stdout } = await runAgentCommand(
    'status',
    ...toArguments({ repository: host.location, bundle: 'ctr', dataDir: host.dataDir }),
  );
  assert.match(stdout, /read the manifest of 5 .*DENIED .*no valid signature/);
  // A version that is signed later is loaded like any other.
  await publisher.sign('ctr', '2');
  await publisher.activate('ctr', 'stable', { version: '2', ...AUDIT });
  await waitFor('at 2', () => areAllActive('2', host.servers)() === true || running.messages());
  assert.equal((await host.repository.listQuarantined('ctr')).size, 0);
});
