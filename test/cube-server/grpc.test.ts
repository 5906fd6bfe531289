import assert from 'node:assert/strict';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { loadSync, type ServiceDefinition } from '@grpc/proto-loader';
import type { CubeServer } from '../../cube-server/server.ts';
import { bitmapBytes, decodeLookupResponse, encodeLookupRequest } from '../../proto/lookup.ts';
import { callReflection, checkGrpcHealth, RawGrpcClient } from '../rpc/support/grpc-client.ts';
import { createServer } from './support/create-server.ts';
import { DataFolder } from './support/data-folder.ts';
import { control } from './support/server-process.ts';

/** Lookups over gRPC. Other tests check the rows; these check the transport. */
const folder = new DataFolder();
const LOOKUP = '/hypercube.LookupService/lookup';
let server: CubeServer;
let address: string;
let port: number;
let client: RawGrpcClient;

before(async () => {
  const keys = Array.from({ length: 100 }, (_, i) => BigInt(i));
  const value = (key: bigint, j: number): number => Number(key) + j;
  folder.write({
    bundle: 'cube',
    version: '1',
    shardNum: 1,
    tables: [{ name: 'table', dim: 2, keys, value }],
  });
  server = createServer(folder.path);
  address = await server.listen({ host: '127.0.0.1', port: 0 });
  port = Number(address.slice(address.lastIndexOf(':') + 1));
  client = new RawGrpcClient(port);
});

after(async () => {
  client.close();
  await server.stop();
  folder.remove();
});

function lookup(keys: readonly bigint[], version = ''): Uint8Array {
  const groups = [{ table: 'table', count: keys.length }];
  const head = { bundle: 'cube', version, shardIndex: 0, shardNum: 1, groups };
  return encodeLookupRequest(head, new Uint8Array(BigUint64Array.from(keys).buffer));
}

/** The found rows, flat. */
function readRows(answer: Uint8Array): number[] {
  const { rows, groups } = decodeLookupResponse(answer);
  assert.ok(rows);
  const start = bitmapBytes(groups[0]!.count);
  return [...new Float32Array(Uint8Array.from(rows.subarray(start)).buffer)];
}

test('not ready, then ready: health, and errors with their codes', async () => {
  assert.equal(await checkGrpcHealth(port, ''), 'NOT_SERVING');
  const early = await client.call(LOOKUP, lookup([1n]));
  assert.notEqual(early.code, 0);
  for (const call of ['load', 'activate']) {
    const reply = await control(address, call, { bundle: 'cube', version: '1' });
    assert.equal(reply.status, 200, JSON.stringify(reply.body));
  }
  assert.equal(await checkGrpcHealth(port, ''), 'SERVING');
  assert.equal(await checkGrpcHealth(port, 'hypercube.LookupService'), 'SERVING');
  const absent = await client.call(LOOKUP, lookup([1n], '7'));
  assert.deepEqual([absent.code, absent.cubeCode], [9, 'VERSION_ABSENT']);
  assert.match(absent.details, /7/);
  const details = { bundle: 'cube', shard: 0, loadedVersions: ['1'], version: '7' };
  assert.deepEqual(JSON.parse(absent.cubeDetails), details);
});

test('packed lookup, one call and a stream of them', async () => {
  const { bytes } = await client.call(LOOKUP, lookup([5n, 1000n, 7n]));
  assert.deepEqual(readRows(bytes), [5, 6, 0, 0, 7, 8]);
  const stream = client.stream('/hypercube.LookupService/lookupStream');
  for (let key = 0n; key < 50n; key++) stream.write(Buffer.from(lookup([key])));
  stream.end();
  let key = 0;
  for await (const answer of stream) {
    assert.deepEqual(readRows(answer as Buffer), [key, key + 1]);
    key++;
  }
  assert.equal(key, 50);
});

test('Cube’s seek', async () => {
  const { bytes } = await client.call(
    '/rec.mcube.DictService/seek',
    Uint8Array.of(8, 1, 8, 200, 1),
  );
  assert.equal(bytes.toString('hex'), '0a0c080012080000803f000000400a0808ffffffff0f1200');
  const refused = await client.call('/rec.mcube.DictService/seek', Uint8Array.of(255, 255));
  assert.deepEqual([refused.code, refused.cubeCode], [3, 'INVALID_ARGUMENT']);
});

test('reflection knows the services and their messages', async () => {
  const list = await callReflection(port, 'v1', { listServices: '*' });
  const names = list.listServicesResponse?.service.map(({ name }) => name).sort();
  assert.deepEqual(names, [
    'grpc.health.v1.Health',
    'hypercube.ControlService',
    'hypercube.LookupService',
    'rec.mcube.DictService',
  ]);
  const { fileDescriptorResponse } = await callReflection(port, 'v1', {
    fileContainingSymbol: 'rec.mcube.DictService',
  });
  assert.ok(fileDescriptorResponse?.fileDescriptorProto[0]?.includes('DictRequest'));
});

test('control over gRPC has the responses, errors and effects of control over HTTP', async () => {
  const path = join(import.meta.dirname, '..', '..', 'proto', 'control.proto');
  const service = loadSync(path, { longs: Number })[
    'hypercube.ControlService'
  ] as ServiceDefinition;
  const call = async (name: string, request: object): Promise<object> => {
    const method = service[name]!;
    const answer = await client.call(method.path, method.requestSerialize(request));
    return answer.code === 0
      ? method.responseDeserialize(answer.bytes)
      : { code: answer.code, ownCode: answer.cubeCode };
  };
  const version = { bundle: 'cube', version: '1' };
  assert.deepEqual({ ...(await call('activate', version)) }, { active: '1' });
  const status = (await call('status', {})) as { bundles: { active: string }[]; pid: number };
  assert.deepEqual([status.bundles[0]?.active, status.pid], ['1', process.pid]);
  assert.deepEqual(await call('unload', { ...version, force: true }), {
    code: 6,
    ownCode: 'CONFLICT',
  });
  assert.deepEqual(await call('load', { bundle: 'cube', version: '9' }), {
    code: 5,
    ownCode: 'NOT_FOUND',
  });
  assert.deepEqual(await call('load', {}), { code: 3, ownCode: 'INVALID_ARGUMENT' });
  const garbage = await client.call('/hypercube.ControlService/load', Buffer.from('ffffff', 'hex'));
  assert.equal(garbage.cubeCode, 'INVALID_ARGUMENT');
  await call('drain', {});
  assert.equal((await client.call(LOOKUP, lookup([1n]))).cubeCode, 'STOPPING');
  await call('undrain', {});
  assert.equal((await client.call(LOOKUP, lookup([1n]))).code, 0);
});
