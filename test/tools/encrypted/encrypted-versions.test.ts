/**
 * Encrypted versions in every command and store: chains of deltas, compaction, garbage collection,
 * transfers, buckets and HTTP; and manifests that lie about encryption.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, type TestContext, test } from 'node:test';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { processKeys, setSealingKey } from '../../../lib/platform/encryption-keys.ts';
import { useDecryptKeys } from '../../../lib/platform/encryption-options.ts';
import { isSealedFile } from '../../../lib/platform/sealed-file.ts';
import { layerPath, manifestPath, versionFilePath } from '../../../lib/repository/layout.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { verifyLayerFile } from '../../../lib/store/layer-check.ts';
import { ResidentStore } from '../../../lib/store/resident-store.ts';
import { LocalStore } from '../../../serving/stores/local-store.ts';
import { RedisStore } from '../../../serving/stores/redis-store.ts';
import { OriginalServer } from '../../cube-agent/cube/support/original-server.ts';
import { makeTransferConf } from '../../cube-agent/cube/support/transfer-conf.ts';
import { FakeS3Server } from '../../repository/support/fake-s3-server.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { StaticServer } from '../../repository/support/static-server.ts';
import { RedisServers, redisMissing } from '../../serving/stores/support/redis-servers.ts';
import { runCommand } from '../../support/commands.ts';
import type { CommandResult } from '../../support/processes.ts';
import { encodeFloats, encodeSequenceFile } from '../cube-builder/sources/support/writers.ts';

process.env['AWS_ACCESS_KEY_ID'] = 'test';
process.env['AWS_SECRET_ACCESS_KEY'] = 'test';

const BUNDLE = 'secret';
const TABLE = 'dict';
const SHARD_NUM = 2;
const KEYS = Array.from({ length: 500 }, (_, key) => key);
const folder = mkdtempSync(join(tmpdir(), 'hypercube-test-'));
const repository = join(folder, 'repository');
const keyFile = join(folder, 'one.key');
const otherKeyFile = join(folder, 'other.key');
const withKey = ['--encrypt-key-file', keyFile];
const readsWithKey = ['--decrypt-key-file', keyFile];

const run = (tool: string, ...args: string[]): Promise<CommandResult> => runCommand(tool, ...args);
async function builder(...args: string[]): Promise<CommandResult> {
  const result = await run('tools/cube-builder/main.js', ...args);
  // Commands share this process, in which no other may encrypt.
  setSealingKey(undefined);
  return result;
}
const agent = (...args: string[]): Promise<CommandResult> => run('cube-agent/main.js', ...args);
const check = (...args: string[]): Promise<CommandResult> =>
  run('tools/cube-check/main.js', ...args);

async function succeed(result: Promise<CommandResult>): Promise<string> {
  const { code, stdout, stderr } = await result;
  assert.equal(code, 0, stdout + stderr);
  return stdout;
}

/** A version whose key k has the row (k, salt, k × salt). */
function build(
  version: string,
  salt: number,
  keys: readonly number[],
  ...flags: string[]
): Promise<CommandResult> {
  const input = mkdtempSync(join(folder, 'input-'));
  const rows = keys.map((key): [bigint, Uint8Array] => [
    BigInt(key),
    encodeFloats(Float32Array.of(key, salt, key * salt)),
  ]);
  writeFileSync(join(input, 'part-0'), encodeSequenceFile(rows));
  return builder(
    ...toArguments({ input, outputPath: repository, bundle: BUNDLE, dictName: TABLE }),
    '--cur-version',
    version,
    '--value-format',
    'f32',
    ...flags,
  );
}

const delta = (parent: string): string[] => ['--job-mode', 'delta', '--depend-version', parent];

/** The JSON of one key; the text of a refusal. */
async function lookUp(
  version: string,
  key: number,
  flags: readonly string[] = readsWithKey,
  root = repository,
): Promise<string> {
  const of = toArguments({ repository: root, bundle: BUNDLE, version });
  const result = await run('tools/cube-cli/main.js', 'seek', `${key}`, ...of, '--json', ...flags);
  return result.stdout + result.stderr;
}

