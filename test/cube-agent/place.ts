/** A repository and a host's data folder, and versions that cube-builder made: what real servers can load. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { temporaryFolder } from '../repository/fixtures.ts';
import { type TableWish, writePruned } from '../tools/cube-builder/fixtures.ts';
import { runCommand } from './processes.ts';

export { freePort } from '../platform/free-port.ts';

const TABLES: readonly TableWish[] = [
  { name: 't', rows: 5000, dim: 10 },
  { name: 'few', rows: 1, dim: 3 },
];

export interface Place {
  readonly folder: string;
  readonly repository: string;
  readonly dataDir: string;
}

export function makePlace(t: TestContext): Place {
  const folder = temporaryFolder(t);
  return { folder, repository: join(folder, 'repository'), dataDir: join(folder, 'data') };
}

/** Builds and publishes. Other rows give another table. */
export async function build(
  { folder, repository }: Place,
  version: string,
  wish: { rows?: number; shardNum?: number } = {},
): Promise<void> {
  const { rows = 5000, shardNum = 2 } = wish;
  const tables = TABLES.map((table) => (table.name === 't' ? { ...table, rows } : table));
  const input = writePruned(join(folder, `out-${version}`), tables, `graph ${version}`);
  const { code, stderr } = await runCommand(
    'tools/cube-builder/main.js',
    ...['--input', input, '--output-path', repository, '--bundle', 'ctr'],
    ...['--shard-num', String(shardNum), '--cur-version', version],
  );
  assert.equal(code, 0, stderr);
}
