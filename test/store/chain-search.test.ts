/**
 * Searches of layer files on disk, compared with a Map: random chains of every layout and dtype.
 */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { test } from 'node:test';
import fc from 'fast-check';
import { computeShard } from '../../lib/core/keys.ts';
import { ChainSearch, getFoundRow } from '../../lib/store/chain-search.ts';
import {
  type AnyChain,
  arbitraryChain,
  toExpectedRows,
  writeChain,
} from './support/arbitrary-chain.ts';
import { createLayerPath, packKeys, temporaryFolder } from './support/layers.ts';

function listPaths(folder: string, chain: AnyChain): string[] {
  const [table] = writeChain(folder, chain).tables;
  assert.ok(table);
  const shard = table.shards[chain.table.shardIndex]!;
  return shard.map(({ contentId }) => createLayerPath(folder)('t', contentId));
}

test('every key of random chains is found with its newest row, or not', (t) => {
  const folder = temporaryFolder(t);
  fc.assert(
    fc.property(arbitraryChain(3), (chain) => {
      const map = toExpectedRows(chain);
      const search = new ChainSearch(listPaths(folder, chain));
      const { shardNum, shardIndex } = chain.table;
      const keys = packKeys(chain.probes);
      const searched = search.find(keys);
      const rows = search.read(searched);
      chain.probes.forEach((key, i) => {
        const expected = map.get(key);
        assert.equal(searched.layers[i] !== 0, expected !== undefined, `key ${key}`);
        assert.deepEqual(new Uint8Array(getFoundRow(rows, i)), expected ?? new Uint8Array(0));
        const gone = chain.layers.findLastIndex(
          (layer) => layer.keys.includes(key) || layer.deleted.includes(key),
        );
        const isDeleted = gone >= 0 && chain.layers[gone]!.deleted.includes(key);
        assert.equal(searched.deletedBy[i], isDeleted ? gone + 1 : 0);
        assert.equal(computeShard(keys[2 * i]!, keys[2 * i + 1]!, shardNum), shardIndex);
      });
      const newest = search.find(keys, chain.layers.length - 1);
      chain.probes.forEach((key, i) => {
        const { keys: own, deleted } = chain.layers.at(-1)!;
        assert.equal(newest.isDecided(i), own.includes(key) || deleted.includes(key));
      });
      search.close();
    }),
    { numRuns: 60 },
  );
});

test('a damaged block fails only the searches that touch it', (t) => {
  const folder = temporaryFolder(t);
  fc.assert(
    fc.property(arbitraryChain(0), fc.nat(), (chain, place) => {
      fc.pre(chain.layers[0]!.keys.length > 0);
      const [path] = listPaths(folder, chain);
      assert.ok(path);
      const bytes = readFileSync(path);
      const flipped = Buffer.from(bytes);
      flipped[4096 + (place % (bytes.length - 4096))]! ^= 1;
      writeFileSync(path, flipped);
      try {
        assert.throws(
          () => {
            const search = new ChainSearch([path]);
            try {
              search.read(search.find(packKeys(chain.layers[0]!.keys)));
            } finally {
              search.close();
            }
          },
          { code: 'CORRUPT' },
        );
      } finally {
        writeFileSync(path, bytes);
      }
    }),
    { numRuns: 30 },
  );
});
