/**
 * onnxruntime must not report usage: with telemetry it would leave a cache in the temporary folder.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';

const root = join(import.meta.dirname, '..', '..', '..');
const folder = mkdtempSync(join(tmpdir(), 'hypercube-telemetry-'));
after(() => rmSync(folder, { recursive: true, force: true }));

/** Loads the demo model in another process. @returns files it left in its temporary folder */
function leftovers(variables: Record<string, string>): string[] {
  const script = `
    import { readFileSync } from 'node:fs';
    const { OnnxModel } = await import(process.argv[1]);
    const model = await OnnxModel.load(readFileSync(process.argv[2]));
    await model.release();`;
  const { CI: _, ORT_DISABLE_TELEMETRY: __, ...env } = process.env;
  const onnx = join(root, 'dist', 'lib', 'platform', 'onnx.js');
  const demo = join(root, 'data', 'demo', 'model.onnx');
  const { status, stderr } = spawnSync(
    process.execPath,
    ['--input-type=module', '--eval', script, onnx, demo],
    { env: { ...env, ...variables, TMPDIR: folder, HOME: folder }, encoding: 'utf8' },
  );
  assert.equal(status, 0, stderr);
  return readdirSync(folder);
}

test('a loaded model leaves no files behind', () => {
  assert.deepEqual(leftovers({}), []);
});
