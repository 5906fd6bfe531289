/** Builds `dist/`: the WebAssembly kernels first (they become a generated module), then the TypeScript. */
import { spawnSync } from 'node:child_process';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import asc from 'assemblyscript/asc';

const root = join(dirname(fileURLToPath(import.meta.url)), '..', '..');
const assembly = join(root, 'lib', 'core', 'kernels', 'assembly');
const generated = join(root, 'lib', 'core', 'kernels', 'generated');

/** Compiles assembly/kernels.ts to a module that exports its bytes as base64, so that lib/core needs no I/O. */
async function buildKernels() {
  const { error, stderr } = await asc.main([
    join(assembly, 'kernels.ts'),
    '--outFile',
    join(generated, 'kernels.wasm'),
    '--config',
    join(assembly, 'asconfig.json'),
  ]);
  if (error) throw new Error(`kernels: ${error.message}\n${stderr}`);
  const bytes = readFileSync(join(generated, 'kernels.wasm'));
  const text = [
    '// Generated from lib/core/kernels/assembly by tools/house/build.mjs.',
    `export const KERNELS_WASM_BASE64: string =\n  '${bytes.toString('base64')}';`,
    '',
  ].join('\n');
  writeFileSync(join(generated, 'kernels.ts'), text);
}

/** gRPC's reflection reads the .proto files of what runs. */
function copyProtos() {
  const isProto = (name) => name.endsWith('.proto');
  const target = join(root, 'dist', 'proto');
  for (const name of readdirSync(target).filter(isProto)) rmSync(join(target, name));
  for (const name of readdirSync(join(root, 'proto')).filter(isProto)) {
    copyFileSync(join(root, 'proto', name), join(target, name));
  }
}

/** Removes outputs whose source is gone: a deleted test must not run from an old build. */
function removeOrphans(folder) {
  for (const entry of readdirSync(join(root, 'dist', folder), { withFileTypes: true })) {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) {
      if (existsSync(join(root, path))) removeOrphans(path);
      else rmSync(join(root, 'dist', path), { recursive: true });
    } else if (/\.(js|js\.map|d\.ts)$/.test(entry.name)) {
      const source = path.replace(/\.(js|js\.map|d\.ts)$/, '.ts');
      if (!existsSync(join(root, source))) rmSync(join(root, 'dist', path));
    }
  }
}

mkdirSync(generated, { recursive: true });
mkdirSync(join(root, 'dist'), { recursive: true });
await buildKernels();
const tsc = join(root, 'node_modules', 'typescript', 'bin', 'tsc');
const { status } = spawnSync(process.execPath, [tsc, '-p', root], { cwd: root, stdio: 'inherit' });
if (status !== 0) process.exit(1);
removeOrphans('.');
copyProtos();
