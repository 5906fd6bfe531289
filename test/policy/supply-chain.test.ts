/** The packages have known licences, checksums and no script that runs; and canaries. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

const root = join(import.meta.dirname, '..', '..', '..');

interface Lock {
  readonly packages: Record<string, object>;
}

const { findProblems } = (await import(join(root, 'tools/dev/supply-chain.mjs'))) as {
  findProblems: (lock: Lock, npmrc: string) => string[];
};
const lock = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8')) as Lock;
const npmrc = readFileSync(join(root, '.npmrc'), 'utf8');

test('every package has an accepted licence and a checksum, and runs no script', () => {
  assert.deepEqual(findProblems(lock, npmrc), []);
});

test('another licence, a script, a missing checksum and a run of scripts are found', () => {
  const integrity = 'sha512-x';
  const packages = {
    '': {},
    'node_modules/a': { license: 'AGPL-3.0', integrity },
    'node_modules/b/node_modules/c': { integrity },
    'node_modules/d': { license: 'MIT', integrity, hasInstallScript: true },
    'node_modules/e': { license: 'MIT' },
    'node_modules/argparse': { license: 'Python-2.0', integrity },
  };
  assert.deepEqual(findProblems({ packages }, ''), [
    '.npmrc: ignore-scripts=true is missing',
    'a: licence AGPL-3.0',
    'c: licence unknown',
    'd: has an install script',
    'e: has no SHA-512 checksum',
    'argparse: licence Python-2.0',
  ]);
});
