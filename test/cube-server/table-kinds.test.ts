import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import { DictService } from '../../cube-server/dict-service.ts';
import { LoadedVersions } from '../../cube-server/loaded-versions.ts';
import { LookupService } from '../../cube-server/lookup-service.ts';
import { DEFAULT_SERVER_LIMITS } from '../../lib/core/limits.ts';
import type { TableDtype } from '../../lib/core/manifest.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { Channel } from '../../lib/rpc/channel.ts';
import { HttpServer } from '../../lib/rpc/http-server.ts';
import { OnePortServer } from '../../lib/rpc/one-port-server.ts';
import { RpcRoutes } from '../../lib/rpc/rpc-routes.ts';
import { ResidentStore } from '../../lib/store/resident-store.ts';
import { DICT_METHOD, DICT_SERVICE } from '../../proto/dict.ts';
import {
  bitmapBytes,
  decodeLookupResponse,
  decodeValues,
  encodeLookupRequest,
  LOOKUP_METHOD,
  LOOKUP_SERVICE,
} from '../../proto/lookup.ts';
import { WireReader, WireWriter } from '../../proto/wire.ts';
import {
  type AnyChain,
  arbitraryChain,
  computeExpected,
  writeChain,
} from '../store/support/arbitrary-chain.ts';
import { createLayerPath, packKeys, temporaryFolder } from '../store/support/layers.ts';

const DTYPES: readonly TableDtype[] = ['f32', 'f16', 'bf16', 'i8', 'bytes'];

/** Services over a real socket, with a store of one version. */
async function serve(context: TestContext, chain: AnyChain, rowsOnDisk: boolean): Promise<Channel> {
  const folder = temporaryFolder(context);
  const { shardIndex, shardNum } = chain.table;
  const store = new ResidentStore({ budgetBytes: 64 << 20, rowsOnDisk });
  const manifest = writeChain(folder, chain);
  await store.load({ manifest, shardIndex, layerPath: createLayerPath(folder) });
  const held = new LoadedVersions({ shardIndex, shardNum, clock: systemClock });
  held.add(store.version('test', '1')!);
  held.activate({ bundle: 'test', version: '1' });
  const limits = DEFAULT_SERVER_LIMITS;
  const logger = createLogger('test', { level: 'silent' });
  const routes = new RpcRoutes();
  routes.add(LOOKUP_SERVICE, LOOKUP_METHOD, new LookupService(held, limits).handleFrame);
  routes.add(DICT_SERVICE, DICT_METHOD, new DictService(held, limits, undefined).handleFrame);
  const http = new HttpServer(limits, logger);
  const server = new OnePortServer({ routes, http, limits, logger });
  const channel = new Channel(await server.listen('127.0.0.1', 0));
  context.after(async () => {
    channel.close();
    await Promise.all([server.stop(), store.close()]);
  });
  return channel;
}

type Answered = (string | undefined)[];
const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');

async function lookup(
  channel: Channel,
  { table }: AnyChain,
  keys: readonly bigint[],
  rowsAs: number,
): Promise<Answered> {
  const { shardIndex, shardNum } = table;
  const groups = [{ table: 't', count: keys.length }];
  const head = encodeLookupRequest({
    bundle: 'test',
    version: '',
    shardIndex,
    shardNum,
    groups,
    rowsAs,
  });
  const packed = new Uint8Array(packKeys(keys).buffer);
  const answer = await channel.call(LOOKUP_SERVICE, LOOKUP_METHOD, head, packed, 20_000);
  const { dtype, rowBytes, count, hits, bytes } = decodeLookupResponse(answer.payload).groups[0]!;
  assert.equal(count, keys.length);
  assert.equal(dtype, rowsAs === 1 && table.dtype !== 'bytes' ? 'f32' : table.dtype);
  const rowsAt = bitmapBytes(count);
  assert.equal(answer.attachment.length, rowsAt + Math.ceil(bytes / 8) * 8);
  const part = answer.attachment.subarray(rowsAt, rowsAt + bytes);
  const isFound = (i: number): boolean => ((answer.attachment[i >> 3]! >> (i & 7)) & 1) === 1;
  assert.equal(keys.filter((_, i) => isFound(i)).length, hits);
  if (dtype !== 'bytes') {
    return keys.map((_, i) => {
      const row = hex(part.subarray(i * rowBytes, (i + 1) * rowBytes));
      return isFound(i) ? row : `default: ${row}`;
    });
  }
  const { ends, values } = decodeValues(part, count);
  return keys.map((_, i) =>
    isFound(i) ? hex(values.subarray(i === 0 ? 0 : ends[i - 1], ends[i])) : undefined,
  );
}

async function seek(channel: Channel, keys: readonly bigint[]): Promise<Answered> {
  const writer = new WireWriter();
  for (const key of keys) writer.uint(1, key);
  const nothing = new Uint8Array(0);
  const answer = await channel.call(DICT_SERVICE, DICT_METHOD, writer.finish(), nothing, 20_000);
  const reader = new WireReader(answer.payload);
  const values: Answered = [];
  while (reader.next()) {
    const value = reader.message();
    value.next();
    const missing = value.uint32() !== 0;
    value.next();
    const bytes = hex(value.view());
    values.push(missing ? undefined : bytes);
  }
  return values;
}

const chains = fc.sample(arbitraryChain(2), { numRuns: 80, seed: 11 });

for (const dtype of DTYPES) {
  test(`${dtype}: lookups and seeks of a table in memory and on disk`, async (context) => {
    const chain = chains.find((one) => one.table.dtype === dtype && one.layers.length > 1)!;
    const right = computeExpected(chain, chain.probes, false) as Answered;
    const rightF32 = computeExpected(chain, chain.probes, true) as Answered;
    assert.ok(
      right.some((answer) => answer?.startsWith('default') !== true),
      'some are found',
    );
    const values = rightF32.map((row) => (row?.startsWith('default') ? undefined : row));
    for (const rowsOnDisk of [false, true]) {
      const channel = await serve(context, chain, rowsOnDisk);
      assert.deepEqual(await lookup(channel, chain, chain.probes, 0), right);
      assert.deepEqual(await lookup(channel, chain, chain.probes, 1), rightF32);
      assert.deepEqual(await seek(channel, chain.probes), values);
      assert.deepEqual(await lookup(channel, chain, [], 1), []);
    }
  });
}

test('a very large lookup is answered in slices, and a small one overtakes it', async (context) => {
  const chain = chains.find((one) => one.table.dtype === 'i8' && one.table.shardNum === 1)!;
  const channel = await serve(context, chain, false);
  const many = Array.from({ length: 300_000 }, (_, i) => chain.probes[i % chain.probes.length]!);
  const right = computeExpected(chain, chain.probes, true) as Answered;
  const order: string[] = [];
  const large = lookup(channel, chain, many, 1).then((answer) => {
    order.push('large');
    return answer;
  });
  const small = lookup(channel, chain, chain.probes, 1).then((answer) => {
    order.push('small');
    return answer;
  });
  assert.deepEqual(await small, right);
  assert.ok((await large).every((row, i) => row === right[i % right.length]));
  const found = right.map((row) => (row!.startsWith('default') ? undefined : row));
  assert.deepEqual(order, ['small', 'large']);
  assert.ok((await seek(channel, many)).every((row, i) => row === found[i % found.length]));
});
