/**
 * Publishers, collections and moves of a channel that are killed while they write to S3, through
 * the real client library.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { openRepository } from '../../../lib/repository/repository.ts';
import { FakeS3Server } from '../../repository/support/fake-s3-server.ts';
import {
  makeVersion,
  requireCompleteVersions,
  temporaryFolder,
} from '../../repository/support/fixtures.ts';
import { runAgentCommandWithFault } from '../../support/processes.ts';
import { AUDIT } from '../support/host.ts';

process.env['AWS_ACCESS_KEY_ID'] = 'test';
process.env['AWS_SECRET_ACCESS_KEY'] = 'test';

const YEAR_MS = 365 * 24 * 3_600_000;
/** A layer that goes in two parts. */
const LAYER_BYTES = 9 << 20;
const POLICY = { keepVersions: 1, keepMs: 0 };
const RUN = { by: 'test', dryRun: false };

test('a publication killed at any step is completed by the next one', async (t) => {
  const store = await FakeS3Server.start(t);
  const folder = temporaryFolder(t);
  const from = join(folder, 'from');
  const source = openRepository(from, { create: true });
  const repository = openRepository(store.url);
  const place = ['--repository', store.url, '--bundle', 'ctr'];
  const kill = async (fault: string, command: string, ...more: string[]): Promise<void> => {
    const { code, stderr } = await runAgentCommandWithFault(fault, command, ...place, ...more);
    assert.equal(code, null, `${fault}: ${stderr}`);
  };

  const publishing = ['publish.part:kill', 'publish.files:kill', 'publish.manifest:kill'];
  for (const [i, fault] of publishing.entries()) {
    const version = String(i + 1);
    const layerBytes = fault === 'publish.part:kill' ? LAYER_BYTES : 1000;
    const request = { version, table: version, layerBytes, shardNum: 1 };
    const publication = makeVersion(join(folder, 'built'), request);
    await source.publish(publication);
    await kill(fault, 'publish', '--from', from, '--version', version);
    const isThere = (await repository.listVersions('ctr')).includes(version);
    assert.equal(isThere, fault === 'publish.manifest:kill');
    assert.equal(store.uploads.size, 1);
    await repository.publish(publication);
  }
  assert.deepEqual(await requireCompleteVersions(t, repository), ['1', '2', '3']);
  assert.deepEqual(await repository.listChannels('ctr'), []);

  await repository.activate('ctr', 'stable', { version: '2', ...AUDIT });
  await kill('channel.entry:kill', 'activate', '--version', '3', '--reason', 'test');
  const { history } = await repository.readChannel('ctr', 'stable');
  assert.deepEqual(
    history.map(({ version }) => version),
    ['2', '3'],
  );
  await repository.activate('ctr', 'stable', { version: '3', ...AUDIT });
  assert.equal((await repository.readChannel('ctr', 'stable')).history.length, 2);

  store.age(YEAR_MS);
  for (const fault of ['gc.manifest:kill', 'gc.object:kill']) {
    await kill(fault, 'gc', '--keep-versions', '1', '--keep-days', '1');
    const left = await requireCompleteVersions(t, repository);
    assert.ok(left.includes('2') && left.includes('3'));
  }
  await repository.collectGarbage('ctr', POLICY, RUN);
  assert.deepEqual(await requireCompleteVersions(t, repository), ['2', '3']);
  const keys = [...store.objects.keys()].map((key) => key.replace('models/ctr/', ''));
  assert.deepEqual(
    keys.filter((key) => !/^(versions\/[23]|channels\/stable|layers\/t)\//.test(key)),
    ['models/.conditional-writes'],
  );
  assert.equal(keys.filter((key) => key.startsWith('layers/')).length, 2);
  assert.equal(store.uploads.size, 0, 'what a killed upload left is given up');
});
