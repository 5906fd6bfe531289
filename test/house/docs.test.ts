/** The documentation says what is there: links, files and commands. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { anchorOf, RULES, type World } from './docs.ts';

const root = join(import.meta.dirname, '..', '..', '..');
const skipped = /^(node_modules|dist|work|\.git)$/;

const text = (path: string): string => readFileSync(join(root, path), 'utf8');

function tree(): Set<string> {
  const paths = new Set<string>();
  const walk = (folder: string): void => {
    for (const entry of readdirSync(join(root, folder), { withFileTypes: true })) {
      if (folder === '' && skipped.test(entry.name)) continue;
      const path = folder === '' ? entry.name : `${folder}/${entry.name}`;
      paths.add(path);
      if (entry.isDirectory()) walk(path);
    }
  };
  walk('');
  return paths;
}

const helps = new Map<string, string | undefined>();

function help(program: string, command: string | undefined): string | undefined {
  const main = join(root, 'dist', program, 'main.js');
  const key = `${program} ${command ?? ''}`;
  if (!helps.has(key)) {
    const args = [main, ...(command === undefined ? [] : command.split(' ')), '--help'];
    const { status, stdout } = spawnSync(process.execPath, args, { encoding: 'utf8' });
    // For a word that is none of its commands a program shows its own help.
    const isWord = command === undefined || !/\nCommands:\n/.test(stdout);
    const isMeant = isWord || new RegExp(`^Usage: \\S+ ${command} `).test(stdout);
    helps.set(key, existsSync(main) && status === 0 && isMeant ? stdout : undefined);
  }
  return helps.get(key);
}

const paths = tree();
const world: World = {
  paths,
  anchors: (page) => {
    if (!page.endsWith('.md') || !paths.has(page)) return undefined;
    return new Set([...text(page).matchAll(/^#+ (.+)$/gm)].map(([, title]) => anchorOf(title!)));
  },
  help,
};

test('links, paths and commands of every page are right', () => {
  const pages = [...paths].filter((path) => path.endsWith('.md'));
  assert.ok(pages.length > 10, `only ${pages.length} pages found`);
  const complaints = pages.flatMap((page) =>
    Object.values(RULES).flatMap((rule) => rule(page, text(page), world)),
  );
  assert.deepEqual(complaints, []);
});

test('each rule bites, and passes what is right', () => {
  const canaries: Readonly<Record<string, readonly string[]>> = {
    links: ['[a](nowhere.md)', '[a](../README.md#no-such-heading)', '[a](#nothing)'],
    namedPaths: ['`lib/core/nothing.ts`', '`nothing-at-all.ts`', '`lib/nothing/`'],
    commands: [
      'node dist/tools/nothing/main.js --help',
      '    node dist/serving/main.js --no-such-flag 1',
      'node dist/tools/cube-builder/main.js \\\n  --shard 1',
      'node dist/cube-agent/main.js activate --poll-ms 1',
    ],
    installed: [
      '```sh\ncube-agent nothing --help\n```',
      '```sh\ncube-agent fleet drain --poll-ms 1\n```',
      '```sh\ncube-server --shard 0 \\\n  --no-such-flag\n```',
    ],
  };
  assert.deepEqual(Object.keys(canaries).sort(), Object.keys(RULES).sort());
  for (const [name, texts] of Object.entries(canaries)) {
    for (const canary of texts) {
      assert.equal(RULES[name]?.('docs/canary.md', canary, world).length, 1, canary);
    }
  }
  const right = [
    '[a](../README.md#the-tools) `lib/core/json.ts` `json.ts` `lib/core/` `out/tables/` [b](adr/)',
    'node dist/cube-agent/main.js activate --reason first',
    '```sh\ncube-agent fleet drain --data h:1\nkubectl get pods --all\n```',
  ].join('\n');
  for (const rule of Object.values(RULES)) {
    assert.deepEqual(rule('docs/canary.md', right, world), []);
  }
});
