/**
 * Rules for pages of the documentation: their links, paths and commands must exist. A rule is a
 * function of (page, text, world) that returns complaints; an empty list is clean. docs.test.ts
 * applies the rules to all pages and shows with canaries that each one finds violations.
 */
import { dirname, join, normalize } from 'node:path';

export interface World {
  /** Paths of files and folders, relative to the root; folders without a trailing slash. */
  readonly paths: ReadonlySet<string>;
  /** Returns the headings of a page as link anchors; undefined when the page is missing. */
  anchors(page: string): ReadonlySet<string> | undefined;
  /**
   * Returns the `--help` of a program such as "tools/cube-builder", or of its command; undefined
   * when there is no such program or command.
   */
  help(program: string, command: string | undefined): string | undefined;
}

export type Rule = (page: string, text: string, world: World) => string[];

/** Removes fenced blocks: they show bytes and output, and links and spans are not read there. */
const stripFencedBlocks = (text: string): string => text.replace(/^( *)```[\s\S]*?^ *```$/gm, '');

/** Converts a heading to its anchor as GitHub does. */
export function toAnchor(heading: string): string {
  return heading
    .toLowerCase()
    .replace(/[^\p{L}\p{N}\s_-]/gu, '')
    .trim()
    .replaceAll(' ', '-');
}

const links: Rule = (page, text, { paths, anchors }) => {
  const targets = [...stripFencedBlocks(text).matchAll(/\]\(([^)\s]+)\)/g)].map(
    ([, target]) => target ?? '',
  );
  return targets
    .filter((target) => !/^[a-z]+:/.test(target))
    .filter((target) => {
      const [path = '', anchor] = target.split('#');
      const file = path === '' ? page : normalize(join(dirname(page), path)).replace(/\/$/, '');
      if (!paths.has(file)) return true;
      return anchor !== undefined && anchors(file)?.has(anchor) !== true;
    })
    .map((target) => `${page}: the target of link ${target} does not exist`);
};

const SOURCE = /^[\w./-]+\.(ts|mjs|cjs|py|proto)$/;

/** `lib/core/json.ts` names that file, `json.ts` any file of that name, `lib/core/` a folder. */
const namedPaths: Rule = (page, text, { paths }) => {
  const names = new Set([...paths].map((path) => path.slice(path.lastIndexOf('/') + 1)));
  const tops = new Set([...paths].map((path) => path.split('/')[0]));
  const spans = [...stripFencedBlocks(text).matchAll(/`([^`\n]+)`/g)].map(([, span]) => span ?? '');
  return spans
    .filter((span) => {
      if (/^dist\//.test(span)) return false;
      if (SOURCE.test(span)) return span.includes('/') ? !paths.has(span) : !names.has(span);
      const folder = /^([\w./-]+)\/$/.exec(span)?.[1];
      return folder !== undefined && tops.has(folder.split('/')[0]) && !paths.has(folder);
    })
    .map((span) => `${page}: ${span} does not exist`);
};

/** The program of each installed command (bin in package.json). */
const INSTALLED: Readonly<Record<string, string>> = {
  'cube-agent': 'cube-agent',
  'cube-server': 'cube-server',
  serving: 'serving',
  'prune-model': 'tools/prune-model',
  'cube-builder': 'tools/cube-builder',
  'cube-check': 'tools/cube-check',
  'cube-cli': 'tools/cube-cli',
  'ctr-client': 'tools/ctr-client',
  'generate-rows': 'tools/generate-rows',
};

/** Checks that the program, command and flags of a command line exist. */
export function checkCommand(page: string, program: string, rest: string, world: World): string[] {
  const words = /^ +([a-z][a-z-]*)\b(?: +([a-z][a-z-]*)\b)?/.exec(rest);
  // `fleet` is the only command with subcommands.
  const command = words?.[1] === 'fleet' && words[2] ? `fleet ${words[2]}` : words?.[1];
  const helpText = world.help(program, command);
  if (helpText === undefined) return [`${page}: there is no ${program} ${command ?? ''}`];
  // Quoted text is a value, not a flag.
  const flags = [...rest.replace(/"[^"]*"/g, '').matchAll(/--[a-z][a-z\d-]*/g)];
  return flags
    .filter(([flag]) => !new RegExp(`${flag}\\b(?!-)`).test(helpText))
    .map(([flag]) => `${page}: ${program} ${command ?? ''} has no ${flag}`);
}

/** Checks every `node dist/…/main.js` line. */
const commands: Rule = (page, text, world) => {
  const lines = text.replace(/\\\n/g, ' ').matchAll(/node dist\/([\w/-]+)\/main\.js([^`\n|&]*)/g);
  return [...lines].flatMap(([, program = '', rest = '']) =>
    checkCommand(page, program, rest, world),
  );
};

/** Checks every line of an example that begins with an installed command. */
const installed: Rule = (page, text, world) => {
  const blocks = [...text.matchAll(/^( *)```sh\n([\s\S]*?)^ *```$/gm)].map(
    ([, , block]) => block ?? '',
  );
  const lines = blocks.join('\n').replace(/\\\n/g, ' ').split('\n');
  return lines.flatMap((line) => {
    const [, name = '', rest = ''] = /^ *([a-z][a-z-]*)( [^|&;]*)?/.exec(line) ?? [];
    const program = INSTALLED[name];
    return program === undefined ? [] : checkCommand(page, program, rest, world);
  });
};

export const RULES: Readonly<Record<string, Rule>> = {
  links,
  namedPaths,
  commands,
  installed,
};
