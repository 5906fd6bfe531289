/** What readers that trust keys take and refuse: versions, entries of channels, quarantines. */
import assert from 'node:assert/strict';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import { systemClock } from '../../lib/platform/clock.ts';
import { FolderBackend } from '../../lib/repository/folder-backend.ts';
import { Repository } from '../../lib/repository/repository.ts';
import { generateKeyPair, SigningKey, TrustedKeys } from '../../lib/repository/signatures.ts';
import { makeVersion, temporaryFolder } from './support/fixtures.ts';

const [ann, bob, eve] = [generateKeyPair(), generateKeyPair(), generateKeyPair()];
const by = { by: 'test', reason: 'test' };

/** A repository in `folder` as somebody opens it. */
function as(
  folder: string,
  { signing, trusted }: { signing?: typeof ann; trusted?: readonly (typeof ann)[] },
): Repository {
  return new Repository(new FolderBackend(folder), systemClock, {
    signing: signing && new SigningKey(signing.privatePem, 'test'),
    trusted:
      trusted &&
      new TrustedKeys(
        trusted.map(({ publicPem }) => publicPem),
        'test',
      ),
  });
}

async function publish(t: TestContext, repository: Repository, version: string): Promise<void> {
  await repository.publish(makeVersion(temporaryFolder(t), { version }));
}

test('an unsigned or foreign version does not exist for a reader that trusts keys', async (t) => {
  const folder = temporaryFolder(t);
  await publish(t, as(folder, {}), '1');
  await publish(t, as(folder, { signing: eve }), '2');
  await publish(t, as(folder, { signing: ann }), '3');
  const reader = as(folder, { trusted: [ann, bob] });
  for (const version of ['1', '2']) {
    const refused = { code: 'DENIED', message: /is not signed; only signatures by/ };
    await assert.rejects(reader.readManifestText('ctr', version), refused);
    await assert.rejects(reader.readVersionFile('ctr', version, 'model.onnx'), { code: 'DENIED' });
  }
  assert.equal((await reader.readManifest('ctr', '3')).version, '3');
  await as(folder, {}).readManifest('ctr', '1');
});

test('keys are replaced by trusting both, then only the new one', async (t) => {
  const folder = temporaryFolder(t);
  await publish(t, as(folder, { signing: ann }), '1');
  await assert.rejects(as(folder, { trusted: [bob] }).readManifest('ctr', '1'), { code: 'DENIED' });
  assert.equal(await as(folder, { signing: bob }).sign('ctr', '1'), true);
  assert.equal(await as(folder, { signing: bob }).sign('ctr', '1'), false);
  for (const trusted of [[ann], [bob], [ann, bob]]) {
    await as(folder, { trusted }).readManifest('ctr', '1');
  }
  // Publishing what is there already signs it as well.
  await publish(t, as(folder, { signing: eve }), '1');
  await as(folder, { trusted: [eve] }).readManifest('ctr', '1');
});

test('a signature is of one manifest in one place', async (t) => {
  const folder = temporaryFolder(t);
  for (const version of ['1', '2']) await publish(t, as(folder, { signing: ann }), version);
  const reader = as(folder, { trusted: [ann] });
  const of = (version: string): string => join(folder, 'ctr', 'versions', version);
  const sig = `manifest.${ann.keyId}.sig`;
  rmSync(join(of('2'), sig));
  writeFileSync(join(of('2'), sig), readFileSync(join(of('1'), sig)));
  await assert.rejects(reader.readManifest('ctr', '2'), { code: 'DENIED', message: /is invalid/ });
  const manifest = join(of('1'), 'manifest.json');
  writeFileSync(manifest, `${readFileSync(manifest, 'utf8')} `);
  await assert.rejects(reader.readManifest('ctr', '1'), {
    code: 'DENIED',
    message: /has other content than key/,
  });
});

test('channel and quarantine entries need a signature for their path', async (t) => {
  const folder = temporaryFolder(t);
  const signer = as(folder, { signing: ann });
  for (const version of ['1', '2', '3']) await publish(t, signer, version);
  for (const version of ['1', '2']) await signer.activate('ctr', 'stable', { version, ...by });
  const fresh = (): Repository => as(folder, { trusted: [ann] });
  const pointer = async (): Promise<string | undefined> =>
    (await fresh().readChannel('ctr', 'stable')).pointer?.version;
  assert.equal(await pointer(), '2');
  const log = join(folder, 'ctr', 'channels', 'stable');
  // An old entry put again as the newest one: a replay.
  writeFileSync(join(log, '0000000003.json'), readFileSync(join(log, '0000000001.json')));
  await assert.rejects(pointer(), {
    code: 'DENIED',
    message: /0000000003\.json: its signature .* is invalid/,
  });
  rmSync(join(log, '0000000003.json'));
  await as(folder, { signing: eve }).activate('ctr', 'stable', { version: '3', ...by });
  await assert.rejects(pointer(), { code: 'DENIED', message: /which is not trusted/ });
  rmSync(join(log, '0000000003.json'));
  await as(folder, {}).quarantine('ctr', '1', by);
  await assert.rejects(pointer(), { code: 'DENIED', message: /quarantine\/1\.json is not signed/ });
  rmSync(join(folder, 'ctr', 'quarantine', '1.json'));
  await signer.rollback('ctr', 'stable', 'ann', 'bad');
  assert.equal(await pointer(), '1');
});

test('whatever byte of a signed entry is changed, it is refused or says the same', async (t) => {
  const folder = temporaryFolder(t);
  const signer = as(folder, { signing: ann });
  await publish(t, signer, '1');
  await signer.activate('ctr', 'stable', { version: '1', by: 'ann', reason: 'täglich "neu" \\ 7' });
  const path = join(folder, 'ctr', 'channels', 'stable', '0000000001.json');
  const bytes = readFileSync(path);
  const truth = (await as(folder, { trusted: [ann] }).readChannel('ctr', 'stable')).pointer;
  const change = fc.tuple(fc.nat(bytes.length - 1), fc.integer({ min: 1, max: 255 }));
  await fc.assert(
    fc.asyncProperty(change, async ([at, flip]) => {
      const changed = Buffer.from(bytes);
      changed[at] = (bytes[at] ?? 0) ^ flip;
      writeFileSync(path, changed);
      try {
        const { pointer } = await as(folder, { trusted: [ann] }).readChannel('ctr', 'stable');
        assert.deepEqual(pointer, truth);
      } catch (error) {
        assert.match((error as { code: string }).code, /CORRUPT|DENIED/);
      }
    }),
    { numRuns: 500 },
  );
});

test('key files that are none are refused, and never shown', (t) => {
  const folder = temporaryFolder(t);
  for (const text of ['', 'secret', ann.publicPem]) {
    assert.throws(
      () => new SigningKey(text, 'key.pem'),
      (error: Error) =>
        /key\.pem: expected a private key/.test(error.message) && !error.message.includes('secret'),
    );
  }
  assert.throws(() => new TrustedKeys([''], 'keys'), /contains no public key/);
  const keys = join(folder, 'keys');
  mkdirSync(keys);
  writeFileSync(join(keys, 'a.pub'), ann.publicPem + bob.publicPem);
  writeFileSync(join(keys, 'c.pem'), eve.publicPem);
  writeFileSync(join(keys, 'README'), 'notes');
  const expected = [ann, bob, eve].map(({ keyId }) => keyId);
  assert.deepEqual(TrustedKeys.read(keys).keyIds, expected);
  assert.deepEqual(TrustedKeys.read(join(keys, 'a.pub')).keyIds, expected.slice(0, 2));
  assert.equal(readdirSync(keys).length, 3);
});
