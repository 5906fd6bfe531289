/** The version of the product, read from the package's own package.json. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

/** Seen from dist/lib/platform, in a checkout and in an installed package. */
const PACKAGE_FILE = join(import.meta.dirname, '..', '..', '..', 'package.json');

function readVersion(): string {
  const { version } = JSON.parse(readFileSync(PACKAGE_FILE, 'utf8')) as { version?: unknown };
  if (typeof version !== 'string') throw new Error(`${PACKAGE_FILE}: it has no version`);
  return version;
}

export const PRODUCT_VERSION: string = readVersion();
