/** Sources and pages keep the rules of language: width, vocabulary, names. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { test } from 'node:test';
import { LANGUAGE_RULES } from './language.ts';

const root = join(import.meta.dirname, '..', '..', '..');
const skipped = /^(node_modules|dist|work|data|\.git)(\/|$)|\/(generated|node_modules)\//;

/** Every source and page; the list of retired words itself is left out. */
function findTexts(): string[] {
  return readdirSync(root, { withFileTypes: true })
    .filter((top) => !skipped.test(top.name))
    .flatMap((top) =>
      top.isDirectory()
        ? readdirSync(join(root, top.name), { recursive: true, withFileTypes: true })
        : [top],
    )
    .filter((entry) => entry.isFile() && /\.(ts|mjs|md)$/.test(entry.name))
    .map((entry) => relative(root, join(entry.parentPath, entry.name)).replaceAll('\\', '/'))
    .filter((path) => !skipped.test(path) && !/^test\/policy\/language\./.test(path));
}

test('every source and page keeps the rules of language', () => {
  const paths = findTexts();
  assert.ok(paths.length > 500, `only ${paths.length} texts found`);
  const complaints = paths.flatMap((path) => {
    const text = readFileSync(join(root, path), 'utf8');
    return Object.values(LANGUAGE_RULES).flatMap((rule) => rule(path, text));
  });
  assert.deepEqual(complaints, []);
});

const CANARIES: Readonly<Record<string, readonly (readonly [string, string])[]>> = {
  sourceWidth: [['lib/core/canary.ts', `// ${'x'.repeat(98)}\n`]],
  pageWidth: [['docs/canary.md', `${'word '.repeat(21)}\n`]],
  plainWords: [
    ['lib/core/canary.ts', 'function addCtrDoor() {}\n'],
    ['lib/core/canary.ts', 'interface VersionWish {}\n'],
    ['lib/core/canary.ts', 'const sickness = 1;\n'],
    ['lib/core/canary.ts', 'class Lanes {}\n'],
    ['lib/core/canary.ts', "const deed = 'x';\n"],
    ['docs/canary.md', 'A version is condemned.\n'],
    ['docs/canary.md', 'The kernel and its twin.\n'],
    ['docs/canary.md', 'It has a namesake.\n'],
    ['docs/canary.md', 'The house rules.\n'],
    ['docs/canary.md', 'Its surroundings.\n'],
    ['lib/core/canary.ts', 'placeToGo();\n'],
    ['docs/canary.md', 'Whoever comes.\n'],
    ['docs/canary.md', 'A rollout is under way.\n'],
    ['lib/core/canary.ts', '/** Of the first channel. */\n'],
    ['docs/canary.md', 'So long rows wait.\n'],
  ],
  verbsFirst: [
    ['lib/core/canary.ts', 'function rowsOf() {}\n'],
    ['lib/core/canary.ts', 'const rowsOf = () => 1;\n'],
  ],
};

test('each rule of language finds its canaries', () => {
  assert.deepEqual(Object.keys(CANARIES).sort(), Object.keys(LANGUAGE_RULES).sort());
  for (const [name, canaries] of Object.entries(CANARIES)) {
    for (const [path, text] of canaries) {
      assert.equal(LANGUAGE_RULES[name]?.(path, text).length, 1, `${name}: ${text}`);
    }
  }
});

test('what the rules exempt passes', () => {
  const page = `\`\`\`\n${'x'.repeat(120)}\n\`\`\`\n| ${'x'.repeat(120)} |\n[a](${'x'.repeat(120)}.md)\n`;
  assert.deepEqual(LANGUAGE_RULES['pageWidth']?.('docs/canary.md', page), []);
  const source = `// https://example.org/${'x'.repeat(120)}\n`;
  assert.deepEqual(LANGUAGE_RULES['sourceWidth']?.('lib/core/canary.ts', source), []);
});
