/**
 * Rules that no linter knows, as functions from (path, text) to complaints; an empty list is clean.
 * tidy.test.ts applies them to the sources and shows with a canary that each one finds violations.
 */
import ts from 'typescript';

export type Rule = (path: string, text: string) => string[];

const FUNCTION_LINES_MAX = 70;

const production = /^(lib|proto|cube-server|cube-agent|serving|tools)\//;

const shortFunctions: Rule = (path, text) => {
  const source = ts.createSourceFile(path, text, ts.ScriptTarget.Latest, true);
  const complaints: string[] = [];
  const visit = (node: ts.Node): void => {
    if (ts.isFunctionLike(node) && 'body' in node && node.body) {
      const start = source.getLineAndCharacterOfPosition(node.getStart()).line;
      const end = source.getLineAndCharacterOfPosition(node.getEnd()).line;
      const lines = end - start + 1;
      if (lines > FUNCTION_LINES_MAX) {
        complaints.push(`${path}:${start + 1}: a function of ${lines} lines`);
      }
    }
    ts.forEachChild(node, visit);
  };
  visit(source);
  return complaints;
};

/** A literal spread into a literal of its kind only saves lines: its members are written out. */
const noSpreadLiterals: Rule = (path, text) => {
  const source = ts.createSourceFile(path, text, ts.ScriptTarget.Latest, true);
  const complaints: string[] = [];
  const visit = (node: ts.Node): void => {
    const isSpreadLiteral =
      (ts.isSpreadAssignment(node) && ts.isObjectLiteralExpression(node.expression)) ||
      (ts.isSpreadElement(node) && ts.isArrayLiteralExpression(node.expression));
    if (isSpreadLiteral) {
      const { line } = source.getLineAndCharacterOfPosition(node.getStart());
      complaints.push(`${path}:${line + 1}: spreads a literal; write its members out`);
    }
    ts.forEachChild(node, visit);
  };
  visit(source);
  return complaints;
};

/** Only an index is asserted: elsewhere a type, a default or a check says that a value exists. */
const assertsOnlyIndexes: Rule = (path, text) => {
  if (!production.test(path) && !path.startsWith('bench/')) return [];
  const source = ts.createSourceFile(path, text, ts.ScriptTarget.Latest, true);
  const complaints: string[] = [];
  const visit = (node: ts.Node): void => {
    if (ts.isNonNullExpression(node) && !ts.isElementAccessExpression(node.expression)) {
      const { line } = source.getLineAndCharacterOfPosition(node.getStart());
      complaints.push(`${path}:${line + 1}: a non-null assertion of what is not an index`);
    }
    ts.forEachChild(node, visit);
  };
  visit(source);
  return complaints;
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
