/**
 * Names that appear in paths and on the wire. They are checked where they enter, so that code can
 * join a name to a path: no separator, no leading dot, bounded length.
 */
import { CubeError } from './errors.ts';

/** Bundle, table, version and channel names. */
export const NAME_PATTERN: RegExp = /^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$/;
export const NAME_RULE = 'a name of 1 to 128 letters, digits, "_", "-", "." (not first)';
export const CONTENT_ID_PATTERN: RegExp = /^[0-9a-f]{32}$/;
export const SHA256_PATTERN: RegExp = /^[0-9a-f]{64}$/;

/**
 * The text that names a version of a bundle in maps, status reports and messages: `bundle/version`.
 * Names have no slash, so different versions have different keys.
 */
export function versionKey({
  bundle,
  version,
}: {
  readonly bundle: string;
  readonly version: string;
}): string {
  return `${bundle}/${version}`;
}

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

/** Converts any string to a valid name: other characters become "_". */
export function toValidName(text: string): string {
  const name = text.replaceAll(/[^A-Za-z0-9._-]/g, '_').replace(/^[.-]+/, '_');
  return name === '' ? '_' : name.slice(0, 128);
}

let versionOrder: Intl.Collator | undefined;

/** For sorting: numbers in names of versions count as numbers. */
export function compareVersions(a: string, b: string): number {
  // `localeCompare` with options makes one for each comparison.
  versionOrder ??= new Intl.Collator('en', { numeric: true });
  return versionOrder.compare(a, b);
}
