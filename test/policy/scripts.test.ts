/** The npm scripts prepare what they run themselves, because .npmrc turns hooks off. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

/** Complaints about the scripts of a package.json. */
function checkScripts(scripts: Readonly<Record<string, string>>): string[] {
  return Object.entries(scripts).flatMap(([name, command]) => {
    const isHook = /^(pre|post)/.test(name);
    const isUnprepared =
      /\bdist\/|\btest\.mjs|\bpack\b/.test(command) &&
      !command.startsWith('node tools/dev/prepare.mjs');
    return [
      ...(isHook ? [`${name} is a hook`] : []),
      ...(isUnprepared ? [`${name} runs what may not be built`] : []),
    ];
  });
}

test('packages are installed without their scripts, and our scripts need no hooks', () => {
  // onnxruntime-node's script downloads CUDA libraries, and fails where there is no network.
  assert.match(readFileSync('.npmrc', 'utf8'), /^ignore-scripts=true$/m);
  const { scripts } = JSON.parse(readFileSync('package.json', 'utf8'));
  assert.ok(Object.keys(scripts).includes('start'));
  assert.deepEqual(checkScripts(scripts), []);
});

test('hooks and scripts without a build are found', () => {
  const scripts = { prestart: 'x', start: 'node dist/main.js', format: 'biome check' };
  assert.deepEqual(checkScripts(scripts), [
    'prestart is a hook',
    'start runs what may not be built',
  ]);
});
