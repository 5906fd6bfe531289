/** Writes data/golden/*.cube. Only for a new format version: the files of an old one never change. */
import { renameSync } from 'node:fs';
import { join } from 'node:path';
import { writeLayer } from '../../lib/store/layer-file.ts';
import { GOLDEN_FOLDER, GOLDEN_LAYERS } from './golden.ts';
import { packKeys, rowOf } from './layers.ts';

for (const { file, table } of GOLDEN_LAYERS) {
  const rows = Float32Array.from(table.keys.flatMap((key) => [...rowOf(key, table.dim)]));
  const { name, dim, shardIndex, shardNum } = table;
  const written = writeLayer(
    {
      ...{ table: name, dtype: 'f32', dim, shardIndex, shardNum, keys: packKeys(table.keys) },
      rows: new Uint8Array(rows.buffer),
    },
    (contentId) => join(GOLDEN_FOLDER, `${contentId}.cube`),
  );
  renameSync(written.path, join(GOLDEN_FOLDER, file));
}
