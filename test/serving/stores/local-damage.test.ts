/** The LOCAL store over damaged files: refused, or not readable at all, but never wrong and never short of a row. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { LocalStore } from '../../../serving/stores/local-store.ts';
import { tableWith } from '../../client/oracle.ts';
import { TestRepository } from './test-repository.ts';

test('wherever a byte of the database is damaged, no row is wrong or missing', async () => {
  const world = await TestRepository.make();
  after(() => world.remove());
  const keys = Array.from({ length: 3_000 }, (_, i) => BigInt(i));
  const tables = [tableWith('t', 5, keys)];
  const manifest = await world.publish({ bundle: 'ctr', version: '1', shardNum: 2, tables });
  const folder = join(world.folder, 'local');
  const store = await LocalStore.open({ repository: world.repository, folder });
  await store.prepare(manifest);
  await store.close();
  const rows = join(folder, 'rows');
  const kept = await snapshot(rows);
  const names = [...kept.keys()].filter((name) => /\.ldb$|\.log$|^MANIFEST/.test(name));
  const ends = new Map<string, number>();
  for (const name of names) {
    const whole = kept.get(name)!;
    for (let flip = 0; flip < 8 && whole.length > 0; flip++) {
      const damagedBytes = Uint8Array.from(whole);
      damagedBytes[Math.floor(((flip + 0.5) / 8) * whole.length)]! ^= 0x10;
      await writeFile(join(rows, name), damagedBytes);
      const end = await readDamaged(world.folder);
      ends.set(end, (ends.get(end) ?? 0) + 1);
      await restore(rows, kept);
    }
  }
  const ok = ['right', 'refused', 'aborted'];
  assert.deepEqual(
    [...ends.keys()].filter((end) => !ok.includes(end)),
    [],
  );
  assert.ok((ends.get('refused') ?? 0) >= 8, JSON.stringify([...ends]));
});

/** Looks everything up in a process of its own: LevelDB's own checks end the process (SIGABRT) where they find damage first. */
async function readDamaged(folder: string): Promise<string> {
  const script = join(dirname(fileURLToPath(import.meta.url)), 'damaged-process.js');
  const child = spawn(process.execPath, [script, folder], { stdio: ['ignore', 'pipe', 'ignore'] });
  let said = '';
  child.stdout!.on('data', (chunk) => {
    said += chunk;
  });
  const [, signal] = await once(child, 'close');
  return signal === 'SIGABRT' ? 'aborted' : said;
}

async function snapshot(folder: string): Promise<Map<string, Uint8Array>> {
  const files = new Map<string, Uint8Array>();
  for (const name of await readdir(folder)) files.set(name, await readFile(join(folder, name)));
  return files;
}

async function restore(folder: string, files: ReadonlyMap<string, Uint8Array>): Promise<void> {
  await rm(folder, { recursive: true });
  await mkdir(folder);
  for (const [name, bytes] of files) await writeFile(join(folder, name), bytes);
}
