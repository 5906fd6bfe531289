/** The real cube-check process over repositories that are whole, and damaged in every way. */
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
import { type Finished, runCommand } from '../../cube-agent/processes.ts';
import { sha256, temporaryFolder } from '../../repository/fixtures.ts';
import { activate, inputOf, publish, rowsOf, spreadKeys, type TableWish } from '../published.ts';

interface Report {
  readonly sound: boolean;
  readonly checked: Record<string, number>;
  readonly problems: readonly { place: string; message: string; block?: number; offset?: number }[];
  readonly notes: readonly { place: string; message: string }[];
}

export const check = (...args: string[]): Promise<Finished> =>
  runCommand('tools/cube-check/main.js', ...args);

async function report(code: number, ...args: string[]): Promise<Report> {
  const done = await check('--json', ...args);
  assert.equal(done.code, code, done.stdout + done.stderr);
  return JSON.parse(done.stdout) as Report;
}

const KEYS = spreadKeys(300);
const USERS: TableWish = { name: 'users', dim: 4, layers: [{ rows: rowsOf(KEYS, 4) }] };
const TEXTS: TableWish = {
  ...{ name: 'texts', dtype: 'bytes', dim: 0 },
  layers: [{ rows: new Map(KEYS.map((key, i) => [key, [1, 2, i % 256]])) }],
};
const CHANGED: TableWish = {
  ...USERS,
  layers: [
    ...USERS.layers,
    { rows: rowsOf(KEYS.slice(0, 40), 4, 0.5), deleted: KEYS.slice(40, 60) },
  ],
};

class Place {
  readonly root: string;

  private constructor(root: string) {
    this.root = root;
  }

  /** Version 1, and version 2 with a delta on one of its tables; stable points to 2. */
  static async make(t: TestContext): Promise<Place> {
    const place = new Place(join(temporaryFolder(t), 'repository'));
    await publish(place.root, { version: '1', shardNum: 2, tables: [USERS, TEXTS] });
    await activate(place.root, '1');
    await publish(place.root, { version: '2', shardNum: 2, tables: [CHANGED, TEXTS] });
    await activate(place.root, '2');
    return place;
  }

  path(name: string): string {
    return join(this.root, 'b', name);
  }

