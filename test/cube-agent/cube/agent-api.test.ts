/** The calls that Cube's cube-transfer makes to an agent, and that the replies are true. */
import assert from 'node:assert/strict';
import { existsSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { freePort } from '../../platform/support/free-port.ts';
import { waitFor } from '../../support/processes.ts';
import { AUDIT, areAllActive, createHost, publish, startAgent } from '../support/host.ts';

interface Reply {
  readonly http: number;
  readonly code: string | null;
  readonly success: string;
  readonly message: string;
  readonly data?: unknown;
}

async function ask(url: string, init?: RequestInit): Promise<Reply> {
  const response = await fetch(url, init);
  const json = (await response.json()) as Reply;
  return { ...json, http: response.status, code: response.headers.get('x-hypercube-code') };
}

const send = (url: string, body: unknown): Promise<Reply> =>
  ask(`${url}/agent/cmd`, {
    method: 'POST',
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });

/** As cube-transfer sends it. */
const work = (command: string, version: string, more: object = {}): object => ({
  command,
  dict_name: 'ctr',
  shard_seq: 0,
  deploy_path: '/ssd2/cube_open',
  version,
  depend: version,
  id: version,
  key: version,
  mode: 'base',
  port: '8000',
  source: 'http://10.0.0.1:8098/out/1_1/ctr_part0.tar',
  ...more,
});

test('download, reload and enable succeed once done and report what is missing', async (t) => {
  const host = await createHost(t, 1);
  await publish(host, { version: '1', shardNum: 1 });
  await publish(host, { version: '1_2', table: 'b', shardNum: 1 });
  const address = `127.0.0.1:${await freePort()}`;
  const url = `http://${address}`;
  startAgent(t, host, host.servers, '--listen', address);
  await waitFor('answers', async () => (await fetch(`${url}/healthz`).catch(() => undefined))?.ok);
  const status = await ask(`${url}/agent/status`);
  assert.deepEqual(status, {
    http: 200,
    code: null,
    success: '0',
    message: 'query ok',
    data: { status: 'RUNNING', version: '3.0.0.1' },
  });
  await waitFor('the server answers', async () => {
    const { message } = await send(url, work('download', '1'));
    return /no channel \(.*\) points to version 1/.test(message) || message;
  });
  const early = await send(url, work('enable', '1'));
  assert.deepEqual([early.http, early.success, early.code], [200, '255', 'NOT_READY']);
  assert.match(early.message, /activate the version of channel stable, which is none/);
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  for (const command of ['download', 'reload', 'enable']) {
    await waitFor(command, async () => {
      const { success, message } = await send(url, work(command, '1'));
      return success === '0' || message;
    });
  }
  assert.deepEqual(areAllActive('1', host.servers)(), true);
  // A patch is named by its base and itself, as the directories of Cube are.
  await host.repository.activate('ctr', 'stable', { version: '1_2', ...AUDIT });
  await waitFor('the patch', async () => {
    const { success, message } = await send(url, work('enable', '2', { depend: '1' }));
    return success === '0' || message;
  });
  assert.equal((await send(url, work('enable', '1'))).success, '255', 'it is no longer active');
  await host.repository.rollback('ctr', 'stable', 'me', 'worse');
  rmSync(join(host.dataDir, 'ctr/versions/1_2'), { recursive: true, force: true });
  await waitFor('quarantined', async () => {
    const { code, message } = await send(url, work('download', '2', { depend: '1' }));
    return code === 'CONFLICT' || code === null || message;
  });
});

test('hostile commands are refused with a reason and never executed', async (t) => {
  const host = await createHost(t, 1);
  const address = `127.0.0.1:${await freePort()}`;
  const url = `http://${address}`;
  startAgent(t, host, host.servers, '--listen', address);
  await waitFor('its server is known', async () => {
    const response = await fetch(`${url}/agent/v1/status`).catch(() => undefined);
    return (await response?.text())?.includes('"shardIndex":0');
  });
  const mark = join(host.folder, 'run');
  const shell = `1; touch ${mark}`;
  const cases: readonly [unknown, string, RegExp][] = [
    [work('download', shell), 'INVALID_ARGUMENT', /version: expected a name/],
    [work('enable', '1', { depend: '$(reboot)' }), 'INVALID_ARGUMENT', /expected a name/],
    [work('reload', '../../etc/passwd'), 'INVALID_ARGUMENT', /expected a name/],
    [work('reload', '1', { dict_name: '`reboot`' }), 'NOT_FOUND', /has no bundle "`reboot`"/],
    [work('reload', '1', { dict_name: 7 }), 'INVALID_ARGUMENT', /dict_name: expected/],
    [work('reload', '1', { shard_seq: 5 }), 'NOT_FOUND', /no server of shard 5/],
    [work('reload', '1', { shard_seq: '0;id' }), 'INVALID_ARGUMENT', /shard_seq/],
    [work(shell, '1'), 'UNSUPPORTED', /no command "1; touch/],
    [work('clear', '1'), 'UNSUPPORTED', /removes versions by itself/],
    [work('rollback', '1'), 'UNSUPPORTED', /cube-agent rollback/],
    [work('constructor', '1'), 'UNSUPPORTED', /no command/],
    [work('download', '1', { version: '' }), 'INVALID_ARGUMENT', /version: expected/],
    [{}, 'INVALID_ARGUMENT', /field command is missing/],
    ['', 'INVALID_ARGUMENT', /not JSON/],
    ['[[[[', 'INVALID_ARGUMENT', /not JSON/],
    ['null', 'INVALID_ARGUMENT', /an object/],
  ];
  for (const [body, code, message] of cases) {
    const reply = await send(url, body);
    assert.deepEqual([reply.http, reply.success, reply.code], [200, '255', code], reply.message);
    assert.match(reply.message, message);
  }
  assert.equal(existsSync(mark), false);
  for (const [path, method] of [
    ['cmd', 'GET'],
    ['status', 'POST'],
    ['$(reboot)', 'GET'],
  ] as const) {
    const wrong = await ask(`${url}/agent/${path}`, { method });
    assert.deepEqual([wrong.http, wrong.success, wrong.code], [200, '2', 'UNSUPPORTED']);
  }
  const page = await fetch(`${url}/agent/cmd`, {
    method: 'POST',
    headers: { origin: 'http://evil.example' },
    body: JSON.stringify(work('download', '1')),
  });
  assert.equal(page.status, 403);
  const huge = await fetch(`${url}/agent/cmd`, { method: 'POST', body: 'x'.repeat(1e6) });
  assert.equal(huge.status, 413);
});
