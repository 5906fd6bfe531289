import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { FrameDecoder, readCorrelationId } from '../../proto/baidu-std.ts';
import { seekFloat } from './support/cube-commands.ts';
import { DataFolder } from './support/data-folder.ts';
import { killServers, ServerProcess } from './support/server-process.ts';

/** Cube's commands over baidu_std, in handmade frames with the command as attachment. */
const folder = new DataFolder();
const flags = ['--shard', '0', '--shard-num', '1', '--data-dir', folder.path];
const TOKEN = 'a token of some length';

before(() => {
  for (const version of ['1', '2']) {
    const value = (key: bigint): number => Number(key) + 1000 * Number(version);
    const tables = [{ name: 'dict', dim: 4, keys: [1n, 5n], value }];
    folder.write({ bundle: 'cube', version, shardNum: 1, tables });
  }
});

after(() => {
  killServers();
  folder.remove();
});

interface CmdCall {
  readonly body: unknown;
  readonly authentication?: string;
  readonly service?: string;
}

const bytesField = (tag: number, text: string): Buffer =>
  Buffer.from([tag, Buffer.byteLength(text), ...Buffer.from(text)]);

function createFrame({ body, authentication, service = 'ControlService' }: CmdCall): Buffer {
  const names = [bytesField(0x0a, service), bytesField(0x12, 'cmd')];
  const attachment = Buffer.from(typeof body === 'string' ? body : JSON.stringify(body));
  const bytes = attachment.length;
  const meta = Buffer.concat([
    bytesField(0x0a, Buffer.concat(names).toString()),
    Buffer.from([0x20, 7, 0x28, (bytes & 0x7f) | 0x80, ((bytes >> 7) & 0x7f) | 0x80, bytes >> 14]),
    ...(authentication === undefined ? [] : [bytesField(0x3a, authentication)]),
  ]);
  const head = Buffer.alloc(12);
  head.write('PRPC');
  head.writeUInt32BE(meta.length + bytes, 4);
  head.writeUInt32BE(meta.length, 8);
  return Buffer.concat([head, meta, attachment]);
}

/** @returns "ok" and the attachment, or the error's number and text */
async function send(socket: Socket, call: CmdCall): Promise<[string | number, string]> {
  const decoder = new FrameDecoder();
  const answered = new Promise<[string | number, string]>((resolve, reject) => {
    const onData = (chunk: Buffer): void => {
      decoder.push(chunk);
      if (!decoder.next()) return;
      socket.off('data', onData);
      const { bytes, attachmentStart, attachmentEnd, errorCode, errorText } = decoder.frame;
      assert.equal(readCorrelationId(decoder.frame), 7);
      const text = Buffer.from(bytes.subarray(attachmentStart, attachmentEnd)).toString();
      resolve(errorCode === 0 ? ['ok', text] : [errorCode, errorText]);
    };
    socket.on('data', onData);
    socket.once('close', () => reject(new Error('the server closed the connection')));
  });
  socket.write(createFrame(call));
  return answered;
}

async function run(address: string, call: CmdCall): Promise<[string | number, string]> {
  const socket = connect(Number(address.split(':')[1]), '127.0.0.1');
  try {
    return await send(socket, call);
  } finally {
    socket.destroy();
  }
}

test('commands work as over HTTP; a failure is an error frame', async () => {
  const server = await ServerProcess.start(flags);
  const cmd = (body: unknown) => run(server.address, { body });
  const reload = { cmd: 'reload_base', version_path: '/1' };
  assert.deepEqual(
    await run(server.address, { body: reload, service: 'rec.mcube.ControlService' }),
    ['ok', 'null'],
  );
  assert.deepEqual(await cmd({ cmd: 'bg_load_base', version_path: '/2' }), ['ok', 'null']);
  const [, status] = await cmd({ cmd: 'status' });
  assert.deepEqual(JSON.parse(status), { cur_version: '1', bg_version: '2', status: 0 });
  assert.equal(status, JSON.stringify(JSON.parse(status), null, 4));
  assert.deepEqual(await cmd({ cmd: 'bg_switch' }), ['ok', 'null']);
  assert.equal(await seekFloat(server.address, 5), 2005);
  for (const [body, code, text] of [
    [{ cmd: 'reload_base', version_path: '/3' }, 1001, /\/3\//],
    [
      { cmd: 'enable', version: '9' },
      3001,
      /neither the current version \(2\) nor the background version \(1\)/,
    ],
    [{ cmd: 'pop' }, 1002, /unknown cmd "pop"/],
    ['', 1003, /command/],
    ['{', 1003, /command/],
    [{ cmd: 'bg_load_base', version_path: `/${'😀'.repeat(9)}` }, 1003, /version_path/],
    [{ cmd: 'x'.repeat(70_000) }, 1003, /at most 65536/],
  ] as const) {
    const [answered, reason] = await cmd(body);
    assert.equal(answered, code, reason);
    assert.match(reason, text);
  }
  assert.equal(await seekFloat(server.address, 5), 2005);
  const metrics = await (await fetch(`http://${server.address}/metrics`)).text();
  const labels = 'protocol="baidu_std",service="rec.mcube.ControlService",method="cmd"';
  assert.match(metrics, new RegExp(`hypercube_requests_total\\{${labels}\\} 11`));
  assert.equal((await server.stop()).code, 0);
});

test('commands need the token, in authentication_data, once per connection', async () => {
  const tokenFile = join(folder.path, 'token');
  writeFileSync(tokenFile, TOKEN);
  const server = await ServerProcess.start([...flags, '--control-token-file', tokenFile]);
  const body = { cmd: 'reload_base', version_path: '/1' };
  for (const authentication of [undefined, '', TOKEN, `Bearer ${TOKEN}!`]) {
    const [code] = await run(server.address, {
      body,
      ...(authentication === undefined ? {} : { authentication }),
    });
    assert.equal(code, 1004, authentication);
  }
  const socket = connect(server.port, '127.0.0.1');
  assert.equal((await send(socket, { body }))[0], 1004);
  const authentication = `Bearer ${TOKEN}`;
  assert.deepEqual(await send(socket, { body, authentication }), ['ok', 'null']);
  assert.equal((await send(socket, { body: { cmd: 'status' } }))[0], 'ok');
  assert.equal((await send(socket, { body, authentication: 'Bearer other' }))[0], 1004);
  assert.equal((await send(socket, { body: { cmd: 'status' } }))[0], 1004);
  socket.destroy();
  assert.equal((await server.stop()).code, 0);
});

test('with an admin port commands are answered only there', async () => {
  const server = await ServerProcess.start([...flags, '--admin-port', '0']);
  const admin = await server.logged(/"adminAddress":"([^"]+)"/);
  const body = { cmd: 'reload_base', version_path: '/1' };
  const [code, text] = await run(server.address, { body });
  assert.equal(code, 1004);
  assert.match(text, /admin port/);
  assert.deepEqual(await run(admin, { body }), ['ok', 'null']);
  assert.equal(await seekFloat(server.address, 1), 1001);
  assert.equal((await server.stop()).code, 0);
});
