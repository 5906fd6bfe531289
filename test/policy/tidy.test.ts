/** The sources keep the rules of tidy.ts, and every dependency is documented. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { test } from 'node:test';
import { RULES } from './tidy.ts';

const root = join(import.meta.dirname, '..', '..', '..');
const folders = ['lib', 'proto', 'cube-server', 'cube-agent', 'serving', 'tools', 'test', 'bench'];

function listSources(): string[] {
  return folders
    .flatMap((folder) => readdirSync(join(root, folder), { recursive: true, withFileTypes: true }))
    .filter((entry) => entry.isFile() && entry.name.endsWith('.ts'))
    .map((entry) => relative(root, join(entry.parentPath, entry.name)).replaceAll('\\', '/'))
    .filter((path) => !path.includes('/generated/') && !path.includes('/assembly/'));
}

test('the sources keep every rule', () => {
  const paths = listSources();
  assert.ok(paths.length > 20, `only ${paths.length} sources found`);
  const complaints = paths.flatMap((path) => {
    const text = readFileSync(join(root, path), 'utf8');
    return Object.values(RULES).flatMap((rule) => rule(path, text));
  });
  assert.deepEqual(complaints, []);
});

test('each rule finds its canary', () => {
  const canaries: Record<string, string> = {
    shortFunctions: `function long() {\n${'  call();\n'.repeat(70)}}\n`,
    noSpreadLiterals: 'const x = { a: 1, ...{ b: 2 } };\n',
    assertsOnlyIndexes: '/** Canary. */\nexport const x = map.get(key)!;\n',
    opensWithPurpose: 'export const x = 1;\n',
    platformOnly: "import { readFileSync } from 'node:fs';\n",
    noLeftovers: `// ${'TO' + 'DO'}: later\n`,
    noShell: "spawn('ls', { shell: true });\n",
    noSuites: `import { ${'des' + 'cribe'}, test } from 'node:test';\n`,
  };
  assert.deepEqual(Object.keys(canaries).sort(), Object.keys(RULES).sort());
  for (const [name, text] of Object.entries(canaries)) {
    assert.equal(RULES[name]?.('lib/core/canary.ts', text).length, 1, name);
  }
});

test('docs/dependencies.md lists every dependency', () => {
  const { dependencies, devDependencies } = JSON.parse(
    readFileSync(join(root, 'package.json'), 'utf8'),
  );
  const page = readFileSync(join(root, 'docs', 'dependencies.md'), 'utf8');
  const missing = Object.keys({ ...dependencies, ...devDependencies }).filter(
    (name) => !page.includes(`\`${name}\``),
  );
  assert.deepEqual(missing, []);
});
