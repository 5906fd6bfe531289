/**
 * Scans JSON text for what JSON.parse does not report. It keeps the last of two equal fields of an
 * object, so that half of what someone wrote would be ignored.
 */
const QUOTE = 0x22;
const COMMA = 0x2c;
const BACKSLASH = 0x5c;
const ARRAY = 0x5b;
const ARRAY_END = 0x5d;
const OBJECT = 0x7b;
const OBJECT_END = 0x7d;

/** @param start position of the opening quote @returns the position after the closing one */
export function findStringEnd(text: string, start: number): number {
  for (let from = start + 1; ; ) {
    const at = text.indexOf('"', from);
    if (at < 0) return text.length + 1;
    let first = at;
    while (first > from && text.charCodeAt(first - 1) === BACKSLASH) first--;
    // An even number of backslashes are escaped themselves.
    if ((at - first) % 2 === 0) return at + 1;
    from = at + 1;
  }
}

export interface RepeatedField {
  /** Field names and indexes, as in `slots[2].index`. */
  readonly path: string;
  /** Line of the second one, from 1. */
  readonly line: number;
}

/** An object or array that is open at a place of the text. */
interface OpenValue {
  /** Undefined for an array. */
  readonly names: Set<string> | undefined;
  readonly path: string;
  /** Name of the current field, or index of the current item. */
  at: string | number;
}

/** @param text valid JSON */
export function findRepeatedField(text: string): RepeatedField | undefined {
  const open: OpenValue[] = [];
  let isName = false;
  for (let at = 0; at < text.length; ) {
    const code = text.charCodeAt(at);
    const inner = open.at(-1);
    if (code === QUOTE) {
      const end = findStringEnd(text, at);
      if (isName && inner?.names !== undefined) {
        const name = JSON.parse(text.slice(at, end)) as string;
        inner.at = name;
        if (inner.names.has(name)) {
          return { path: describe(inner), line: text.slice(0, at).split('\n').length };
        }
        inner.names.add(name);
        isName = false;
      }
      at = end;
      continue;
    }
    if (code === OBJECT || code === ARRAY) {
      const names = code === OBJECT ? new Set<string>() : undefined;
      open.push({ names, path: inner === undefined ? '' : describe(inner), at: 0 });
      isName = code === OBJECT;
    } else if (code === OBJECT_END || code === ARRAY_END) {
      open.pop();
    } else if (code === COMMA && inner !== undefined) {
      if (inner.names === undefined) inner.at = Number(inner.at) + 1;
      isName = inner.names !== undefined;
    }
    at++;
  }
  return undefined;
}

function describe({ names, path, at }: OpenValue): string {
  if (names === undefined) return `${path}[${at}]`;
  return path === '' ? String(at) : `${path}.${at}`;
}
