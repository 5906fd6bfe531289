/** The links, paths and commands of the documentation exist. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { RULES, toAnchor, type World } from './docs.ts';

const root = join(import.meta.dirname, '..', '..', '..');
const skipped = /^(node_modules|dist|work|\.git)$/;

const readPage = (path: string): string => readFileSync(join(root, path), 'utf8');

function listPaths(): Set<string> {
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

const helpTexts = new Map<string, string | undefined>();

function readHelp(program: string, command: string | undefined): string | undefined {
  const main = join(root, 'dist', program, 'main.js');
  const key = `${program} ${command ?? ''}`;
  if (!helpTexts.has(key)) {
    const args = [main, ...(command === undefined ? [] : command.split(' ')), '--help'];
    let { status, stdout } = spawnSync(process.execPath, args, { encoding: 'utf8' });
    if (/^ {2}--help-all /m.test(stdout)) {
      const all = [...args.slice(0, -1), '--help-all'];
      ({ status, stdout } = spawnSync(process.execPath, all, { encoding: 'utf8' }));
    }
    // A program shows its own help for a word that is not one of its commands.
    const hasNoCommand = command === undefined || !/\nCommands:\n/.test(stdout);
    const isHelpOfCommand = hasNoCommand || new RegExp(`^Usage: \\S+ ${command} `).test(stdout);
    helpTexts.set(key, existsSync(main) && status === 0 && isHelpOfCommand ? stdout : undefined);
  }
  return helpTexts.get(key);
}

const paths = listPaths();
const world: World = {
  paths,
  anchors: (page) => {
    if (!page.endsWith('.md') || !paths.has(page)) return undefined;
    return new Set(
      [...readPage(page).matchAll(/^#+ (.+)$/gm)].map(([, title = '']) => toAnchor(title)),
    );
  },
  help: readHelp,
};

test('the links, paths and commands of every page exist', () => {
  const pages = [...paths].filter((path) => path.endsWith('.md'));
  assert.ok(pages.length > 10, `only ${pages.length} pages found`);
  const complaints = pages.flatMap((page) =>
    Object.values(RULES).flatMap((rule) => rule(page, readPage(page), world)),
  );
  assert.deepEqual(complaints, []);
});

test('each rule finds its canaries and accepts correct text', () => {
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
  const correct = [
    '[a](../README.md#tools) `lib/core/json.ts` `json.ts` `lib/core/` `out/tables/` [b](adr/)',
    'node dist/cube-agent/main.js activate --reason first',
    '```sh\ncube-agent fleet drain --data h:1\nkubectl get pods --all\n```',
  ].join('\n');
  for (const rule of Object.values(RULES)) {
    assert.deepEqual(rule('docs/canary.md', correct, world), []);
  }
});
