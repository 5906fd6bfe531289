/** A serving process with trusted keys serves only signed versions. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { openRepository, type Repository } from '../../lib/repository/repository.ts';
import { generateKeyPair, SigningKey } from '../../lib/repository/signatures.ts';
import { ServingProcess } from './support/serving-process.ts';
import { BUNDLE, exportBundle, ToyBundle } from './support/toy-bundle.ts';
import { ToyRepository } from './support/toy-service.ts';

const MAIN = fileURLToPath(new URL('../../serving/main.js', import.meta.url));
const by = { by: 'test', reason: 'test' };

/** Versions 1, 2 and 3; 2 is not signed. */
async function publishSigned(
  t: TestContext,
): Promise<{ toys: ToyRepository; signed: Repository; keys: string }> {
  const toys = new ToyRepository(t);
  const pair = generateKeyPair();
  const keys = join(toys.folder, 'publisher.pub');
  writeFileSync(keys, pair.publicPem);
  const signing = new SigningKey(pair.privatePem, 'test');
  const signed = openRepository(toys.location, { keys: { signing } });
  for (const version of ['1', '2', '3']) {
    const toy = new ToyBundle({ version, seed: Number(version) });
    const repository = version === '2' ? toys.repository : signed;
    await repository.publish(toy.publication(join(toys.folder, 'layers')));
  }
  return { toys, signed, keys };
}

test('unsigned versions and versions of unsigned channel entries are not served', async (t) => {
  const { toys, signed, keys } = await publishSigned(t);
  await signed.activate(BUNDLE, 'stable', { version: '1', ...by });
  const serving = await toys.startLocal(t, ['--trusted-keys', keys]);
  await serving.waitUntilActive('1');
  await signed.activate(BUNDLE, 'stable', { version: '2', ...by });
  const { body } = await serving.waitFor('/v1/status', (answer) => answer.body.failed.length > 0);
  assert.equal(body.active, '1');
  assert.equal(body.failed[0].code, 'DENIED');
  assert.match(body.failed[0].message, /version 2 of toy .* is not signed/);
  await toys.activate('3');
  const unsigned = await serving.waitFor('/v1/status', (answer) =>
    /is not signed/.test(answer.body.problem ?? ''),
  );
  assert.deepEqual([unsigned.body.active, unsigned.body.held], ['1', ['1']]);
});

test('an unsigned folder is not served', async (t) => {
  const { toys, keys } = await publishSigned(t);
  const folder = join(toys.folder, 'exported');
  exportBundle(new ToyBundle({ version: '9', seed: 9 }), folder, 'layers');
  const flags = ['--bundle-dir', folder, '--name', 'toy', '--trusted-keys', keys];
  const serving = await ServingProcess.start(t, flags);
  const { body } = await serving.waitFor('/v1/status', (answer) => answer.body.failed.length > 0);
  assert.deepEqual([body.active, body.failed[0].code], [undefined, 'DENIED']);
});

test('keys come from the shared variable; without a key the process does not start', (t) => {
  const toys = new ToyRepository(t);
  const empty = join(toys.folder, 'empty.pub');
  writeFileSync(empty, '');
  const run = (...args: string[]): string =>
    spawnSync(process.execPath, [MAIN, ...args, '--repository', toys.location, '--bundle', 'toy'], {
      encoding: 'utf8',
      env: { ...process.env, CUBE_TRUSTED_KEYS: empty },
      timeout: 240_000,
    }).stderr;
  assert.match(run('--port', '0'), /empty\.pub contains no public key/);
  assert.match(run('load-redis', '--redis-url', 'redis://127.0.0.1:1'), /contains no public key/);
});