/** The files of the layers that exist. */
function listLayers(root = repository): string[] {
  const place = join(root, BUNDLE, 'layers', TABLE);
  return readdirSync(place).map((name) => join(place, name));
}

/** A copy of the repository in which a version's manifest says something else. */
function makeLiar(
  t: TestContext,
  version: string,
  change: (manifest: Record<string, unknown>) => void,
): string {
  const root = join(temporaryFolder(t), 'repository');
  cpSync(repository, root, { recursive: true });
  const path = join(root, manifestPath(BUNDLE, version));
  const manifest = JSON.parse(readFileSync(path, 'utf8')) as Record<string, unknown>;
  change(manifest);
  // As an attacker would, who knows the format.
  delete manifest['checksum'];
  writeFileSync(path, `${JSON.stringify(manifest, null, 2)}\n`);
  return root;
}

const hideEncryption = (manifest: Record<string, unknown>): void => {
  delete manifest['encryption'];
};

before(async () => {
  for (const file of [keyFile, otherKeyFile]) await succeed(builder('keygen', '--out', file));
  await succeed(build('1', 1, KEYS, '--shard-num', String(SHARD_NUM), ...withKey));
  const gone = join(folder, 'gone.txt');
  writeFileSync(gone, '4\n');
  const changed = KEYS.filter((key) => key % 10 === 1);
  await succeed(build('2', 2, changed, ...delta('1'), '--deletes', gone, ...withKey));
});
afterEach(() => processKeys.clear());
after(() => rmSync(folder, { recursive: true, force: true }));

test('an encrypted delta lies on an encrypted base, and compaction merges them', async () => {
  assert.ok(listLayers().every(isSealedFile));
  assert.equal(listLayers().length, 2 * SHARD_NUM);
  assert.match(
    await build('3', 3, KEYS, ...delta('1')).then(({ stderr }) => stderr),
    /version 1 is encrypted: give --encrypt-key-file/,
  );
  const compact = ['compact', ...toArguments({ outputPath: repository, bundle: BUNDLE })];
  const flags = ['--version', '2', '--cur-version', '2c'];
  const refused = await builder(...compact, ...flags);
  assert.match(refused.stderr, /is encrypted|give --encrypt-key-file/);
  await succeed(builder(...compact, ...flags, ...withKey));
  for (const version of ['2', '2c']) {
    assert.match(await lookUp(version, 4), /"outcome":"(deleted|unseen)"/);
    assert.match(await lookUp(version, 11), /\[11,2,22\]/);
    assert.match(await lookUp(version, 12), /\[12,1,12\]/);
  }
  assert.match(await lookUp('2', 11, []), /is encrypted with key/);
  assert.match(await lookUp('2', 11, ['--decrypt-key-file', otherKeyFile]), /is encrypted with/);
  assert.ok(listLayers().every(isSealedFile));
  await succeed(check(repository, '--deep', ...readsWithKey));
});

test('transfers, buckets and HTTP carry encrypted versions without a key', async (t) => {
  const s3 = await FakeS3Server.start(t);
  const from = repository;
  const copy = (source: string, target: string): Promise<string> => {
    const flags = toArguments({ from: source, repository: target, bundle: BUNDLE, version: '2' });
    return succeed(agent('publish', ...flags));
  };
  await copy(from, s3.url);
  const back = join(temporaryFolder(t), 'back');
  await copy(s3.url, back);
  for (const path of listLayers(back)) {
    assert.deepEqual(readFileSync(path), readFileSync(path.replace(back, repository)));
  }
  const site = await StaticServer.start(t, back);
  const http = site.url;
  for (const location of [s3.url, http]) {
    const source = openRepository(location);
    const manifest = await source.readManifest(BUNDLE, '2');
    const [first] = manifest.tables[0]?.shards.flat() ?? [];
    assert.ok(first);
    const target = join(temporaryFolder(t), 'layer.cube');
    await source.fetchLayer(BUNDLE, TABLE, first, target);
    useDecryptKeys({ decryptKeyFile: keyFile });
    assert.equal(verifyLayerFile(target, { deep: true }).header.contentId, first.contentId);
    processKeys.clear();
    assert.throws(() => verifyLayerFile(target, { deep: true }), { code: 'DENIED' });
  }
  await succeed(check(`${http}/${BUNDLE}/versions/2/manifest.json`, '--deep', ...readsWithKey));
  await succeed(check(s3.url, '--bundle', BUNDLE, '--deep', ...readsWithKey));
});

