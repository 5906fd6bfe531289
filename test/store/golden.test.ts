import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { keyToBigint } from '../../lib/core/keys.ts';
import { verifyLayerFile } from '../../lib/store/layer-check.ts';
import { readLayerRows, writeLayer } from '../../lib/store/layer-file.ts';
import { formatExpectedRows, readAllRows, readDeleted } from './support/arbitrary-layer.ts';
import { ChainModel } from './support/chain-memory.ts';
import { createGoldenInput, GOLDEN_FOLDER, GOLDEN_KINDS, GOLDEN_LAYERS } from './support/golden.ts';
import { createRow, temporaryFolder, writeTable } from './support/layers.ts';

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
    for (const key of table.keys) assert.deepEqual(read.get(key), createRow(key, table.dim));
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
        layout,
        table.dtype,
        table.dim,
        parent === undefined ? 'base' : 'delta',
        layer.keys.length,
        layer.deleted.length,
      ],
    );
    const expected = formatExpectedRows(table, layer);
    assert.deepEqual(readAllRows(path), expected);
    assert.deepEqual(readDeleted(path), new Set(layer.deleted));
    for (const kind of ['wasm', 'portable'] as const) {
      const probes = [...layer.keys, ...layer.deleted, 123n];
      const answers = probes.map((key) => expected.get(key));
      assert.deepEqual(new ChainModel([path], kind).lookup(probes), answers);
    }
    const folder = temporaryFolder(context);
    const written = writeLayer(createGoldenInput(golden), (id) => join(folder, `${id}.cube`));
    assert.deepEqual(readFileSync(written.path), readFileSync(path));
  });
}
