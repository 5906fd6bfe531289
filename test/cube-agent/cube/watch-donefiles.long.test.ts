/** Real trainers' files, the real builder, and what the repository then holds. */
import assert from 'node:assert/strict';
import { appendFileSync, mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { openRepository, type Repository } from '../../../lib/repository/repository.ts';
import { onTestEnd, temporaryFolder } from '../../repository/support/fixtures.ts';
import { runAgentCommand } from '../../support/commands.ts';
import {
  type CommandResult,
  RunningProcess,
  runAgentCommandWithFault,
  runProcess,
  waitFor,
} from '../../support/processes.ts';
import {
  encodeFloats,
  encodeSequenceFile,
} from '../../tools/cube-builder/sources/support/writers.ts';
import { makeTransferConf } from './support/transfer-conf.ts';

interface Trainer {
  readonly folder: string;
  readonly done: string;
  /** Writes a model and its line. */
  train(file: 'base' | 'patch', id: string, key: string, values: Record<number, number>): void;
}

function makeTrainer(t: TestContext): Trainer {
  const folder = temporaryFolder(t);
  const done = join(folder, 'done');
  mkdirSync(done);
  let models = 0;
  return {
    folder,
    done,
    train: (file, id, key, values) => {
      models += 1;
      const input = join(folder, `model $(touch x) ${models}`);
      mkdirSync(input);
      const rows = Object.entries(values).map(([k, x]): [bigint, Uint8Array] => [
        BigInt(k),
        encodeFloats(Float32Array.of(x, x + 0.5)),
      ]);
      writeFileSync(join(input, 'part-0'), encodeSequenceFile(rows));
      appendFileSync(join(done, `${file}.txt`), `${JSON.stringify({ id, key, input })}\n`);
    },
  };
}

function getRepository({ folder }: Trainer): Repository {
  return openRepository(join(folder, 'repository'), { create: true });
}

function onceFlags({ folder, done }: Trainer): string[] {
  const place = ['--donefiles', done, '--repository', join(folder, 'repository')];
  const flags = ['--bundle', 'ads', '--shard-num', '2', '--once', '--by', 'trainer'];
  return ['watch-donefiles', ...place, ...flags];
}

function once(trainer: Trainer, ...more: string[]): Promise<CommandResult> {
  return runAgentCommand(...onceFlags(trainer), ...more, '--', '--value-format', 'f32');
}

const pointer = async (repository: Repository): Promise<string | undefined> =>
  (await repository.readChannel('ads', 'stable')).pointer?.version;

test('bases and patches become versions of a chain, once, and the channel follows', async (t) => {
  const trainer = makeTrainer(t);
  const repository = getRepository(trainer);
  writeFileSync(join(trainer.done, 'base.txt'), '');
  assert.equal((await once(trainer)).code, 0, 'an empty donefile asks for nothing');
  trainer.train('base', '100', '100', { 1: 1, 2: 2 });
  trainer.train('patch', '101', '100', { 2: 20, 3: 30 });
  const first = await once(trainer);
  assert.equal(first.code, 0, first.stderr);
  assert.deepEqual(await repository.listVersions('ads'), ['100', '100_101']);
  assert.equal(await pointer(repository), '100_101');
  const [table] = (await repository.readManifest('ads', '100_101')).tables;
  assert.deepEqual(
    table?.shards.map((layers) => layers.map(({ kind, rows }) => `${kind} ${rows}`)),
    [
      ['base 1', 'delta 1'],
      ['base 1', 'delta 1'],
    ],
  );
  const { history } = await repository.readChannel('ads', 'stable');
  assert.deepEqual(
    history.map(({ version, by, reason }) => [version, by, reason]),
    [
      ['100', 'trainer', 'line 1 of base.txt'],
      ['100_101', 'trainer', 'line 1 of patch.txt'],
    ],
  );
  assert.equal((await once(trainer)).code, 0);
  assert.equal((await repository.readChannel('ads', 'stable')).history.length, 2);
  // People went back: nobody is led there again, and its patches wait for a base.
  await repository.rollback('ads', 'stable', 'me', 'worse');
  trainer.train('patch', '102', '100', { 4: 4 });
  const waiting = await once(trainer);
  assert.equal(waiting.code, 1);
  assert.match(waiting.stderr, /version 100_101 is quarantined, .*100_102.* publish a new base/);
  assert.equal(await pointer(repository), '100');
  trainer.train('base', '200', '200', { 1: 9 });
  assert.equal((await once(trainer)).code, 0);
  assert.equal(await pointer(repository), '200');
});

test('a broken line and a broken model are told, and the next base heals', async (t) => {
  const trainer = makeTrainer(t);
  const repository = getRepository(trainer);
  appendFileSync(join(trainer.done, 'base.txt'), '{"id":"1","key"\n');
  trainer.train('base', '50', '50', { 1: 1 });
  const first = await once(trainer);
  assert.equal(first.code, 1);
  assert.match(first.stderr, /base\.txt: line 1: not JSON/);
  assert.equal(await pointer(repository), '50');
  trainer.train('base', '60', '60', { 1: 2 });
  writeFileSync(join(trainer.folder, 'model $(touch x) 2', 'part-0'), 'SEQ\x06nonsense');
  // A process of its own: its log has the reason.
  const ownFlags = [...onceFlags(trainer), '--', '--value-format', 'f32'];
  const second = await runProcess('cube-agent/main.js', ...ownFlags);
  assert.equal(second.code, 1);
  assert.match(second.stderr, /building version 60 failed: .*part-0/);
  assert.equal(await pointer(repository), '50');
  trainer.train('base', '70', '70', { 1: 3 });
  assert.equal((await once(trainer)).code, 1, 'line 1 is still broken');
  assert.equal(await pointer(repository), '70');
  assert.deepEqual(await repository.listVersions('ads'), ['50', '70']);
});

test('it polls over HTTP, opens a rollout, and may be killed and run twice', async (t) => {
  const trainer = makeTrainer(t);
  const repository = getRepository(trainer);
  const files = new Map<string, string>([['/done/base.txt', '']]);
  const server = createServer((request, response) => {
    const url = request.url ?? '';
    if (url.startsWith('/moved/')) {
      response.writeHead(302, { location: url.replace('/moved/', '/done/') }).end();
      return;
    }
    const text = files.get(url);
    response.writeHead(text === undefined ? 404 : 200).end(text);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestEnd(t, () => {
    server.closeAllConnections();
    server.close();
  });
  const donefiles = `http://127.0.0.1:${(server.address() as AddressInfo).port}/moved`;
  const path = join(trainer.folder, 'transfer.conf');
  writeFileSync(path, makeTransferConf({ donefiles }).replace('base_only', 'base_delta'));
  const place = ['--config', path, '--repository', join(trainer.folder, 'repository')];
  const flags = ['watch-donefiles', ...place, '--then', 'rollout', '--poll-ms', '100'];
  const watchers = [1, 2].map(() => new RunningProcess(t, 'cube-agent/main.js', flags));
  for (const watcher of watchers) {
    await waitFor('watching', () => watcher.messages().includes('watching'));
  }
  trainer.train('base', '8', '8', { 1: 1 });
  const line = JSON.stringify({
    id: '8',
    key: '8',
    input: join(trainer.folder, 'model $(touch x) 1'),
  });
  files.set('/done/base.txt', `${line}\n`);
  const states = async (): Promise<string[]> =>
    (await repository.rolloutLog('test_dict', '8').readHistory()).map(({ state }) => state);
  await watchers[0]?.kill();
  await waitFor('rollout opened', async () => (await states()).length === 1);
  assert.deepEqual(await states(), ['seen']);
  assert.equal((await repository.readChannel('test_dict', 'stable')).pointer, undefined);
  watchers[1]?.child.kill('SIGTERM');
  assert.equal(await watchers[1]?.exit, 0);
});

test('after a kill at any step the next run publishes and activates once', async (t) => {
  const trainer = makeTrainer(t);
  const repository = getRepository(trainer);
  trainer.train('base', '1', '1', { 1: 1, 2: 2 });
  const run = (fault: string): Promise<CommandResult> =>
    runAgentCommandWithFault(fault, ...onceFlags(trainer), '--', '--value-format', 'f32');
  const builderKilled = await run('build.shard:kill');
  assert.equal(builderKilled.code, 1);
  assert.match(builderKilled.stderr, /building version 1 failed: ended with a signal/);
  assert.deepEqual(await repository.listVersions('ads'), []);
  assert.equal((await run('donefile.published:kill')).code, null);
  assert.deepEqual(await repository.listVersions('ads'), ['1']);
  assert.equal(await pointer(repository), undefined);
  assert.equal((await run('donefile.moved:kill')).code, null);
  const last = await once(trainer);
  assert.equal(last.code, 0, last.stderr);
  assert.equal(await pointer(repository), '1');
  assert.equal((await repository.readChannel('ads', 'stable')).history.length, 1);
  const files = readdirSync(join(trainer.folder, 'repository'), { recursive: true }).map(String);
  assert.deepEqual(
    files.filter((path) => /\.tmp$|\.work|publishing\/./.test(path)),
    [],
  );
});

test('a chain that is as long as it may be is merged, and goes on', async (t) => {
  const trainer = makeTrainer(t);
  const repository = getRepository(trainer);
  trainer.train('base', '1', '1', { 0: 0 });
  for (let id = 2; id <= 9; id++) trainer.train('patch', String(id), '1', { [2 * id]: id });
  const { code, stderr } = await once(trainer);
  assert.equal(code, 0, stderr);
  assert.equal(await pointer(repository), '1_9');
  const [table] = (await repository.readManifest('ads', '1_9')).tables;
  // Of shard 0: the base of key 0 and seven patches merged, and the eighth.
  assert.deepEqual(
    table?.shards[0]?.map(({ rows }) => rows),
    [8, 1],
  );
});

test('unsupported sources fail at once, unavailable ones are reported', async (t) => {
  const trainer = makeTrainer(t);
  const ftp = await once({ ...trainer, done: 'ftp://host/done' });
  assert.equal(ftp.code, 1);
  assert.match(ftp.stderr, /donefiles cannot be read over ftp:\/\//);
  rmSync(trainer.done, { recursive: true });
  const away = await once(trainer);
  assert.equal(away.code, 1);
  assert.match(away.stderr, /base\.txt: no such file/);
  const { code, stderr } = await runAgentCommand(
    'watch-donefiles',
    ...toArguments({ repository: trainer.folder, once: true }),
  );
  assert.equal(code, 2);
  assert.match(stderr, /--donefiles is missing/);
});
