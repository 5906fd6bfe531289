/** The real cube-check process on sound repositories, and on repositories damaged in every way. */
import assert from 'node:assert/strict';
import {
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { formatManifest, type LayerRef, type Manifest } from '../../../lib/core/manifest.ts';
import { layerPath, manifestPath } from '../../../lib/repository/layout.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { writeLayer } from '../../../lib/store/layer-file.ts';
import { makeVersion, sha256, temporaryFolder } from '../../repository/support/fixtures.ts';
import { StaticServer } from '../../repository/support/static-server.ts';
import { runCommand } from '../../support/commands.ts';
import type { CommandResult } from '../../support/processes.ts';
import {
  activate,
  makeKeys,
  makeRows,
  publish,
  type TableSpec,
  toLayerInput,
} from '../publish-version.ts';

interface Report {
  readonly sound: boolean;
  readonly checked: Record<string, number>;
  readonly problems: readonly { place: string; message: string; block?: number; offset?: number }[];
  readonly notes: readonly { place: string; message: string }[];
}

export const check = (...args: string[]): Promise<CommandResult> =>
  runCommand('tools/cube-check/main.js', ...args);

async function report(code: number, ...args: string[]): Promise<Report> {
  const done = await check('--json', ...args);
  assert.equal(done.code, code, done.stdout + done.stderr);
  return JSON.parse(done.stdout) as Report;
}

const KEYS = makeKeys(300);
const USERS: TableSpec = { name: 'users', dim: 4, layers: [{ rows: makeRows(KEYS, 4) }] };
const TEXTS: TableSpec = {
  name: 'texts',
  dtype: 'bytes',
  dim: 0,
  layers: [{ rows: new Map(KEYS.map((key, i) => [key, [1, 2, i % 256]])) }],
};
const CHANGED: TableSpec = {
  ...USERS,
  layers: [
    ...USERS.layers,
    { rows: makeRows(KEYS.slice(0, 40), 4, 0.5), deleted: KEYS.slice(40, 60) },
  ],
};

class TestRepository {
  readonly root: string;

  private constructor(root: string) {
    this.root = root;
  }

  /** Version 1, and version 2 with a delta on one of its tables; stable points to 2. */
  static async create(t: TestContext): Promise<TestRepository> {
    const repository = new TestRepository(join(temporaryFolder(t), 'repository'));
    await publish(repository.root, { version: '1', shardNum: 2, tables: [USERS, TEXTS] });
    await activate(repository.root, '1');
    await publish(repository.root, { version: '2', shardNum: 2, tables: [CHANGED, TEXTS] });
    await activate(repository.root, '2');
    return repository;
  }

  path(name: string): string {
    return join(this.root, 'b', name);
  }

  manifest(version: string): Promise<Manifest> {
    return openRepository(this.root).readManifest('b', version);
  }

  async layers(version: string, table: string, shard: number): Promise<readonly LayerRef[]> {
    return (await this.manifest(version)).tables.find(({ name }) => name === table)!.shards[shard]!;
  }

  layerFile(table: string, contentId: string): string {
    return join(this.root, layerPath('b', table, contentId));
  }

  writeManifest(manifest: Manifest): void {
    writeFileSync(join(this.root, manifestPath('b', manifest.version)), formatManifest(manifest));
  }

  /** Version 2 with other layers in shard 0 of table users. */
  async replace(layers: readonly LayerRef[]): Promise<void> {
    const manifest = await this.manifest('2');
    const tables = manifest.tables.map((table) => {
      if (table.name !== 'users') return table;
      const shards = table.shards.map((known, shard) => (shard === 0 ? layers : known));
      const rows = shards.flat().reduce((sum, layer) => sum + layer.rows, 0);
      return { ...table, shards, rows };
    });
    this.writeManifest({ ...manifest, tables });
  }
}

function flip(path: string, at: number): void {
  const bytes = readFileSync(path);
  bytes[at < 0 ? bytes.length + at : at]! ^= 0x10;
  writeFileSync(path, bytes);
}

test('a sound repository, bundle, version and layer file have no problem', async (t) => {
  const repository = await TestRepository.create(t);
  for (const target of [
    repository.root,
    repository.path(''),
    join(repository.root, '..', 'repository', 'b'),
  ]) {
    const found = await report(0, target, '--deep');
    assert.equal(found.sound, true);
    assert.deepEqual(found.problems, []);
    assert.equal(found.checked['versions'], 2);
    assert.equal(found.checked['layers'], 6, 'layers shared by versions are read once');
    assert.equal(found.checked['channels'], 1);
  }
  const one = await report(0, repository.path('versions/2'));
  assert.deepEqual([one.checked['versions'], one.checked['layers']], [1, 6]);
  const [base, delta] = await repository.layers('2', 'users', 0);
  assert.ok(base && delta);
  for (const layer of [base, delta]) {
    const file = await check(repository.layerFile('users', layer.contentId), '--deep');
    assert.equal(file.code, 0, file.stdout);
    assert.match(file.stdout, /of table users, shard 0 of 2: \d+ rows of 4 f32/);
    assert.match(file.stdout, /^sound: checked 1 layer, /m);
  }
});

test('a flipped byte is found in each kind of file', async (t) => {
  const repository = await TestRepository.create(t);
  const names = (readdirSync(repository.root, { recursive: true }) as string[]).filter((name) =>
    statSync(join(repository.root, name)).isFile(),
  );
  const kinds = new Map(names.map((name) => [name.replace(/[0-9a-f]{32}|\d{10}/, '*'), name]));
  assert.equal(kinds.size, 7, [...kinds.keys()].join(' '));
  for (const name of kinds.values()) {
    const path = join(repository.root, name);
    // Fields of a JSON file have no checksum, so its syntax is broken.
    const at = name.endsWith('.json') ? 0 : Math.floor(statSync(path).size / 2);
    flip(path, at);
    const { problems } = await report(1, repository.root);
    const ours = problems.filter((problem) => problem.place === path);
    assert.ok(ours.length > 0, `${name}: ${JSON.stringify(problems)}`);
    assert.ok(ours.every(({ message }) => message.includes(path)));
    flip(path, at);
  }
  await report(0, repository.root);
});

test('layers of an unreadable manifest are checked by themselves', async (t) => {
  const repository = await TestRepository.create(t);
  const [, delta] = await repository.layers('2', 'users', 0);
  assert.ok(delta);
  const path = repository.layerFile('users', delta.contentId);
  flip(repository.path('versions/2/manifest.json'), 0);
  flip(path, 4100);
  const { problems } = await report(1, repository.root);
  assert.deepEqual(
    problems.map((problem) => problem.place).sort(),
    [path, repository.path('versions/2/manifest.json')].sort(),
  );
});

test('all damaged blocks of a layer are reported with their offsets', async (t) => {
  const root = join(temporaryFolder(t), 'repository');
  const keys = makeKeys(20_000);
  const wide: TableSpec = { name: 'wide', dim: 32, layers: [{ rows: makeRows(keys, 32) }] };
  const manifest = await publish(root, { version: '1', shardNum: 1, tables: [wide] });
  const { contentId } = manifest.tables[0]!.shards[0]![0]!;
  const path = join(root, layerPath('b', 'wide', contentId));
  const blocks = [0, 2];
  for (const block of blocks) flip(path, 4096 + block * 2 ** 20 + 77);
  for (const target of [path, join(root, 'b', 'versions', '1')]) {
    const { problems } = await report(1, target);
    const damaged = problems.filter((problem) => problem.block !== undefined);
    assert.deepEqual(
      damaged.map((problem) => problem.block),
      blocks,
    );
    assert.deepEqual(
      damaged.map(({ offset }) => offset),
      [4096, 4096 + 2 * 2 ** 20],
    );
    assert.ok(damaged.every(({ message }) => /fetch it again/.test(message)));
  }
});

test('a missing entry of a channel is reported, in a folder and over HTTP', async (t) => {
  const root = join(temporaryFolder(t), 'repository');
  const repository = openRepository(root, { create: true });
  for (const version of ['1', '2', '3']) {
    await repository.publish(makeVersion(temporaryFolder(t), { version }));
    await repository.activate('ctr', 'stable', { version, by: 'ann', reason: 'new' });
  }
  rmSync(join(root, 'ctr/channels/stable/0000000002.json'));
  const server = await StaticServer.start(t, root);
  for (const target of [[root], [server.url, '--bundle', 'ctr']]) {
    const { problems } = await report(1, ...target);
    const missing = problems.filter(({ message }) => /entry 2 is missing/.test(message));
    assert.match(missing[0]?.place ?? '', /stable\/0000000002\.json$/);
    assert.match(missing[0]?.message ?? '', /restore it from a copy/);
  }
});

test('missing, truncated and swapped layers are distinguished', async (t) => {
  const repository = await TestRepository.create(t);
  const [first] = await repository.layers('1', 'users', 0);
  assert.ok(first);
  const [second] = await repository.layers('1', 'users', 1);
  assert.ok(second);
  const [lost] = await repository.layers('1', 'texts', 0);
  assert.ok(lost);
  const [cut] = await repository.layers('1', 'texts', 1);
  assert.ok(cut);
  const [a, b] = [first, second].map(({ contentId }) => repository.layerFile('users', contentId));
  assert.ok(a && b);
  renameSync(a, `${a}.x`);
  renameSync(b, a);
  renameSync(`${a}.x`, b);
  rmSync(repository.layerFile('texts', lost.contentId));
  truncateSync(repository.layerFile('texts', cut.contentId), 5000);
  const { problems } = await report(1, repository.root);
  const getMessages = (path: string): string =>
    problems
      .filter((problem) => problem.place === path)
      .map(({ message }) => message)
      .join('\n');
  assert.match(getMessages(a), /shardIndex is 1, the manifest says 0/);
  assert.match(getMessages(b), /shardIndex is 0, the manifest says 1/);
  assert.match(
    getMessages(repository.layerFile('texts', lost.contentId)),
    /is missing; delete it if it exists, then fetch it again/,
  );
  assert.match(
    getMessages(repository.layerFile('texts', cut.contentId)),
    /5000 bytes, its header says/,
  );
  const single = await report(1, a);
  assert.match(
    single.problems[0]!.message,
    /contains layer [0-9a-f]{32}, but its name is of another layer/,
  );
});

test('a delta on another parent and deltas out of order are reported', async (t) => {
  const repository = await TestRepository.create(t);
  const [base, delta] = await repository.layers('2', 'users', 0);
  assert.ok(base && delta);
  const key = KEYS.find((candidate) => candidate % 2n === 0n)!;
  const rows = makeRows([key], 4, 9);
  const shard = { keys: [key], deleted: [], index: 0, num: 2 };
  const written = writeLayer(toLayerInput(CHANGED, { rows }, shard, 'a'.repeat(32)), (id) =>
    repository.layerFile('users', id),
  );
  const { contentId, bytes, sha256: sha } = written;
  const stranger = { contentId, kind: 'delta', bytes, sha256: sha, rows: 1 } as const;
  await repository.replace([base, stranger, delta]);
  const { problems } = await report(1, repository.path('versions/2'));
  const parents = problems.filter(({ message }) => /its parent is/.test(message));
  assert.deepEqual(
    parents.map((problem) => problem.place),
    [contentId, delta.contentId].map((id) => repository.layerFile('users', id)),
  );
  assert.match(parents[0]!.message, /version 2, table users, shard 0/);
});

test('a key in the wrong shard is found, though every checksum is right', async (t) => {
  const repository = await TestRepository.create(t);
  const strange = KEYS.find((key) => key % 2n === 1n)!;
  const own = KEYS.filter((key) => key % 2n === 0n);
  const rows = makeRows([...own, strange], 4);
  // Written as shard 0 of 1, then rewritten as shard 0 of 2.
  const one = { keys: [...own, strange], deleted: [], index: 0, num: 1 };
  const { path } = writeLayer(toLayerInput(USERS, { rows }, one, ''), (id) =>
    join(repository.root, '..', `${id}.cube`),
  );
  const resealed = await reseal(path, repository);
  await repository.replace([resealed]);
  const file = repository.layerFile('users', resealed.contentId);
  for (const target of [file, repository.path('versions/2')]) {
    const { problems } = await report(1, target, '--deep');
    assert.deepEqual(
      problems.map((problem) => problem.place),
      [file],
    );
    assert.match(
      problems[0]!.message,
      new RegExp(`key ${strange} does not belong to shard 0 of 2`),
    );
  }
});

/** Gives a layer file another shard number, with every checksum and its contentId right. */
async function reseal(path: string, repository: TestRepository): Promise<LayerRef> {
  const { decodeHeader, encodeHeader, encodeUnsignedHeader } = await import(
    '../../../lib/core/layer-header.ts'
  );
  const bytes = new Uint8Array(readFileSync(path));
  const header = { ...decodeHeader(bytes.subarray(0, 4096), path), shardNum: 2 };
  const sections = bytes.subarray(4096, header.checksumsOffset);
  const content = Buffer.concat([
    bytes.subarray(4096, header.fileBytes),
    encodeUnsignedHeader(header),
  ]);
  assert.ok(sections.length > 0);
  const contentId = sha256(content).slice(0, 32);
  bytes.set(encodeHeader({ ...header, contentId }));
  mkdirSync(repository.path('layers/users'), { recursive: true });
  writeFileSync(repository.layerFile('users', contentId), bytes);
  return {
    contentId,
    kind: 'base',
    bytes: bytes.length,
    sha256: sha256(bytes),
    rows: header.rowCount,
  };
}

test('manifests: truncated, of another version, with wrong counts; lost files', async (t) => {
  const repository = await TestRepository.create(t);
  const one = await repository.manifest('1');
  await publish(repository.root, { version: '3', shardNum: 2, tables: [USERS], graph: 'another' });
  repository.writeManifest({
    ...one,
    tables: one.tables.map((table) => ({ ...table, rows: table.rows + 1 })),
  });
  const path = (version: string): string => repository.path(`versions/${version}/manifest.json`);
  truncateSync(path('2'), 100);
  writeFileSync(path('3'), formatManifest(one));
  rmSync(repository.path('versions/1/model.onnx'));
  writeFileSync(repository.path('versions/1/stray.txt'), 'x');
  const { problems, notes } = await report(1, repository.root);
  const said = problems.map(({ message }) => message).join('\n');
  assert.match(said, /versions\/2\/manifest\.json: not JSON/);
  assert.match(said, /versions\/3\/manifest\.json is the manifest of b 1, copied to a wrong path/);
  assert.match(said, /table users has 301 rows, but its layers have 300 rows/);
  assert.match(said, /versions\/1\/model\.onnx is missing/);
  assert.ok(notes.some((note) => note.place.endsWith('stray.txt')));
});

test('missing and quarantined versions and unreferenced layers are reported', async (t) => {
  const repository = await TestRepository.create(t);
  await openRepository(repository.root).rollback('b', 'stable', 'test', 'AUC fell');
  assert.match(
    (await check(repository.root)).stdout,
    /version 2 is quarantined \(test, .*AUC fell/,
  );
  rmSync(repository.path('versions/1'), { recursive: true });
  writeFileSync(repository.path('channels/stable/0000000004.json'), '{"version":');
  const { problems, notes } = await report(1, repository.path(''));
  assert.match(
    problems.map(({ message }) => message).join('\n'),
    /not JSON.*put it back[\s\S]*channel stable points to version 1, which has no manifest here/,
  );
  assert.equal(
    notes.filter(({ message }) => /no version here has this layer/.test(message)).length,
    0,
  );
  rmSync(repository.path('versions/2/manifest.json'));
  const left = await report(1, repository.path(''));
  assert.equal(
    left.notes.filter(({ message }) => /no version here has this layer/.test(message)).length,
    6,
  );
});

test('a data folder must have complete layers, but only of its own shards', async (t) => {
  const repository = await TestRepository.create(t);
  rmSync(repository.path('channels'), { recursive: true });
  for (const version of ['1', '2']) {
    rmSync(repository.path(`versions/${version}/model.onnx`));
    for (const table of ['users', 'texts']) {
      for (const { contentId } of await repository.layers(version, table, 1)) {
        rmSync(repository.layerFile(table, contentId), { force: true });
      }
    }
  }
  assert.equal((await report(1, repository.root)).sound, false);
  await report(0, repository.root, '--data-folder');
  mkdirSync(repository.path('agent'));
  writeFileSync(repository.path('agent/stable.json'), '{}');
  await report(0, repository.root);
  const other = await report(1, repository.root, '--shards', '0-1');
  assert.ok(other.problems.every(({ message }) => /is missing/.test(message)));
  const [base] = await repository.layers('1', 'users', 0);
  assert.ok(base);
  rmSync(repository.layerFile('users', base.contentId));
  assert.equal((await report(1, repository.root)).problems.length, 1);
});

test('wrong usage exits with 2, unreadable targets with 1', async (t) => {
  const folder = temporaryFolder(t);
  mkdirSync(join(folder, 'versions', '1'), { recursive: true });
  for (const args of [
    [],
    ['--no-such'],
    [folder, '--shards', '3-1'],
    ['http://127.0.0.1:1/a?b=c'],
    ['http://127.0.0.1:1/repo'],
  ]) {
    const { code, stderr } = await check(...args);
    assert.equal(code, 2, `${args.join(' ')}: ${stderr}`);
    assert.doesNotMatch(stderr, /\n {4}at /);
  }
  const absent = await check(join(folder, 'absent'));
  assert.equal(absent.code, 1);
  assert.match(absent.stderr, /no such file or folder/);
  const empty = await report(1, temporaryFolder(t));
  assert.match(empty.problems[0]!.message, /has no version of any bundle/);
  const text = join(folder, 'text.txt');
  writeFileSync(text, 'hello');
  assert.match((await report(1, text)).problems[0]!.message, /ends inside the header/);
});
