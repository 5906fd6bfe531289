/** The links, paths and commands of the documentation exist. */
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { runCommand } from '../support/commands.ts';
import { RULES, type Rule, toAnchor, type World } from './docs.ts';

const root = join(import.meta.dirname, '..', '..', '..');
const skipped = /^(node_modules|dist|work|\.git)$/;

interface Page {
  readonly page: string;
  readonly text: string;
}

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

/** A command asked for its help, and the text; undefined when there is no such command. */
const helpTexts = new Map<string, string | undefined>();

async function loadHelp(program: string, command: string | undefined): Promise<string | undefined> {
  const main = `${program}/main.js`;
  if (!existsSync(join(root, 'dist', main))) return undefined;
  const words = command === undefined ? [] : command.split(' ');
  let { code, stdout } = await runCommand(main, ...words, '--help');
  if (/^ {2}--help-all /m.test(stdout)) {
    ({ code, stdout } = await runCommand(main, ...words, '--help-all'));
  }
  // A program shows its own help for a word that is not one of its commands.
  const hasNoCommand = command === undefined || !/\nCommands:\n/.test(stdout);
  const isHelpOfCommand = hasNoCommand || new RegExp(`^Usage: \\S+ ${command} `).test(stdout);
  return code === 0 && isHelpOfCommand ? stdout : undefined;
}

/** Complaints about pages: the rules run once to learn which help they need, then with it. */
async function check(pages: readonly Page[], rules: readonly Rule[]): Promise<string[]> {
  const asked = new Map<string, readonly [string, string | undefined]>();
  const run = (help: World['help']): string[] =>
    pages.flatMap(({ page, text }) =>
      rules.flatMap((rule) => rule(page, text, { ...world, help })),
    );
  run((program, command) => {
    asked.set(`${program} ${command ?? ''}`, [program, command]);
    return undefined;
  });
  for (const [key, [program, command]] of asked) {
    if (!helpTexts.has(key)) helpTexts.set(key, await loadHelp(program, command));
  }
  return run((program, command) => helpTexts.get(`${program} ${command ?? ''}`));
}

const paths = listPaths();
const world: Omit<World, 'help'> = {
  paths,
  anchors: (page) => {
    if (!page.endsWith('.md') || !paths.has(page)) return undefined;
    return new Set(
      [...readPage(page).matchAll(/^#+ (.+)$/gm)].map(([, title = '']) => toAnchor(title)),
    );
  },
};

test('the links, paths and commands of every page exist', async () => {
  const pages = [...paths].filter((path) => path.endsWith('.md'));
  assert.ok(pages.length > 10, `only ${pages.length} pages found`);
  const texts = pages.map((page) => ({ page, text: readPage(page) }));
  assert.deepEqual(await check(texts, Object.values(RULES)), []);
});

test('each rule finds its canaries and accepts correct text', async () => {
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
      const rule = RULES[name];
      assert.ok(rule);
      const complaints = await check([{ page: 'docs/canary.md', text: canary }], [rule]);
      assert.equal(complaints.length, 1, canary);
    }
  }
  const correct = [
    '[a](../README.md#tools) `lib/core/json.ts` `json.ts` `lib/core/` `out/tables/` [b](adr/)',
    'node dist/cube-agent/main.js activate --reason first',
    '```sh\ncube-agent fleet drain --data h:1\nkubectl get pods --all\n```',
  ].join('\n');
  const page = { page: 'docs/canary.md', text: correct };
  assert.deepEqual(await check([page], Object.values(RULES)), []);
});
