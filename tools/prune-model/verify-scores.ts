/**
 * The verification from raw rows (--expect): scores of the files that were written, compared with
 * those of the trained model. It includes what is outside the graph: hashing and scaling.
 */
import { join } from 'node:path';
import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import { keyToBigint } from '../../lib/core/keys.ts';
import { type LookupGroup, OUTCOME_HIT, OUTCOME_UNSEEN } from '../../lib/core/lookup-group.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { decodeNpy } from '../../lib/core/npy.ts';
import type { PrunedTable, SlotSpec } from '../../lib/core/slots.ts';
import {
  compareScores,
  readExpectedScores,
  type ScoreComparison,
} from '../../lib/features/expected-scores.ts';
import { RowScorer } from '../../lib/features/row-scorer.ts';
import { fileExists, readFile } from '../../lib/platform/files.ts';
import { DATA_FILE, getKeysPath, MODEL_FILE } from './cut/output-folder.ts';
import { openTables, type TableRowReader } from './cut/verification.ts';

/** @throws CubeError INVALID_ARGUMENT when a score differs by more than the tolerance */
export async function verifyExpectedScores(
  folder: string,
  spec: SlotSpec,
  { scores, tolerance }: { readonly scores: string; readonly tolerance: number },
): Promise<ScoreComparison> {
  const dataPath = join(folder, DATA_FILE);
  const data = fileExists(dataPath) ? new Map([[DATA_FILE, readFile(dataPath)]]) : new Map();
  const graph = { model: readFile(join(folder, MODEL_FILE)), data };
  const readers = openTables(folder, spec);
  try {
    const tables = new Map(
      spec.tables.map((table) => [table.name, openLookup(folder, table, readers.get(table.name))]),
    );
    const scorer = await RowScorer.load({
      spec,
      graph,
      manifest: describeTables(spec),
      fillRows: (group) => requireDefined(tables.get(group.table), 'the rows of a table')(group),
    });
    try {
      return await compareScores(scorer, readExpectedScores(scores, scorer.features), tolerance);
    } finally {
      await scorer.release();
    }
  } finally {
    for (const reader of readers.values()) reader.close();
  }
}

export function rejectExpectedScores(path: string): never {
  throw new CubeError(
    'UNSUPPORTED',
    `--expect runs the pruned model with onnxruntime, which cannot run the Paddle program ` +
      `${path}; convert it with --to onnx`,
  );
}

/** The tables as a version without stored rows has them: default rows of zeros. */
function describeTables({ tables, features }: SlotSpec): Manifest {
  return {
    bundle: 'the pruned',
    version: 'model',
    files: [],
    hash: features?.hash ?? { scheme: 'raw', seed: 0n, modulo: 0n },
    slots: features?.slots ?? [],
    tables: tables.map(({ name, dim, dtype, rows }) => {
      return { name, dim, dtype, rows, defaultRow: [], shardNum: 1, shards: [[]] };
    }),
  };
}

/** Looks keys up in a table file: by row number, or by the keys file beside it. */
function openLookup(
  folder: string,
  { name, keyed = false }: PrunedTable,
  reader: TableRowReader | undefined,
): (group: LookupGroup) => void {
  if (reader === undefined) {
    throw new CubeError(
      'UNSUPPORTED',
      `--expect needs the rows of table ${name}, which are not in the model; verify the version ` +
        'that contains them: cube-builder --expect',
    );
  }
  const findRow = keyed
    ? readRowNumbers(getKeysPath(folder, name))
    : (key: bigint): number | undefined => (key < BigInt(reader.rows) ? Number(key) : undefined);
  return ({ keys, count, rows, outcomes }) => {
    rows.fill(0, 0, count * reader.dim);
    for (let i = 0; i < count; i++) {
      const row = findRow(keyToBigint(keys, i));
      outcomes[i] = row === undefined ? OUTCOME_UNSEEN : OUTCOME_HIT;
      if (row !== undefined) reader.copyRow(row, rows, i * reader.dim);
    }
  };
}

function readRowNumbers(path: string): (key: bigint) => number | undefined {
  const { data } = decodeNpy(readFile(path), path);
  const rows = new Map<bigint, number>();
  for (let row = 0; row < data.length; row++) {
    rows.set(BigInt.asUintN(64, BigInt(data[row] ?? 0)), row);
  }
  return (key) => rows.get(key);
}
