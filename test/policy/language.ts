/**
 * Rules for everything that people read: line width, retired vocabulary, and names of functions.
 * Each rule maps (path, text) to complaints; an empty list is clean. language.test.ts applies them
 * to all sources and pages and shows with canaries that each rule finds violations.
 */
import ts from 'typescript';
import type { Rule } from './tidy.ts';

const COLUMNS_MAX = 100;

/** A line that cannot be broken: a URL or a path, an import, or a table, heading or link. */
const UNBREAKABLE = /https?:\/\/|^\s*\/\/ @|^(import|export) .* from '|^\s*from '/;

const countColumns = (line: string): number => [...line].length;

const tooLong = (path: string, lines: readonly (readonly [number, string])[]): string[] =>
  lines
    .filter(([, line]) => countColumns(line) > COLUMNS_MAX)
    .map(([number, line]) => `${path}:${number}: ${countColumns(line)} columns`);

/** Source lines; string literals that span the whole line are split instead of exempted. */
const sourceWidth: Rule = (path, text) => {
  if (!path.endsWith('.ts')) return [];
  const lines = text.split('\n').map((line, i): [number, string] => [i + 1, line]);
  return tooLong(
    path,
    lines.filter(([, line]) => !UNBREAKABLE.test(line)),
  );
};

/** Markdown lines outside code blocks, tables and headings; targets of links do not count. */
const pageWidth: Rule = (path, text) => {
  if (!path.endsWith('.md')) return [];
  let isCode = false;
  const prose: [number, string][] = [];
  for (const [i, line] of text.split('\n').entries()) {
    if (/^\s*```/.test(line)) isCode = !isCode;
    else if (!isCode && !/^(\s*\||#| {4})/.test(line) && !/https?:\/\//.test(line)) {
      prose.push([i + 1, line.replace(/\]\([^)]*\)/g, ']')]);
    }
  }
  return tooLong(path, prose);
};

/** Words of the project's former private vocabulary, each with the term to use instead. */
const RETIRED_WORDS: readonly (readonly [RegExp, string])[] = [
  [/\b(front )?doors?\b|[a-z]Doors?\b/i, 'protocol'],
  // Not HardSwish, an operator of ONNX.
  [/\bwish(es)?\b|\b[A-Z]?[a-z]+(?<!S)Wish(es)?\b/i, 'request, options or desired version'],
  [/\bsickness\b|\bunwell\b/i, 'health failure, unhealthy'],
  [/\bLanes\b/, 'TaskQueue'],
  [/\bdeeds?\b/i, 'audited action'],
  [/\bcondemn(s|ed|ing)?\b/i, 'quarantine'],
  [/\btwins?\b/i, 'portable kernel'],
  [/\bnamesakes?\b/i, 'the same name'],
  [/\bhouse rules?\b/i, 'policy test'],
  [/\bsurroundings\b/i, 'environment'],
  [/\b(areMatter|placeToGo|withWayOn|whyOf|fateOf|mayHold|mayFollow)\b/, 'a verb that says it'],
  [/\bwhoever\b|\bwhosoever\b/i, 'a noun'],
  [/\bunder way\b/i, 'in progress'],
  [
    /(^|[.:;] |\/\*\* |\* |\/\/ )Of (a|an|the|each|what|which|all|its|those|this)\b/m,
    'subject first',
  ],
  [/(^|[.:;] |\/\*\* |\* |\/\/ )So (long|many|often) (?!as\b)/m, 'subject first'],
];

const plainWords: Rule = (path, text) => {
  // Most texts have none, which takes less time to learn from the whole text than line by line.
  const present = RETIRED_WORDS.filter(([word]) => word.test(text));
  if (present.length === 0) return [];
  return text.split('\n').flatMap((line, i) =>
    present.flatMap(([word, instead]) => {
      const found = word.exec(line)?.[0].trim();
      return found === undefined ? [] : [`${path}:${i + 1}: "${found}": write ${instead}`];
    }),
  );
};

/** `rowsOf(x)` does not say what it does or costs; `readRows(x)`, `findRows(x)` or a property does. */
const verbsFirst: Rule = (path, text) => {
  // After a dot it is used, such as `indexOf`, not declared.
  if (!path.endsWith('.ts') || !/(?<![\w.])#?[a-z]\w*[a-z]Of\b/.test(text)) return [];
  const source = ts.createSourceFile(path, text, ts.ScriptTarget.Latest, true);
  const complaints: string[] = [];
  const visit = (node: ts.Node): void => {
    const isFunction =
      ts.isFunctionDeclaration(node) ||
      ts.isMethodDeclaration(node) ||
      (ts.isVariableDeclaration(node) &&
        node.initializer !== undefined &&
        ts.isArrowFunction(node.initializer));
    const name = isFunction ? node.name?.getText() : undefined;
    if (name !== undefined && /^#?[a-z]\w*[a-z]Of$/.test(name)) {
      const { line } = source.getLineAndCharacterOfPosition(node.getStart());
      complaints.push(`${path}:${line + 1}: ${name}: begin with a verb`);
    }
    ts.forEachChild(node, visit);
  };
  visit(source);
  return complaints;
};

export const LANGUAGE_RULES: Readonly<Record<string, Rule>> = {
  sourceWidth,
  pageWidth,
  plainWords,
  verbsFirst,
};