test('after a rotation the new key alone builds on and opens shared layers', async (t) => {
  const root = join(temporaryFolder(t), 'repository');
  const place = ['--output-path', root];
  const base = (version: string, ...flags: string[]): Promise<CommandResult> =>
    build(version, 1, KEYS, '--shard-num', '1', ...place, ...flags);
  await succeed(base('1', ...withKey));
  const refused = await base('2', '--encrypt-key-file', otherKeyFile);
  assert.equal(refused.code, 1);
  assert.match(refused.stderr, /give that key with one of --encrypt-key-file/);
  assert.deepEqual(await openRepository(root).listVersions(BUNDLE), ['1']);

  const both = join(temporaryFolder(t), 'both.key');
  writeFileSync(both, readFileSync(otherKeyFile, 'utf8') + readFileSync(keyFile, 'utf8'));
  const rewrap = toArguments({ outputPath: root, bundle: BUNDLE, encryptKeyFile: both });
  await succeed(builder('rewrap', ...rewrap));
  await succeed(base('3', '--encrypt-key-file', otherKeyFile));
  assert.equal(listLayers(root).length, 1, 'version 3 shares the layer of version 1');
  assert.match(await lookUp('3', 11, ['--decrypt-key-file', otherKeyFile], root), /\[11,1,11\]/);
});

