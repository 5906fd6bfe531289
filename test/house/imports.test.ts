import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';

const root = join(import.meta.dirname, '..', '..', '..');
const folder = mkdtempSync(join(tmpdir(), 'hypercube-imports-'));
after(() => rmSync(folder, { recursive: true, force: true }));

function cruise(cwd: string, ...paths: string[]): { status: number | null; output: string } {
  const bin = join(root, 'node_modules', 'dependency-cruiser', 'bin', 'dependency-cruise.mjs');
  const result = spawnSync(
    process.execPath,
    [bin, '--config', join(root, '.dependency-cruiser.cjs'), ...paths],
    { cwd, encoding: 'utf8' },
  );
  return { status: result.status, output: result.stdout + result.stderr };
}

/** A tree of its own with one file in each place, so that each canary breaks exactly one rule. */
function plant(files: Record<string, string>): void {
  cpSync(join(root, 'tsconfig.json'), join(folder, 'tsconfig.json'));
  writeFileSync(join(folder, 'package.json'), '{"type":"module"}');
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(join(folder, path, '..'), { recursive: true });
    writeFileSync(join(folder, path), text);
  }
}

test('the import guard bites', () => {
  plant({
    'lib/platform/disk.ts': 'export const disk = 1;\n',
    'lib/core/upward.ts': "import { disk } from '../platform/disk.ts';\nexport const x = disk;\n",
    'lib/core/impure.ts': "import { join } from 'node:path';\nexport const x = join;\n",
    'serving/one.ts': 'export const one = 1;\n',
    'cube-agent/other.ts': "import { one } from '../serving/one.ts';\nexport const x = one;\n",
    'tools/first/a.ts': "import { b } from '../second/b.ts';\nexport const x = b;\n",
    'tools/second/b.ts': 'export const b = 1;\n',
    'lib/rpc/lost.ts': "import { x } from './nowhere.ts';\nexport const y = x;\n",
    'lib/store/model.ts': "import * as ort from 'onnxruntime-node';\nexport const x = ort;\n",
    'proto/cycle-a.ts': "import { b } from './cycle-b.ts';\nexport const a = () => b;\n",
    'proto/cycle-b.ts': "import { a } from './cycle-a.ts';\nexport const b = () => a;\n",
  });
  symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'));
  const { status, output } = cruise(folder, 'lib', 'serving', 'cube-agent', 'tools', 'proto');
  assert.notEqual(status, 0);
  const broken = [
    'layer: lib/core: lib/core/upward.ts',
    'pure: no packages: lib/core/impure.ts',
    'never in imports: cube-agent/other.ts',
    'never in imports: tools/first/a.ts',
    'every import resolves: lib/rpc/lost.ts',
    'imported in one place: lib/store/model.ts',
    'no cycles: proto/cycle-a.ts',
  ];
  for (const line of broken) assert.ok(output.includes(line), `${line}\n${output}`);
});

test('the import guard looks at the whole project', () => {
  const { status, output } = cruise(
    root,
    ...['lib', 'proto', 'cube-server', 'cube-agent', 'serving', 'tools', 'bench', 'test'],
  );
  assert.equal(status, 0, output);
  const modules = Number(/\((\d+) modules/.exec(output)?.[1]);
  assert.ok(modules > 30, output);
});
