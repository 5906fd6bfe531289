/** The import rules of .dependency-cruiser.cjs hold, and each finds its canary. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';

const root = join(import.meta.dirname, '..', '..', '..');
const folder = mkdtempSync(join(tmpdir(), 'hypercube-imports-'));
after(() => rmSync(folder, { recursive: true, force: true }));

function checkImports(cwd: string, ...paths: string[]): { status: number | null; output: string } {
  const bin = join(root, 'node_modules', 'dependency-cruiser', 'bin', 'dependency-cruise.mjs');
  const result = spawnSync(
    process.execPath,
    [bin, '--config', join(root, '.dependency-cruiser.cjs'), ...paths],
    { cwd, encoding: 'utf8' },
  );
  return { status: result.status, output: result.stdout + result.stderr };
}

/** Writes a separate source tree, in which each canary breaks exactly one rule. */
function writeTree(files: Record<string, string>): void {
  cpSync(join(root, 'tsconfig.json'), join(folder, 'tsconfig.json'));
  writeFileSync(join(folder, 'package.json'), '{"type":"module"}');
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(join(folder, path, '..'), { recursive: true });
    writeFileSync(join(folder, path), text);
  }
}

test('each import rule finds its canary', () => {
  writeTree({
    'lib/platform/disk.ts': 'export const disk = 1;\n',
    'lib/core/upward.ts': "import { disk } from '../platform/disk.ts';\nexport const x = disk;\n",
    'lib/core/impure.ts': "import { join } from 'node:path';\nexport const x = join;\n",
    'serving/one.ts': 'export const one = 1;\n',
    'serving/models/model.ts': 'export const model = 1;\n',
    'serving/config/upward.ts':
      "import { model } from '../models/model.ts';\nexport const x = model;\n",
    'cube-agent/other.ts': "import { one } from '../serving/one.ts';\nexport const x = one;\n",
    'cube-agent/host/status.ts': 'export const status = 1;\n',
    'cube-agent/cube/upward.ts':
      "import { status } from '../host/status.ts';\nexport const x = status;\n",
    'tools/first/a.ts': "import { b } from '../second/b.ts';\nexport const x = b;\n",
    'tools/second/b.ts': 'export const b = 1;\n',
    'tools/ctr-client/load/run.ts': 'export const run = 1;\n',
    'tools/ctr-client/rows/upward.ts':
      "import { run } from '../load/run.ts';\nexport const x = run;\n",
    'lib/rpc/lost.ts': "import { x } from './nowhere.ts';\nexport const y = x;\n",
    'lib/store/model.ts': "import * as ort from 'onnxruntime-node';\nexport const x = ort;\n",
    'proto/cycle-a.ts': "import { b } from './cycle-b.ts';\nexport const a = () => b;\n",
    'proto/cycle-b.ts': "import { a } from './cycle-a.ts';\nexport const b = () => a;\n",
  });
  symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'));
  const { status, output } = checkImports(folder, 'lib', 'serving', 'cube-agent', 'tools', 'proto');
  assert.notEqual(status, 0);
  const violations = [
    'layer: lib/core: lib/core/upward.ts',
    'pure: no packages: lib/core/impure.ts',
    'never in imports: cube-agent/other.ts',
    'never in imports: tools/first/a.ts',
    'inside cube-agent: cube: cube-agent/cube/upward.ts',
    'inside serving: config: serving/config/upward.ts',
    'inside tools/ctr-client: rows: tools/ctr-client/rows/upward.ts',
    'every import resolves: lib/rpc/lost.ts',
    'imported in one place: lib/store/model.ts',
    'no cycles: proto/cycle-a.ts',
  ];
  for (const line of violations) assert.ok(output.includes(line), `${line}\n${output}`);
});

test('the whole project keeps the import rules', () => {
  const { status, output } = checkImports(
    root,
    'lib',
    'proto',
    'cube-server',
    'cube-agent',
    'serving',
    'tools',
    'bench',
    'test',
  );
  assert.equal(status, 0, output);
  const modules = Number(/\((\d+) modules/.exec(output)?.[1]);
  assert.ok(modules > 30, output);
});
