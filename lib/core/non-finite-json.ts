/**
 * Parses JSON that may contain the numbers NaN, Infinity and -Infinity. JSON has none of them, but
 * Python's json writes them, also for numpy arrays, and NaN is a common form of a missing value.
 * Readers decide where NaN means missing, and refuse what they do not expect.
 */
import { findStringEnd } from './json-scan.ts';

const QUOTE = 0x22;
const LETTER_N = 0x4e;
const LETTER_I = 0x49;
const NAN = 'NaN';
const INFINITY = 'Infinity';
/** Stands for NaN until the text is parsed. Random, so that no caller can send it. */
const NAN_MARK = `NaN ${crypto.randomUUID()}`;
/** A number that JSON.parse rounds to infinity. */
const INFINITE_NUMBER = '1e999';

/** Text without such numbers is parsed as fast as by JSON.parse. @throws SyntaxError */
export function parseNonFiniteJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    const marked = markNonFinite(text);
    if (marked === text) throw error;
    let parsed: unknown;
    try {
      parsed = JSON.parse(marked);
    } catch {
      // The other error would show the marks, and positions that the caller's text does not have.
      throw error;
    }
    return restoreNaN(parsed);
  }
}

function markNonFinite(text: string): string {
  let marked = '';
  let copied = 0;
  const replace = (at: number, name: string, by: string): number => {
    marked += text.slice(copied, at) + by;
    copied = at + name.length;
    return copied;
  };
  let at = 0;
  while (at < text.length) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) at = findStringEnd(text, at);
    else if (code === LETTER_N && text.startsWith(NAN, at)) {
      at = replace(at, NAN, `"${NAN_MARK}"`);
    } else if (code === LETTER_I && text.startsWith(INFINITY, at)) {
      at = replace(at, INFINITY, INFINITE_NUMBER);
    } else at++;
  }
  return marked + text.slice(copied);
}

/** Puts NaN back, without recursion, because values may be nested deeply. */
function restoreNaN(root: unknown): unknown {
  if (root === NAN_MARK) return Number.NaN;
  const pending: unknown[] = [root];
  while (pending.length > 0) {
    const value = pending.pop();
    if (Array.isArray(value)) {
      for (let i = 0; i < value.length; i++) {
        if (value[i] === NAN_MARK) value[i] = Number.NaN;
        else if (typeof value[i] === 'object') pending.push(value[i]);
      }
    } else {
      const fields = value as Record<string, unknown> | null;
      for (const name in fields) {
        if (fields[name] === NAN_MARK) fields[name] = Number.NaN;
        else if (typeof fields[name] === 'object') pending.push(fields[name]);
      }
    }
  }
  return root;
}
