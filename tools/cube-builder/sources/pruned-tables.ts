/**
 * Opens the tables that prune-model wrote: `tables/<table>.npy` for each table of slots.json, and
 * `tables/<table>.keys.npy` if its rows have keys.
 */
import { join } from 'node:path';
import { CubeError } from '../../../lib/core/errors.ts';
import { JsonReader } from '../../../lib/core/json.ts';
import { readSlotSpec } from '../../../lib/core/slots.ts';
import { fileExists, readText } from '../../../lib/platform/files.ts';
import type { TableArrays } from './array-source.ts';
import { openFile } from './input-file.ts';
import { openNpyFile } from './npy-file.ts';

/** @throws CubeError if a table is missing or differs from slots.json */
export async function openPrunedTables(folder: string): Promise<TableArrays[]> {
  const slotsPath = join(folder, 'slots.json');
  const { tables } = readSlotSpec(JsonReader.parseFile(readText(slotsPath), slotsPath));
  const found: TableArrays[] = [];
  for (const { name, rows: count, dim } of tables) {
    const path = join(folder, 'tables', `${name}.npy`);
    const keysPath = join(folder, 'tables', `${name}.keys.npy`);
    const file = openFile(path);
    const keysFile = fileExists(keysPath) ? openFile(keysPath) : undefined;
    const rows = await openNpyFile(file);
    if (rows.shape.length !== 2 || rows.shape[0] !== count || rows.shape[1] !== dim) {
      throw new CubeError(
        'CORRUPT',
        `${path}: shape (${rows.shape.join(', ')}), but slots.json says (${count}, ${dim}); ` +
          'prune the model again',
      );
    }
    const keys = keysFile && (await openNpyFile(keysFile));
    found.push({ name, rows, keys, files: keysFile === undefined ? [file] : [file, keysFile] });
  }
  return found;
}
