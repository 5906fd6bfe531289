import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { keyToBigint } from '../../lib/core/keys.ts';
import { verifyLayerFile } from '../../lib/store/layer-check.ts';
import { readLayerRows, writeLayer } from '../../lib/store/layer-file.ts';
import { readAll, readDeleted, rowsAsHex } from './any-layer.ts';
import { ChainMemory } from './chain-memory.ts';
import { GOLDEN_FOLDER, GOLDEN_KINDS, GOLDEN_LAYERS, goldenInput } from './golden.ts';
import { rowOf, temporaryFolder, writeTable } from './layers.ts';

for (const { file, layout, table } of GOLDEN_LAYERS) {
  const path = join(GOLDEN_FOLDER, file);

  test(`${file} is read`, () => {
    const { header, rows } = verifyLayerFile(path, { deep: true });
    assert.equal(header.layout, layout);
    assert.equal(header.table, table.name);
    assert.deepEqual(
      [header.dim, header.shardIndex, header.shardNum, rows],
      [table.dim, table.shardIndex, table.shardNum, table.keys.length],
    );
    const read = new Map<bigint, Float32Array>();
    for (const batch of readLayerRows(path)) {
      const floats = new Float32Array(batch.rows.slice().buffer);
      for (let i = 0; i < batch.count; i++) {
        const row = floats.slice(i * table.dim, (i + 1) * table.dim);
        read.set(keyToBigint(batch.keys, i), row);
      }
    }
    assert.deepEqual(read.size, table.keys.length);
    for (const key of table.keys) assert.deepEqual(read.get(key), rowOf(key, table.dim));
  });

  test(`${file} comes out of the builder byte for byte`, (context) => {
    const written = writeTable(temporaryFolder(context), table);
    assert.deepEqual(readFileSync(written.path), readFileSync(path));
  });
}

for (const golden of GOLDEN_KINDS) {
  const { file, layout, table, layer, parent } = golden;
  const path = join(GOLDEN_FOLDER, file);

  test(`${file} is read, looked up, and comes out of the builder byte for byte`, (context) => {
    const { header, rows, deleted } = verifyLayerFile(path, { deep: true });
    assert.deepEqual(
      [header.layout, header.dtype, header.dim, header.kind, rows, deleted],
      [
        ...[layout, table.dtype, table.dim, parent === undefined ? 'base' : 'delta'],
        ...[layer.keys.length, layer.deleted.length],
      ],
    );
    const expected = rowsAsHex(table, layer);
    assert.deepEqual(readAll(path), expected);
    assert.deepEqual(readDeleted(path), new Set(layer.deleted));
    for (const kind of ['wasm', 'twin'] as const) {
      const probes = [...layer.keys, ...layer.deleted, 123n];
      const answers = probes.map((key) => expected.get(key));
      assert.deepEqual(new ChainMemory([path], kind).lookup(probes), answers);
    }
    const folder = temporaryFolder(context);
    const written = writeLayer(goldenInput(golden), (id) => join(folder, `${id}.cube`));
    assert.deepEqual(readFileSync(written.path), readFileSync(path));
  });
}
