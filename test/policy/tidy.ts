/**
 * Rules that no linter knows, as functions from (path, text) to complaints; an empty list is clean.
 * tidy.test.ts applies them to the sources and shows with a canary that each one finds violations.
 */
import ts from 'typescript';

export type Rule = (path: string, text: string) => string[];

const FUNCTION_LINES_MAX = 70;

interface Parsed {
  readonly source: ts.SourceFile;
  /** All of them, from the top. */
  readonly nodes: readonly ts.Node[];
}

/** What a rule parsed last: rules look at the same text one after another. */
let last: Parsed | undefined;

function parse(path: string, text: string): Parsed {
  if (last?.source.fileName === path && last.source.text === text) return last;
  const source = ts.createSourceFile(path, text, ts.ScriptTarget.Latest);
  const nodes: ts.Node[] = [];
  const add = (node: ts.Node): void => {
    nodes.push(node);
    ts.forEachChild(node, add);
  };
  add(source);
  last = { source, nodes };
  return last;
}

/** Nodes that `accept` returns true for, with the numbers of their first lines. */
function findNodes<N extends ts.Node>(
  { source, nodes }: Parsed,
  accept: (node: ts.Node) => node is N,
): { node: N; line: number }[] {
  return nodes.filter(accept).map((node) => {
    return { node, line: source.getLineAndCharacterOfPosition(node.getStart(source)).line + 1 };
  });
}

const production = /^(lib|proto|cube-server|cube-agent|serving|tools)\//;

const shortFunctions: Rule = (path, text) => {
  const parsed = parse(path, text);
  return findNodes(parsed, ts.isFunctionLike).flatMap(({ node, line }) => {
    if (!('body' in node && node.body)) return [];
    const end = parsed.source.getLineAndCharacterOfPosition(node.getEnd()).line + 1;
    const lines = end - line + 1;
    return lines > FUNCTION_LINES_MAX ? [`${path}:${line}: a function of ${lines} lines`] : [];
  });
};

/** A literal spread into a literal of its kind only saves lines: its members are written out. */
const noSpreadLiterals: Rule = (path, text) => {
  const isSpreadLiteral = (node: ts.Node): node is ts.SpreadAssignment | ts.SpreadElement =>
    (ts.isSpreadAssignment(node) && ts.isObjectLiteralExpression(node.expression)) ||
    (ts.isSpreadElement(node) && ts.isArrayLiteralExpression(node.expression));
  return findNodes(parse(path, text), isSpreadLiteral).map(
    ({ line }) => `${path}:${line}: spreads a literal; write its members out`,
  );
};

/** Only an index is asserted: elsewhere a type, a default or a check says that a value exists. */
const assertsOnlyIndexes: Rule = (path, text) => {
  if (!production.test(path) && !path.startsWith('bench/')) return [];
  return findNodes(parse(path, text), ts.isNonNullExpression)
    .filter(({ node }) => !ts.isElementAccessExpression(node.expression))
    .map(({ line }) => `${path}:${line}: a non-null assertion of what is not an index`);
};

/** A source file opens with a doc comment: its one responsibility. */
const opensWithPurpose: Rule = (path, text) =>
  production.test(path) && !/^(#!.*\n)?\/\*\*/.test(text)
    ? [`${path}: no opening doc comment`]
    : [];

/** Disk, environment and clock belong to lib/platform (scripts of tools/dev run before a build). */
const platformOnly: Rule = (path, text) => {
  if (!production.test(path) || /^(lib\/platform|tools\/dev)\//.test(path)) return [];
  const banned = [/from 'node:fs(\/promises)?'/, /\bprocess\.env\b/, /\bDate\.now\(/];
  return banned
    .filter((word) => word.test(text))
    .map((word) => `${path}: ${word.source} outside lib/platform`);
};

const noLeftovers: Rule = (path, text) => {
  const words = ['TO' + 'DO', 'FIX' + 'ME', 'XX' + 'X', 'HA' + 'CK'];
  return words
    .filter((word) => new RegExp(`\\b${word}\\b`).test(text))
    .map((word) => `${path}: leftover marker ${word}`);
};

const noShell: Rule = (path, text) => {
  if (!production.test(path) || path.startsWith('tools/dev/')) return [];
  return /shell: true|\bexecSync\b|\bexec\(['"`]/.test(text) ? [`${path}: runs a shell`] : [];
};

/** tools/dev/test-preload.cjs turns off what the runner needs to end a suite. */
const noSuites: Rule = (path, text) =>
  /import \{[^}]*\b(describe|suite)\b[^}]*\} from 'node:test'/.test(text)
    ? [`${path}: a suite would never end; write tests without describe`]
    : [];

export const RULES: Readonly<Record<string, Rule>> = {
  shortFunctions,
  noSpreadLiterals,
  assertsOnlyIndexes,
  opensWithPurpose,
  platformOnly,
  noLeftovers,
  noShell,
  noSuites,
};
