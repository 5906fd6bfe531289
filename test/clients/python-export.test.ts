/** Tables that the Python package writes are built into shards and looked up. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { test } from 'node:test';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { runCommand } from '../support/commands.ts';

const PACKAGE = join(import.meta.dirname, '../../../clients/python/src');
/** Two tables of 16 and 32-bit floats, one with keys, as buffers of the standard library. */
const EXPORT = `
import struct, sys
sys.path.insert(0, sys.argv[1])
from hypercube import write_features, write_npy_tables, write_safetensors

def array(code, shape, values):
    data = bytearray(struct.pack(f"<{len(values)}{code}", *values))
    return memoryview(data).cast(code, shape) if len(shape) > 1 else memoryview(data).cast(code)

user = array("f", [3, 2], [1.5, -2, 3, 4, 5, 6.25])
tables = {"user": user, "item": array("f", [2, 1], [0.5, -0.25])}
keys = {"item": array("Q", [2], [2**64 - 1, 17])}
write_npy_tables(sys.argv[2] + "/npy", tables, keys)
write_safetensors(sys.argv[2] + "/tables.safetensors", tables, keys)
write_features(sys.argv[2] + "/features.json", [{"name": "user", "index": 0}], modulo=1000)
for wrong in [{"a/b": tables["user"]}, {"flat": keys["item"]}]:
    try:
        write_npy_tables(sys.argv[2] + "/wrong", wrong)
        sys.exit("accepted")
    except ValueError:
        pass
`;
const hasPython = spawnSync('python3', ['--version']).status === 0;

async function seek(folder: string, bundle: string, table: string, key: string): Promise<string> {
  const { code, stdout, stderr } = await runCommand(
    'tools/cube-cli/main.js',
    'seek',
    key,
    '--table',
    table,
    '--json',
    '--repository',
    join(folder, 'repository'),
    '--bundle',
    bundle,
    '--version',
    '1',
  );
  assert.equal(code, 0, stderr);
  return stdout;
}

test('tables that the Python package writes are built and looked up', {
  skip: !hasPython && 'not on the PATH: python3',
}, async (t) => {
  const folder = temporaryFolder(t);
  const { status, stderr } = spawnSync('python3', ['-B', '-c', EXPORT, PACKAGE, folder]);
  assert.equal(status, 0, String(stderr));
  const inputs = { npy: 'npy', safetensors: 'tables.safetensors' };
  for (const [bundle, input] of Object.entries(inputs)) {
    const built = await runCommand(
      'tools/cube-builder/main.js',
      '--input',
      join(folder, input),
      '--bundle',
      bundle,
      '--cur-version',
      '1',
      '--shard-num',
      '2',
      '--output-path',
      join(folder, 'repository'),
    );
    assert.equal(built.code, 0, built.stderr);
    assert.match(await seek(folder, bundle, 'user', '2'), /5,\s*6\.25/);
    assert.match(await seek(folder, bundle, 'item', '18446744073709551615'), /0\.5/);
    assert.match(await seek(folder, bundle, 'item', '17'), /-0\.25/);
  }
});
