/**
 * The house rules that no linter knows, as functions over (path, text). Each returns complaints; an empty list is
 * clean. tidy.test.ts runs them over the sources and shows with a canary that each one bites.
 */
import ts from 'typescript';

export type Rule = (path: string, text: string) => string[];

const LINES_MAX = 400;
const FUNCTION_LINES_MAX = 70;

const production = /^(lib|proto|cube-server|cube-agent|serving|tools)\//;

const shortFiles: Rule = (path, text) => {
  const lines = text.split('\n').length - 1;
  return lines > LINES_MAX ? [`${path}: ${lines} lines, at most ${LINES_MAX}`] : [];
};

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

/** A source file opens with a doc comment: its one responsibility. */
const opensWithPurpose: Rule = (path, text) =>
  production.test(path) && !/^(#!.*\n)?\/\*\*/.test(text)
    ? [`${path}: no opening doc comment`]
    : [];

/** Disk, environment and clock belong to lib/platform (the house's own scripts run before anything is built). */
const platformOnly: Rule = (path, text) => {
  if (!production.test(path) || /^(lib\/platform|tools\/house)\//.test(path)) return [];
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
  if (!production.test(path) || path.startsWith('tools/house/')) return [];
  return /shell: true|\bexecSync\b|\bexec\(['"`]/.test(text) ? [`${path}: runs a shell`] : [];
};

export const RULES: Readonly<Record<string, Rule>> = {
  shortFiles,
  shortFunctions,
  opensWithPurpose,
  platformOnly,
  noLeftovers,
  noShell,
};