  manifest(version: string): Promise<Manifest> {
    return openRepository(this.root).manifest('b', version);
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

test('a whole repository, a bundle, a version and every file of it are sound', async (t) => {
  const place = await Place.make(t);
  for (const target of [place.root, place.path(''), join(place.root, '..', 'repository', 'b')]) {
    const found = await report(0, target, '--deep');
    assert.equal(found.sound, true);
    assert.deepEqual(found.problems, []);
    assert.equal(found.checked['versions'], 2);
    assert.equal(found.checked['layers'], 6, 'layers shared by versions are read once');
    assert.equal(found.checked['channels'], 1);
  }
  const one = await report(0, place.path('versions/2'));
  assert.deepEqual([one.checked['versions'], one.checked['layers']], [1, 6]);
  const [base, delta] = await place.layers('2', 'users', 0);
  for (const layer of [base!, delta!]) {
    const file = await check(place.layerFile('users', layer.contentId), '--deep');
    assert.equal(file.code, 0, file.stdout);
    assert.match(file.stdout, /of table users, shard 0 of 2: \d+ rows of 4 f32/);
    assert.match(file.stdout, /^sound: checked 1 layer, /m);
  }
});

test('a flipped byte in each kind of file is found in that file', async (t) => {
  const place = await Place.make(t);
  const names = (readdirSync(place.root, { recursive: true }) as string[]).filter((name) =>
    statSync(join(place.root, name)).isFile(),
  );
  const kinds = new Map(names.map((name) => [name.replace(/[0-9a-f]{32}|\d{10}/, '*'), name]));
  assert.equal(kinds.size, 7, [...kinds.keys()].join(' '));
  for (const name of kinds.values()) {
    const path = join(place.root, name);
    // The text of a JSON file's fields has no checksum: its form is broken.
    const at = name.endsWith('.json') ? 0 : Math.floor(statSync(path).size / 2);
    flip(path, at);
    const { problems } = await report(1, place.root);
    const ours = problems.filter((problem) => problem.place === path);
    assert.ok(ours.length > 0, `${name}: ${JSON.stringify(problems)}`);
    assert.ok(ours.every(({ message }) => message.includes(path)));
    flip(path, at);
  }
  await report(0, place.root);
});

test('with a manifest lost, layers that it alone names are checked by themselves', async (t) => {
  const place = await Place.make(t);
  const [, delta] = await place.layers('2', 'users', 0);
  const path = place.layerFile('users', delta!.contentId);
  flip(place.path('versions/2/manifest.json'), 0);
  flip(path, 4100);
  const { problems } = await report(1, place.root);
  assert.deepEqual(
    problems.map((problem) => problem.place).sort(),
    [path, place.path('versions/2/manifest.json')].sort(),
  );
});

test('all damaged blocks of a layer are told, with their place in the file', async (t) => {
  const root = join(temporaryFolder(t), 'repository');
  const keys = spreadKeys(20_000);
  const wide: TableWish = { name: 'wide', dim: 32, layers: [{ rows: rowsOf(keys, 32) }] };
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

test('missing, truncated and swapped layers are told apart', async (t) => {
  const place = await Place.make(t);
  const [first] = await place.layers('1', 'users', 0);
  const [second] = await place.layers('1', 'users', 1);
  const [lost] = await place.layers('1', 'texts', 0);
  const [cut] = await place.layers('1', 'texts', 1);
  const [a, b] = [first!, second!].map(({ contentId }) => place.layerFile('users', contentId));
  renameSync(a!, `${a}.x`);
  renameSync(b!, a!);
  renameSync(`${a}.x`, b!);
  rmSync(place.layerFile('texts', lost!.contentId));
  truncateSync(place.layerFile('texts', cut!.contentId), 5000);
  const { problems } = await report(1, place.root);
  const said = (path: string): string =>
    problems
      .filter((problem) => problem.place === path)
      .map(({ message }) => message)
      .join('\n');
  assert.match(said(a!), /shardIndex is 1, the manifest says 0/);
  assert.match(said(b!), /shardIndex is 0, the manifest says 1/);
  assert.match(said(place.layerFile('texts', lost!.contentId)), /is missing; fetch it again/);
  assert.match(said(place.layerFile('texts', cut!.contentId)), /5000 bytes, its header says/);
  const single = await report(1, a!);
  assert.match(
    single.problems[0]!.message,
    /holds layer [0-9a-f]{32}, which its name does not say/,
  );
});

test('a delta on another parent, and deltas out of order, are told', async (t) => {
  const place = await Place.make(t);
  const [base, delta] = await place.layers('2', 'users', 0);
  const key = KEYS.find((candidate) => candidate % 2n === 0n)!;
  const rows = rowsOf([key], 4, 9);
  const shard = { keys: [key], deleted: [], index: 0, num: 2 };
  const written = writeLayer(inputOf(CHANGED, { rows }, shard, 'a'.repeat(32)), (id) =>
    place.layerFile('users', id),
  );
  const { contentId, bytes, sha256: sha } = written;
  const stranger = { contentId, kind: 'delta', bytes, sha256: sha, rows: 1 } as const;
  await place.replace([base!, stranger, delta!]);
  const { problems } = await report(1, place.path('versions/2'));
  const parents = problems.filter(({ message }) => /its parent is/.test(message));
  assert.deepEqual(
    parents.map((problem) => problem.place),
    [contentId, delta!.contentId].map((id) => place.layerFile('users', id)),
  );
  assert.match(parents[0]!.message, /version 2, table users, shard 0/);
});

test('a key in the wrong shard is found, though every checksum is right', async (t) => {
  const place = await Place.make(t);
  const strange = KEYS.find((key) => key % 2n === 1n)!;
  const own = KEYS.filter((key) => key % 2n === 0n);
  const rows = rowsOf([...own, strange], 4);
  // Written as the only shard of one, then sealed again as shard 0 of 2.
  const one = { keys: [...own, strange], deleted: [], index: 0, num: 1 };
  const { path } = writeLayer(inputOf(USERS, { rows }, one, ''), (id) =>
    join(place.root, '..', `${id}.cube`),
  );
  const resealed = await reseal(path, place);
  await place.replace([resealed]);
  const file = place.layerFile('users', resealed.contentId);
  for (const target of [file, place.path('versions/2')]) {
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
async function reseal(path: string, place: Place): Promise<LayerRef> {
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
  mkdirSync(place.path('layers/users'), { recursive: true });
  writeFileSync(place.layerFile('users', contentId), bytes);
  return {
    ...{ contentId, kind: 'base', bytes: bytes.length, sha256: sha256(bytes) },
    rows: header.rowCount,
  };
}

test('manifests: truncated, of another version, with wrong counts; lost files', async (t) => {
  const place = await Place.make(t);
  const one = await place.manifest('1');
  await publish(place.root, { version: '3', shardNum: 2, tables: [USERS], graph: 'another' });
  place.writeManifest({
    ...one,
    tables: one.tables.map((table) => ({ ...table, rows: table.rows + 1 })),
  });
  const path = (version: string): string => place.path(`versions/${version}/manifest.json`);
  truncateSync(path('2'), 100);
  writeFileSync(path('3'), formatManifest(one));
  rmSync(place.path('versions/1/model.onnx'));
  writeFileSync(place.path('versions/1/stray.txt'), 'x');
  const { problems, notes } = await report(1, place.root);
  const said = problems.map(({ message }) => message).join('\n');
  assert.match(said, /versions\/2\/manifest\.json: not JSON/);
  assert.match(said, /versions\/3\/manifest\.json is of b 1: it was copied to a wrong place/);
  assert.match(said, /table users has 301 rows, its layers have 300/);
  assert.match(said, /versions\/1\/model\.onnx is missing/);
  assert.ok(notes.some((note) => note.place.endsWith('stray.txt')));
});

test('channels to what is not there, quarantine and layers that nobody names', async (t) => {
  const place = await Place.make(t);
  await openRepository(place.root).rollback('b', 'stable', 'test', 'AUC fell');
  assert.match((await check(place.root)).stdout, /version 2 is quarantined \(test, .*AUC fell/);
  rmSync(place.path('versions/1'), { recursive: true });
  writeFileSync(place.path('channels/stable/0000000004.json'), '{"version":');
  const { problems, notes } = await report(1, place.path(''));
  assert.match(
    problems.map(({ message }) => message).join('\n'),
    /not JSON.*put it back[\s\S]*channel stable points to version 1, which has no manifest here/,
  );
  assert.equal(notes.filter(({ message }) => /no version here names/.test(message)).length, 0);
  rmSync(place.path('versions/2/manifest.json'));
  const left = await report(1, place.path(''));
  assert.equal(left.notes.filter(({ message }) => /no version here names/.test(message)).length, 6);
});

test('a data folder holds layers of its own shards, and those whole', async (t) => {
  const place = await Place.make(t);
  rmSync(place.path('channels'), { recursive: true });
  for (const version of ['1', '2']) {
    rmSync(place.path(`versions/${version}/model.onnx`));
    for (const table of ['users', 'texts']) {
      for (const { contentId } of await place.layers(version, table, 1)) {
        rmSync(place.layerFile(table, contentId), { force: true });
      }
    }
  }
  assert.equal((await report(1, place.root)).sound, false);
  await report(0, place.root, '--data-folder');
  mkdirSync(place.path('agent'));
  writeFileSync(place.path('agent/stable.json'), '{}');
  await report(0, place.root);
  const other = await report(1, place.root, '--shards', '0-1');
  assert.ok(other.problems.every(({ message }) => /is missing/.test(message)));
  const [base] = await place.layers('1', 'users', 0);
  rmSync(place.layerFile('users', base!.contentId));
  assert.equal((await report(1, place.root)).problems.length, 1);
});

test('wrong usage is 2, and what cannot be read is 1', async (t) => {
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
  assert.match(empty.problems[0]!.message, /holds no version of any bundle/);
  const text = join(folder, 'text.txt');
  writeFileSync(text, 'hello');
  assert.match((await report(1, text)).problems[0]!.message, /ends inside the header/);
});
