/** A real agent with stand-in servers: kills, damage, restarts. */
import assert from 'node:assert/strict';
import {
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { layerPath, manifestPath } from '../../../lib/repository/layout.ts';
import { getBaseLayer, sha256, temporaryFolder } from '../../repository/support/fixtures.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { waitFor } from '../../support/processes.ts';
import {
  AUDIT,
  areAllActive,
  createHost,
  type Host,
  listLayers,
  publish,
  startAgent,
} from '../support/host.ts';

async function layerFiles(host: Host, version: string, shard: number) {
  const layer = getBaseLayer(await host.repository.readManifest('ctr', version), shard);
  const path = layerPath('ctr', 't', layer.contentId);
  return { layer, source: join(host.location, path), copy: join(host.dataDir, path) };
}

function damage(path: string): Uint8Array {
  const whole = readFileSync(path);
  const damaged = Uint8Array.from(whole);
  damaged[500] = (damaged[500] ?? 0) ^ 1;
  writeFileSync(path, damaged);
  return whole;
}

async function readProblems(host: Host): Promise<string> {
  const { stdout } = await runAgentCommand(
    'status',
    ...toArguments({
      repository: host.location,
      bundle: 'ctr',
      dataDir: host.dataDir,
      server: host.servers[0]?.address ?? '',
    }),
  );
  return stdout;
}

test('kill -9 in the middle of a fetch: the next agent resumes and completes it', async (t) => {
  const host = await createHost(t, 1);
  await publish(host, { version: '1', shardNum: 1, layerBytes: 400_000 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const { copy, layer } = await layerFiles(host, '1', 0);
  const slow = startAgent(t, host, host.servers, '--rate-limit', '200KB');
  await waitFor(
    'a part has come',
    () => existsSync(`${copy}.part`) && statSync(`${copy}.part`).size > 40_000,
  );
  await slow.kill();
  const part = statSync(`${copy}.part`).size;
  assert.ok(part > 0 && part < 400_000 && !existsSync(copy));
  assert.ok(!existsSync(join(host.dataDir, manifestPath('ctr', '1'))));
  startAgent(t, host);
  await waitFor('at 1', areAllActive('1', host.servers));
  assert.equal(sha256(readFileSync(copy)), layer.sha256);
  assert.deepEqual(listLayers(host), [`${layer.contentId}.cube`]);
});

test('kill -9 at any moment: the next agent continues', async (t) => {
  const host = await createHost(t, 2);
  for (const version of ['1', '2', '3', '4', '5', '6']) {
    await publish(host, { version, table: version });
    await host.repository.activate('ctr', 'stable', { version, ...AUDIT });
    const running = startAgent(t, host);
    const moment = 120 + Number(version) * 25;
    await new Promise((resolve) => setTimeout(resolve, moment));
    await running.kill();
  }
  startAgent(t, host);
  await waitFor('all at 6', areAllActive('6', host.servers));
  await waitFor('tidy', () => listLayers(host).length === 4 || listLayers(host));
});

test('SIGTERM ends an agent during a fetch and keeps the partial layer', async (t) => {
  const host = await createHost(t, 1);
  await publish(host, { version: '1', shardNum: 1, layerBytes: 400_000 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const { copy } = await layerFiles(host, '1', 0);
  const running = startAgent(t, host, host.servers, '--rate-limit', '100KB');
  await waitFor('a part has come', () => existsSync(`${copy}.part`));
  running.child.kill('SIGTERM');
  assert.equal(await running.exit, 0);
  assert.ok(existsSync(`${copy}.part`) && !existsSync(copy));
});

test('a damaged layer in the repository is reported; the old version stays active', async (t) => {
  const host = await createHost(t, 2);
  await publish(host, { version: '1', table: 'a' });
  await publish(host, { version: '2', table: 'b' });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const running = startAgent(t, host);
  await waitFor('all at 1', areAllActive('1', host.servers));
  const { source, copy } = await layerFiles(host, '2', 1);
  const whole = damage(source);
  await host.repository.activate('ctr', 'stable', { version: '2', ...AUDIT });
  await waitFor('reported', () => running.messages().some((m) => m.startsWith('cannot fetch 2')));
  assert.ok(areAllActive('1', host.servers)() === true);
  assert.ok(!existsSync(copy) && !existsSync(`${copy}.part`));
  assert.ok(!existsSync(join(host.dataDir, manifestPath('ctr', '2'))));
  await waitFor('status says so', async () =>
    /fetch 2 t\/.*CORRUPT .*SHA-256/.test(await readProblems(host)),
  );
  writeFileSync(source, whole);
  await waitFor('all at 2', areAllActive('2', host.servers));
  await waitFor('nothing to report', async () => !(await readProblems(host)).includes('CORRUPT'));
});

test('a layer that is damaged on disk is fetched again', async (t) => {
  const host = await createHost(t, 1);
  await publish(host, { version: '1', shardNum: 1 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const running = startAgent(t, host);
  await waitFor('at 1', areAllActive('1', host.servers));
  const { copy, layer } = await layerFiles(host, '1', 0);
  damage(copy);
  host.servers[0]?.restart();
  await waitFor('again at 1', areAllActive('1', host.servers));
  assert.equal(sha256(readFileSync(copy)), layer.sha256);
  assert.ok(running.messages().some((message) => message.startsWith('removed damaged layers')));
});

test('a damaged manifest on disk is written again, even if it still parses', async (t) => {
  const host = await createHost(t, 1);
  await publish(host, { version: '1', shardNum: 1 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const running = startAgent(t, host);
  await waitFor('at 1', areAllActive('1', host.servers));
  const path = join(host.dataDir, manifestPath('ctr', '1'));
  const whole = readFileSync(path, 'utf8');
  const layer = getBaseLayer(await host.repository.readManifest('ctr', '1'), 0);
  const flipped = layer.sha256.replace(/^./, (digit) => (digit === '0' ? '1' : '0'));
  for (const text of [whole.slice(0, 100), whole.replace(layer.sha256, flipped)]) {
    writeFileSync(path, text);
    host.servers[0]?.restart();
    await waitFor('again at 1', areAllActive('1', host.servers));
    assert.equal(readFileSync(path, 'utf8'), whole);
  }
  await running.kill();
  writeFileSync(path, whole.replace(layer.sha256, flipped));
  host.servers[0]?.restart();
  startAgent(t, host);
  await waitFor('a new agent too', areAllActive('1', host.servers));
  assert.equal(readFileSync(path, 'utf8'), whole);
});

test('a missing channel is reported and removes nothing', async (t) => {
  const host = await createHost(t, 1);
  for (const version of ['1', '2']) {
    await publish(host, { version, table: version, shardNum: 1 });
    await host.repository.activate('ctr', 'stable', { version, ...AUDIT });
  }
  const running = startAgent(t, host);
  await waitFor('at 2', areAllActive('2', host.servers));
  await waitFor('1 is held too', () => host.servers[0]?.loaded.join() === '1,2');
  renameSync(join(host.location, 'ctr/channels'), join(host.location, 'ctr/gone'));
  // A read that is in progress while the folder moves is reported as a failed read first.
  const isMissing = /channel stable of ctr is missing in .* pointed to 2/;
  await waitFor('reported', () =>
    running.lines.some(
      ({ msg, error }) => msg === 'cannot read channel stable' && isMissing.test(String(error)),
    ),
  );
  assert.deepEqual(host.servers[0]?.loaded, ['1', '2']);
});

test('unsaved state is reported once, and resolved when it can be saved', async (t) => {
  const host = await createHost(t, 1);
  await publish(host, { version: '1', shardNum: 1 });
  mkdirSync(join(host.dataDir, 'ctr'), { recursive: true });
  const notes = join(host.dataDir, 'ctr/agent');
  writeFileSync(notes, 'in the way');
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const running = startAgent(t, host);
  await waitFor('at 1', areAllActive('1', host.servers));
  await waitFor('reported', () => running.messages().includes('cannot save the agent state'));
  rmSync(notes);
  // The folder exists before the file in it does.
  const state = join(notes, 'stable.json');
  await waitFor(
    'written',
    async () =>
      !/^PROBLEM /m.test(await readProblems(host)) &&
      existsSync(state) &&
      !readFileSync(state, 'utf8').includes('save-state'),
  );
});

test('a channel that points to a version without a manifest changes nothing', async (t) => {
  const host = await createHost(t, 2);
  await publish(host, { version: '1' });
  await publish(host, { version: '2', table: 'b' });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const running = startAgent(t, host);
  await waitFor('all at 1', areAllActive('1', host.servers));
  const manifest = join(host.location, manifestPath('ctr', '2'));
  await host.repository.activate('ctr', 'stable', { version: '2', ...AUDIT });
  await waitFor('all at 2', areAllActive('2', host.servers));
  await publish(host, { version: '3', table: 'c' });
  renameSync(manifest.replace('/2/', '/3/'), `${manifest}.away`);
  writeFileSync(
    join(host.location, 'ctr/channels/stable/0000000003.json'),
    JSON.stringify({ version: '3', at: '', by: 'hand', reason: 'by hand' }),
  );
  await waitFor('reported', () => running.messages().includes('cannot read the manifest of 3'));
  assert.ok(areAllActive('2', host.servers)() === true);
  renameSync(`${manifest}.away`, manifest.replace('/2/', '/3/'));
  await waitFor('all at 3', areAllActive('3', host.servers));
});

test('a damaged channel entry is reported and changes nothing', async (t) => {
  const host = await createHost(t, 1);
  await publish(host, { version: '1', shardNum: 1 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const running = startAgent(t, host);
  await waitFor('at 1', areAllActive('1', host.servers));
  writeFileSync(join(host.location, 'ctr/channels/stable/0000000002.json'), '{"version":');
  await waitFor('reported', () => running.messages().includes('cannot read channel stable'));
  const line = running.lines.find(({ msg }) => msg === 'cannot read channel stable');
  assert.match(String(line?.['error']), /0000000002\.json: not JSON/);
  assert.deepEqual(host.servers[0]?.loaded, ['1']);
});

test('a first start without a repository fails with instructions', async (t) => {
  const folder = temporaryFolder(t);
  const { code, stderr } = await runAgentCommand(
    'run',
    ...toArguments({
      repository: join(folder, 'none'),
      bundle: 'ctr',
      dataDir: join(folder, 'data'),
      server: '127.0.0.1:2',
    }),
  );
  assert.equal(code, 1);
  assert.match(stderr, /^cube-agent: no repository at .*none: no such folder/);
});
