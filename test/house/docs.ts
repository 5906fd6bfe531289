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

/** Every `node dist/…/main.js` line: the program, its command and its flags exist. */
const commands: Rule = (page, text, { help }) => {
  const complaints: string[] = [];
  const lines = text.replace(/\\\n/g, ' ').matchAll(/node dist\/([\w/-]+)\/main\.js([^`\n|&]*)/g);
  for (const [, program = '', rest = ''] of lines) {
    const command = /^ +([a-z]+)\b/.exec(rest)?.[1];
    const shown = help(program, command);
    if (shown === undefined) {
      complaints.push(`${page}: there is no node dist/${program}/main.js ${command ?? ''}`);
      continue;
    }
    for (const [flag] of rest.matchAll(/--[a-z][a-z\d-]*/g)) {
      if (new RegExp(`${flag}\\b(?!-)`).test(shown)) continue;
      complaints.push(`${page}: ${program} ${command ?? ''} has no ${flag}`);
    }
  }
  return complaints;
};

export const RULES: Readonly<Record<string, Rule>> = { links, namedPaths, commands };
