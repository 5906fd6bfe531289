/**
 * The LOCAL store with damaged files: it returns the right rows, after it was filled again if need
 * be, and never wrong or missing rows.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, fork, type StdioOptions } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { LocalStore } from '../../../serving/stores/local-store.ts';
import { createOracleTable } from '../../client/support/oracle.ts';
import { TestRepository } from './support/test-repository.ts';

test('no damaged byte of the database leads to a wrong or missing row', async () => {
  const source = await TestRepository.create();
  after(() => source.remove());
  const keys = Array.from({ length: 3_000 }, (_, i) => BigInt(i));
  const tables = [createOracleTable('t', 5, keys)];
  const manifest = await source.publish({ bundle: 'ctr', version: '1', shardNum: 2, tables });
  const folder = join(source.folder, 'local');
  const store = await LocalStore.open({ repository: source.repository, folder });
  await store.prepare(manifest);
  await store.close();
  const rows = join(folder, 'rows');
  const kept = await snapshot(rows);
  const reader = new Reader(source.folder);
  after(() => reader.stop());
  const names = [...kept.keys()].filter((name) => /\.ldb$|\.log$|^MANIFEST/.test(name));
  const results = new Map<string, number>();
  for (const name of names) {
    const original = kept.get(name)!;
    for (let flip = 0; flip < 8 && original.length > 0; flip++) {
      const damagedBytes = Uint8Array.from(original);
      damagedBytes[Math.floor(((flip + 0.5) / 8) * original.length)]! ^= 0x10;
      await writeFile(join(rows, name), damagedBytes);
      const result = await reader.read();
      results.set(result, (results.get(result) ?? 0) + 1);
      await restore(rows, kept);
    }
  }
  const ok = ['right', 'rebuilt', 'aborted'];
  assert.deepEqual(
    [...results.keys()].filter((result) => !ok.includes(result)),
    [],
  );
  assert.ok((results.get('rebuilt') ?? 0) >= 8, JSON.stringify([...results]));
});

/**
 * Looks everything up in another process, because LevelDB aborts the process (SIGABRT) when it
 * finds damage itself. The next lookup has the same process unless it has ended.
 */
class Reader {
  readonly #folder: string;
  #child: ChildProcess | undefined;

  constructor(folder: string) {
    this.#folder = folder;
  }

  async read(): Promise<string> {
    const script = join(import.meta.dirname, 'support', 'damaged-process.js');
    const stdio: StdioOptions = ['ignore', 'ignore', 'ignore', 'ipc'];
    this.#child ??= fork(script, [this.#folder], { stdio });
    const child = this.#child;
    const messages: string[] = [];
    const closed = new Promise<void>((resolve) => {
      child.on('message', (message) => {
        messages.push(String(message));
        if (message === 'closed') resolve();
      });
    });
    // All that an ended process has sent arrives before its channel is closed.
    const ended = Promise.all([once(child, 'exit'), once(child, 'disconnect')]);
    child.send('read');
    const end = await Promise.race([closed, ended]);
    child.removeAllListeners();
    if (end !== undefined) this.#child = undefined;
    const [result = child.signalCode === 'SIGABRT' ? 'aborted' : `ended: ${child.signalCode}`] =
      messages;
    return result;
  }

  stop(): void {
    this.#child?.kill('SIGKILL');
  }
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