test('rewrap and cube-check report rewrapped keys that are damaged or incomplete', async (t) => {
  const root = join(temporaryFolder(t), 'repository');
  cpSync(repository, root, { recursive: true });
  const both = join(temporaryFolder(t), 'both.key');
  writeFileSync(both, readFileSync(otherKeyFile, 'utf8') + readFileSync(keyFile, 'utf8'));
  const version = toArguments({ outputPath: root, bundle: BUNDLE, version: '1' });
  const rewrap = (): Promise<CommandResult> =>
    builder('rewrap', ...version, '--encrypt-key-file', both);
  const versionFolder = join(root, BUNDLE, 'versions', '1');
  const checkKeys = (): Promise<CommandResult> =>
    check(versionFolder, '--deep', '--decrypt-key-file', both);
  await succeed(rewrap());
  const name = readdirSync(versionFolder).find((file) => file.startsWith('keys.')) ?? '';
  const path = join(versionFolder, name);
  const good = readFileSync(path, 'utf8');
  assert.match(await succeed(rewrap()), /nothing to do/);
  await succeed(checkKeys());

  const { sha256: _, ...fields } = JSON.parse(good);
  const seal = (keys: readonly { wrappedKey: string }[]): string => {
    const text = JSON.stringify({ ...fields, keys });
    const sha256 = createHash('sha256').update(text).digest('hex');
    return JSON.stringify({ ...JSON.parse(text), sha256 });
  };
  const unopened = fields.keys.map((key: object) => ({ ...key, wrappedKey: '0'.repeat(80) }));
  const swapped = fields.keys.map((key: object, i: number) => ({
    ...key,
    wrappedKey: fields.keys[(i + 1) % fields.keys.length].wrappedKey,
  }));
  for (const [content, isFoundByCheck] of [
    [good.slice(0, 200), true],
    [good.replace(/"wrappedKey":"./, '"wrappedKey":"x'), true],
    [seal(unopened), true],
    [seal(fields.keys.slice(1)), false],
    [seal(swapped), false],
  ] as const) {
    rmSync(path);
    writeFileSync(path, content);
    const { code, stdout, stderr } = await rewrap();
    assert.equal(code, 1, stdout);
    assert.ok(stderr.includes(path), stderr);
    assert.match(stderr, /remove this file and run cube-builder rewrap again/);
    if (!isFoundByCheck) continue;
    const checked = await checkKeys();
    assert.equal(checked.code, 1, checked.stdout);
    assert.match(checked.stdout, new RegExp(`${name}.*; remove this file and run cube-builder`));
  }
  rmSync(path);
  assert.match(await succeed(rewrap()), /keys wrapped/);
  assert.equal(readFileSync(path, 'utf8'), good);
});

test('garbage collection removes encrypted versions and keeps the layers of others', async (t) => {
  const root = join(temporaryFolder(t), 'repository');
  // Times decide which version is the newest, and folders list their files in any order.
  cpSync(repository, root, { recursive: true, preserveTimestamps: true });
  const of = toArguments({ repository: root, bundle: BUNDLE });
  await succeed(agent('activate', ...of, '--version', '2', '--reason', 'newest'));
  await succeed(agent('quarantine', ...of, '--version', '2c', '--reason', 'not needed'));
  assert.equal(listLayers(root).length, 3 * SHARD_NUM);
  for (const entry of readdirSync(root, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile()) continue;
    const path = join(entry.parentPath, entry.name);
    const past = new Date(statSync(path).mtimeMs - 3 * 86_400_000);
    utimesSync(path, past, past);
  }
  await succeed(agent('gc', ...of, '--keep-versions', '1', '--keep-days', '1'));
  assert.deepEqual(await openRepository(root).listVersions(BUNDLE), ['2']);
  assert.equal(listLayers(root).length, 2 * SHARD_NUM, 'the delta and the base under it');
  assert.match(await lookUp('2', 11, readsWithKey, root), /\[11,2,22\]/);
});

test('stores on disk, Redis and the files of Cube refuse an encrypted version', async (t) => {
  useDecryptKeys({ decryptKeyFile: keyFile });
  const source = openRepository(repository);
  const manifest = await source.readManifest(BUNDLE, '2');
  const local = await LocalStore.open({
    repository: source,
    folder: join(temporaryFolder(t), 'local'),
  });
  t.after(() => local.close());
  const urls = ['redis://127.0.0.1:1'];
  const redis = new RedisStore({ kind: 'redis', urls, fill: true }, { repository: source });
  t.after(() => redis.close());
  for (const store of [local, redis]) {
    await assert.rejects(store.prepare(manifest), { code: 'DENIED', message: /in clear/ });
  }
  const deployed = await deployCube(t, repository);
  assert.match(deployed, /secret 2 is encrypted, and Cube's files would write its rows in clear/);
});

/** Deploys version 2 to stand-ins of C++ servers. @returns what was refused; nothing was written */
async function deployCube(t: TestContext, root: string): Promise<string> {
  const place = temporaryFolder(t);
  const deployPaths = ['a', 'b'].map((name) => join(place, name));
  for (const path of deployPaths) mkdirSync(join(path, 'data'), { recursive: true });
  const servers = await Promise.all(deployPaths.map((path) => new OriginalServer(path).listen(t)));
  const config = join(place, 'transfer.conf');
  const addresses = servers.map(({ address }) => address);
  writeFileSync(config, makeTransferConf({ servers: addresses, deployPaths }));
  const flags = toArguments({ config, repository: root, bundle: BUNDLE, version: '2' });
  const previous = process.env['HYPERCUBE_DECRYPT_KEY_FILE'];
  process.env['HYPERCUBE_DECRYPT_KEY_FILE'] = keyFile;
  const { code, stderr } = await agent('deploy-cube', ...flags);
  if (previous === undefined) delete process.env['HYPERCUBE_DECRYPT_KEY_FILE'];
  assert.equal(code, 1);
  for (const { commands } of servers) assert.deepEqual(commands, []);
  for (const path of deployPaths) assert.deepEqual(readdirSync(join(path, 'data')), []);
  return stderr;
}

const LIE = /is encrypted, but the manifest of secret 2 says that the version is not/;

test('a manifest without its field encryption makes no store write sealed rows', async (t) => {
  const root = makeLiar(t, '2', hideEncryption);
  useDecryptKeys({ decryptKeyFile: keyFile });
  const source = openRepository(root);
  const manifest = await source.readManifest(BUNDLE, '2');
  const refused = { code: 'CORRUPT', message: LIE };
  const database = join(temporaryFolder(t), 'local');
  const local = await LocalStore.open({ repository: source, folder: database });
  t.after(() => local.close());
  await assert.rejects(local.prepare(manifest), refused);
  const resident = new ResidentStore({ budgetBytes: 64 << 20 });
  t.after(() => resident.close());
  const path = (table: string, id: string): string => join(root, layerPath(BUNDLE, table, id));
  await assert.rejects(resident.load({ manifest, shardIndex: 0, layerPath: path }), refused);
  assert.match(await lookUp('2', 11, readsWithKey, root), LIE);
  useDecryptKeys({ decryptKeyFile: keyFile });
  assert.match(await deployCube(t, root), LIE);
  const copy = toArguments({ from: root, repository: join(root, '../copy'), bundle: BUNDLE });
  assert.match((await agent('publish', ...copy, '--version', '2')).stderr, LIE);
});

test('a manifest without its field encryption fills no Redis', {
  skip: redisMissing,
}, async (t) => {
  const source = openRepository(makeLiar(t, '2', hideEncryption));
  const servers = await RedisServers.one();
  t.after(() => servers.stop());
  useDecryptKeys({ decryptKeyFile: keyFile });
  const choice = { kind: 'redis', urls: servers.urls, fill: true } as const;
  const redis = new RedisStore(choice, { repository: source });
  t.after(() => redis.close());
  const manifest = await source.readManifest(BUNDLE, '2');
  await assert.rejects(redis.prepare(manifest), { code: 'CORRUPT', message: LIE });
});

test('cube-check reports files that are not as their manifest says', async (t) => {
  const hidden = makeLiar(t, '2', hideEncryption);
  const { code, stdout } = await check(hidden, ...readsWithKey);
  assert.equal(code, 1);
  assert.match(stdout, LIE);
  // A clear layer in a version that is said to be encrypted.
  const clear = join(temporaryFolder(t), 'repository');
  const input = mkdtempSync(join(folder, 'input-'));
  writeFileSync(
    join(input, 'part-0'),
    encodeSequenceFile([[1n, encodeFloats(new Float32Array(3))]]),
  );
  await succeed(
    builder(
      ...toArguments({ input, outputPath: clear, bundle: BUNDLE, dictName: TABLE, shardNum: 1 }),
      '--cur-version',
      '2',
      '--value-format',
      'f32',
    ),
  );
  const path = join(clear, manifestPath(BUNDLE, '2'));
  const { checksum: _, ...manifest } = JSON.parse(readFileSync(path, 'utf8'));
  const lying = { ...manifest, encryption: { keyId: '0'.repeat(16) } };
  writeFileSync(path, JSON.stringify(lying));
  const found = await check(clear, ...readsWithKey);
  assert.equal(found.code, 1);
  assert.match(
    found.stdout,
    /is not encrypted, but the manifest of secret 2 says that the version is;/,
  );
});

test('a file of a version is opened only in the form that the manifest says', async (t) => {
  const root = makeLiar(t, '2', (manifest) => {
    hideEncryption(manifest);
    const bytes = readFileSync(listLayers()[0] ?? '');
    const place = join(folder, 'sealed-file');
    writeFileSync(place, bytes);
    const sha256 = createHash('sha256').update(bytes).digest('hex');
    manifest['files'] = [{ path: 'model.onnx', bytes: bytes.length, sha256 }];
  });
  cpSync(join(folder, 'sealed-file'), join(root, versionFilePath(BUNDLE, '2', 'model.onnx')));
  await assert.rejects(openRepository(root).readVersionFile(BUNDLE, '2', 'model.onnx'), {
    code: 'CORRUPT',
    message: LIE,
  });
  assert.match((await check(root)).stdout, /model\.onnx is encrypted, but the manifest/);
});
