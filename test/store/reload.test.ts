import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import {
  createManifest,
  type TestTable,
  tableRef,
  temporaryFolder,
  writeTable,
} from './support/layers.ts';

const MIB = 1 << 20;

test('a hundred reloads keep RSS flat, and the worker lets the process exit', (context) => {
  const folder = temporaryFolder(context);
  // Versions of different sizes: 14, 15 and 17 MiB.
  const manifests = [200_000, 215_000, 240_000].map((count, version) => {
    const keys = Array.from({ length: count }, (_, i) => BigInt(i) * BigInt(i));
    const table: TestTable = { name: 't', dim: 12, shardIndex: 0, shardNum: 1, keys };
    return createManifest(String(version), [
      tableRef(table, writeTable(folder, table, { salt: version })),
    ]);
  });
  const file = join(folder, 'manifests.json');
  const plain = manifests.map((manifest) => ({ ...manifest, hash: {} }));
  writeFileSync(file, JSON.stringify(plain));
  const script = fileURLToPath(new URL('./support/reload-process.js', import.meta.url));
  const output = execFileSync(process.execPath, [script, folder, file], { encoding: 'utf8' });
  const { rssAfterWarmUp, rss, memory } = JSON.parse(output);
  assert.ok(
    rss - rssAfterWarmUp < 32 * MIB,
    `RSS went from ${rssAfterWarmUp} to ${rss} bytes (pool: ${JSON.stringify(memory)})`,
  );
  assert.ok(memory.usedBytes + memory.pooledBytes < 64 * MIB, JSON.stringify(memory));
});
