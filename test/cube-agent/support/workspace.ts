/** A repository, a data folder, and versions made by cube-builder that real servers can load. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { runCommand } from '../../support/commands.ts';
import { type TableSpec, writePrunedModel } from '../../tools/cube-builder/support/pruned-model.ts';

export { freePort } from '../../platform/support/free-port.ts';

const TABLES: readonly TableSpec[] = [
  { name: 't', rows: 5000, dim: 10 },
  { name: 'few', rows: 1, dim: 3 },
];

export interface Workspace {
  readonly folder: string;
  readonly repository: string;
  readonly dataDir: string;
}

export function createWorkspace(t: TestContext): Workspace {
  const folder = temporaryFolder(t);
  return { folder, repository: join(folder, 'repository'), dataDir: join(folder, 'data') };
}

/** Builds and publishes a version. Another row count gives another table. */
export async function buildVersion(
  { folder, repository }: Workspace,
  version: string,
  options: { rows?: number; shardNum?: number } = {},
): Promise<void> {
  const { rows = 5000, shardNum = 2 } = options;
  const tables = TABLES.map((table) => (table.name === 't' ? { ...table, rows } : table));
  const input = writePrunedModel(join(folder, `out-${version}`), tables, `graph ${version}`);
  const { code, stderr } = await runCommand(
    'tools/cube-builder/main.js',
    ...toArguments({ input, outputPath: repository, bundle: 'ctr', shardNum, curVersion: version }),
  );
  assert.equal(code, 0, stderr);
}
