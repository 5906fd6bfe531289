/**
 * The names that appear in paths and on wires. They are checked where they enter, so that a name can be joined
 * to a path without a second thought: no separator, no leading dot, bounded length.
 */
import { CubeError } from './errors.ts';

/** Bundle, table, version and channel names. */
export const NAME_PATTERN: RegExp = /^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$/;
export const NAME_RULE = 'a name of 1 to 128 letters, digits, "_", "-", "." (not first)';
export const CONTENT_ID_PATTERN: RegExp = /^[0-9a-f]{32}$/;
export const SHA256_PATTERN: RegExp = /^[0-9a-f]{64}$/;

/** @throws CubeError INVALID_ARGUMENT naming `what` */
export function checkName(name: string, what: string): string {
  if (!NAME_PATTERN.test(name)) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${what}: expected ${NAME_RULE}, got ${JSON.stringify(name)}`,
    );
  }
  return name;
}

/** A string of any origin as a legal name: other characters become "_". */
export function toName(text: string): string {
  const name = text.replaceAll(/[^A-Za-z0-9._-]/g, '_').replace(/^[.-]+/, '_');
  return name === '' ? '_' : name.slice(0, 128);
}
