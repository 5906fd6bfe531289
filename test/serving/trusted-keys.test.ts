/** A serving process with trusted keys answers from nothing that they have not signed. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { openRepository, type Repository } from '../../lib/repository/repository.ts';
import { makeKeyPair, SigningKey } from '../../lib/repository/signatures.ts';
import { ServingProcess } from './serving-process.ts';
import { BUNDLE, exportTo, ToyBundle } from './toy-bundle.ts';
import { ToyRepository } from './toy-service.ts';

const MAIN = fileURLToPath(new URL('../../serving/main.js', import.meta.url));
const by = { by: 'test', reason: 'test' };

/** Versions 1, 2 and 3; 2 is not signed. */
async function publishSigned(
  t: TestContext,
): Promise<{ toys: ToyRepository; signed: Repository; keys: string }> {
  const toys = new ToyRepository(t);
  const pair = makeKeyPair();
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

test('an unsigned version is never served, nor what an unsigned entry of a channel wants', async (t) => {
  const { toys, signed, keys } = await publishSigned(t);
  await signed.activate(BUNDLE, 'stable', { version: '1', ...by });
  const serving = await toys.startLocal(t, ['--trusted-keys', keys]);
  await serving.untilActive('1');
  await signed.activate(BUNDLE, 'stable', { version: '2', ...by });
  const { body } = await serving.until('/v1/status', (answer) => answer.body.failed.length > 0);
  assert.equal(body.active, '1');
  assert.equal(body.failed[0].code, 'DENIED');
  assert.match(body.failed[0].message, /version 2 of toy .* is not signed/);
  await toys.activate('3');
  const unsigned = await serving.until('/v1/status', (answer) =>
    /is not signed/.test(answer.body.problem ?? ''),
  );
  assert.deepEqual([unsigned.body.active, unsigned.body.held], ['1', ['1']]);
});

test('a folder that nobody signed is not served', async (t) => {
  const { toys, keys } = await publishSigned(t);
  const folder = join(toys.folder, 'exported');
  exportTo(new ToyBundle({ version: '9', seed: 9 }), folder, 'layers');
  const flags = ['--bundle-dir', folder, '--name', 'toy', '--trusted-keys', keys];
  const serving = await ServingProcess.start(t, flags);
  const { body } = await serving.until('/v1/status', (answer) => answer.body.failed.length > 0);
  assert.deepEqual([body.active, body.failed[0].code], [undefined, 'DENIED']);
});

test('keys come from the variable that every program knows; without a key nothing starts', (t) => {
  const toys = new ToyRepository(t);
  const empty = join(toys.folder, 'empty.pub');
  writeFileSync(empty, '');
  const run = (...args: string[]): string =>
    spawnSync(process.execPath, [MAIN, ...args, '--repository', toys.location, '--bundle', 'toy'], {
      encoding: 'utf8',
      env: { ...process.env, CUBE_TRUSTED_KEYS: empty },
      timeout: 240_000,
    }).stderr;
  assert.match(run('--port', '0'), /empty\.pub: no public key in it/);
  assert.match(run('load-redis', '--redis-url', 'redis://127.0.0.1:1'), /no public key in it/);
});
