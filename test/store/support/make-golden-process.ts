/** Writes the files of data/golden/*.cube that are not there: one that is never changes. */
import { existsSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import type { LayerInput } from '../../../lib/core/layer-input.ts';
import { writeLayer } from '../../../lib/store/layer-file.ts';
import { createGoldenInput, GOLDEN_FOLDER, GOLDEN_KINDS, GOLDEN_LAYERS } from './golden.ts';
import { createRow, packKeys } from './layers.ts';

function make(file: string, input: LayerInput): void {
  if (existsSync(join(GOLDEN_FOLDER, file))) return;
  const written = writeLayer(input, (contentId) => join(GOLDEN_FOLDER, `${contentId}.cube`));
  renameSync(written.path, join(GOLDEN_FOLDER, file));
}

for (const { file, table } of GOLDEN_LAYERS) {
  const rows = Float32Array.from(table.keys.flatMap((key) => [...createRow(key, table.dim)]));
  const { name, dim, shardIndex, shardNum } = table;
  make(file, {
    table: name,
    dtype: 'f32',
    dim,
    shardIndex,
    shardNum,
    keys: packKeys(table.keys),
    rows: new Uint8Array(rows.buffer),
  });
}
for (const golden of GOLDEN_KINDS) make(golden.file, createGoldenInput(golden));
