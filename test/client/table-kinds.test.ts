/**
 * The client with our own server over a real socket: lookups and seeks in tables of every dtype,
 * compared with a Map.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeClient } from '../../lib/client/cube-client.ts';
import { CubeDictClient } from '../../lib/client/dict-client.ts';
import { OUTCOME_HIT } from '../../lib/core/lookup-group.ts';
import type { TableDtype } from '../../lib/core/manifest.ts';
import { arbitraryChain, computeExpected } from '../store/support/arbitrary-chain.ts';
import { packKeys } from '../store/support/layers.ts';
import { serveChain } from './support/chain-server.ts';

const chains = fc
  .sample(arbitraryChain(2), { numRuns: 400, seed: 11 })
  .filter(({ table, probes }) => table.shardNum === 1 && probes.length > 10);

function hex(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('hex');
}

/** Formats rows as hex; default rows are marked. */
function readRows(
  rows: Float32Array | Uint8Array,
  outcomes: Uint8Array,
  elements: number,
): string[] {
  return Array.from(outcomes, (outcome, i) => {
    const row = rows.slice(i * elements, (i + 1) * elements);
    const text = hex(new Uint8Array(row.buffer, row.byteOffset, row.byteLength));
    return outcome === OUTCOME_HIT ? text : `default: ${text}`;
  });
}

for (const dtype of ['f32', 'f16', 'bf16', 'i8'] satisfies TableDtype[]) {
  test(`${dtype}: rows as f32 and as stored`, async (context) => {
    const chain = chains.find(({ table }) => table.dtype === dtype)!;
    const { manifest, fleet } = await serveChain(context, chain);
    const client = new CubeClient({ fleet: () => fleet });
    context.after(() => client.close());
    const { dim } = chain.table;
    const keys = packKeys(chain.probes);
    const count = chain.probes.length;
    const outcomes = new Uint8Array(count);
    const rows = new Float32Array(count * dim);
    await client.lookup(manifest, [{ table: 't', keys, count, rows, outcomes }], 20_000);
    assert.deepEqual(readRows(rows, outcomes, dim), computeExpected(chain, chain.probes, true));
    const stored = new Uint8Array(count * 4 * (dim + 1));
    const group = { table: 't', keys, count, rows: stored, outcomes };
    const summary = await client.lookupStored(manifest, [group], 20_000);
    const [as] = summary.groups;
    assert.ok(as);
    assert.equal(as.dtype, dtype);
    assert.deepEqual(
      readRows(stored, outcomes, as.rowBytes),
      computeExpected(chain, chain.probes, false),
    );
  });
}

test('bytes: lookups and seeks of too many values are split', async (context) => {
  const chain = chains.find(({ table }) => table.dtype === 'bytes')!;
  const { manifest, fleet } = await serveChain(context, chain);
  const client = new CubeClient({ fleet: () => fleet });
  const dicts = new CubeDictClient({ fleet: () => fleet });
  context.after(() => {
    client.close();
    dicts.close();
  });
  const probes = Array.from({ length: 2_000 }, (_, i) => chain.probes[i % chain.probes.length]!);
  const keys = packKeys(probes);
  const outcomes = new Uint8Array(probes.length);
  const group = { table: 't', keys, count: probes.length, outcomes };
  const found = await client.lookupValues(manifest, [group], 20_000);
  const sought = await dicts.seek('test', keys, { timeoutMs: 20_000 });
  for (const [{ values, ends }, of] of [
    [found.values[0]!, outcomes],
    [sought, sought.outcomes],
  ] as const) {
    const texts = probes.map((_, i) =>
      of[i] === OUTCOME_HIT ? hex(values.slice(i === 0 ? 0 : ends[i - 1]!, ends[i]!)) : undefined,
    );
    assert.deepEqual(texts, computeExpected(chain, probes, false));
  }
  assert.ok(client.stats().requests > 1 && dicts.stats().requests > 1);
});

test('the loaded versions that a server reports are recorded', async (context) => {
  const chain = chains.find(({ table }) => table.dtype === 'f32')!;
  const { manifest, fleet } = await serveChain(context, chain);
  const client = new CubeClient({ fleet: () => fleet });
  context.after(() => client.close());
  const { loaded, missing } = await client.checkLoaded({ ...manifest, version: '2' }, 5_000);
  assert.equal(loaded, false, missing);
  assert.deepEqual(client.stats().replicas[0]?.versions, ['test/1']);
});
