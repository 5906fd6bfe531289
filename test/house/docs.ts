/**
 * What a page of the documentation claims about the repository, as functions over (page, text, world). Each returns
 * complaints; an empty list is clean. docs.test.ts runs them over all pages and shows that each one bites.
 */
import { dirname, join, normalize } from 'node:path';

export interface World {
  /** Files and folders of the repository, from its root, folders without a slash at the end. */
  readonly paths: ReadonlySet<string>;
  /** Headings of a page as link anchors; undefined when there is no such page. */
  anchors(page: string): ReadonlySet<string> | undefined;
  /** `--help` of a program such as "tools/cube-builder" and its command; undefined when there is none. */
  help(program: string, command: string | undefined): string | undefined;
}

export type Rule = (page: string, text: string, world: World) => string[];

/** Fenced blocks draw bytes and show output: links and code spans are read outside of them. */
const prose = (text: string): string => text.replace(/^( *)```[\s\S]*?^ *```$/gm, '');

/** An anchor as GitHub makes it of a heading. */
export function anchorOf(heading: string): string {
  return heading
    .toLowerCase()
    .replace(/[^\p{L}\p{N}\s_-]/gu, '')
    .trim()
    .replaceAll(' ', '-');
}

const links: Rule = (page, text, { paths, anchors }) => {
  const targets = [...prose(text).matchAll(/\]\(([^)\s]+)\)/g)].map(([, target]) => target ?? '');
  return targets
    .filter((target) => !/^[a-z]+:/.test(target))
    .filter((target) => {
      const [path = '', anchor] = target.split('#');
      const file = path === '' ? page : normalize(join(dirname(page), path)).replace(/\/$/, '');
      if (!paths.has(file)) return true;
      return anchor !== undefined && anchors(file)?.has(anchor) !== true;
    })
    .map((target) => `${page}: the link ${target} leads nowhere`);
};

const SOURCE = /^[\w./-]+\.(ts|mjs|cjs|py|proto)$/;

/** `lib/core/json.ts` is that file, `json.ts` some file of that name, `lib/core/` a folder. */
const namedPaths: Rule = (page, text, { paths }) => {
  const names = new Set([...paths].map((path) => path.slice(path.lastIndexOf('/') + 1)));
  const tops = new Set([...paths].map((path) => path.split('/')[0]));
  const spans = [...prose(text).matchAll(/`([^`\n]+)`/g)].map(([, span]) => span ?? '');
  return spans
    .filter((span) => {
      if (/^dist\//.test(span)) return false;
      if (SOURCE.test(span)) return span.includes('/') ? !paths.has(span) : !names.has(span);
      const folder = /^([\w./-]+)\/$/.exec(span)?.[1];
      return folder !== undefined && tops.has(folder.split('/')[0]) && !paths.has(folder);
    })
    .map((span) => `${page}: names ${span}, which is not there`);
};

/** The program of each command that is installed (package.json's bin). */
const INSTALLED: Readonly<Record<string, string>> = {
  'cube-agent': 'cube-agent',
  'cube-server': 'cube-server',
  serving: 'serving',
  ...{ 'cube-builder': 'tools/cube-builder', 'cube-check': 'tools/cube-check' },
  ...{ 'cube-cli': 'tools/cube-cli', 'ctr-client': 'tools/ctr-client' },
};

/** The complaint about one command line, if any: the program, its command and its flags exist. */
export function commandFaults(page: string, program: string, rest: string, world: World): string[] {
  const words = /^ +([a-z][a-z-]*)\b(?: +([a-z][a-z-]*)\b)?/.exec(rest);
  // The one command that has commands of its own.
  const command = words?.[1] === 'fleet' && words[2] ? `fleet ${words[2]}` : words?.[1];
  const shown = world.help(program, command);
  if (shown === undefined) return [`${page}: there is no ${program} ${command ?? ''}`];
  // What stands in quotes is a value.
  const flags = [...rest.replace(/"[^"]*"/g, '').matchAll(/--[a-z][a-z\d-]*/g)];
  return flags
    .filter(([flag]) => !new RegExp(`${flag}\\b(?!-)`).test(shown))
    .map(([flag]) => `${page}: ${program} ${command ?? ''} has no ${flag}`);
}

/** Every `node dist/…/main.js` line. */
const commands: Rule = (page, text, world) => {
  const lines = text.replace(/\\\n/g, ' ').matchAll(/node dist\/([\w/-]+)\/main\.js([^`\n|&]*)/g);
  return [...lines].flatMap(([, program = '', rest = '']) =>
    commandFaults(page, program, rest, world),
  );
};

/** Every line of an example that begins with an installed command. */
const installed: Rule = (page, text, world) => {
  const blocks = [...text.matchAll(/^( *)```sh\n([\s\S]*?)^ *```$/gm)].map(([, , block]) => block!);
  const lines = blocks.join('\n').replace(/\\\n/g, ' ').split('\n');
  return lines.flatMap((line) => {
    const [, name = '', rest = ''] = /^ *([a-z][a-z-]*)( [^|&;]*)?/.exec(line) ?? [];
    const program = INSTALLED[name];
    return program === undefined ? [] : commandFaults(page, program, rest, world);
  });
};

export const RULES: Readonly<Record<string, Rule>> = {
  links,
  namedPaths,
  commands,
  installed,
};
