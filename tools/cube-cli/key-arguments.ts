/** Reads keys from the command line, from a file, or by hashing the features of slots. */
import { packKeys } from '../../lib/client/pack-keys.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { RowHasher } from '../../lib/core/hash.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { InvalidArgumentError } from '../../lib/platform/cli.ts';
import { readLines } from '../../lib/platform/text-lines.ts';

const KEY_MAX = (1n << 64n) - 1n;
const KEY_RULE = 'a key is an integer in 0 … 2^64 − 1, decimal or 0x hex';

/** Returns undefined when the text is not a key. */
function parseKey(text: string): bigint | undefined {
  if (!/^(\d{1,20}|0[xX][0-9a-fA-F]{1,16})$/.test(text)) return undefined;
  const key = BigInt(text);
  return key <= KEY_MAX ? key : undefined;
}

/** Option parser: appends a key to the earlier ones. */
export function collectKey(text: string, before: readonly bigint[] = []): bigint[] {
  const key = parseKey(text);
  if (key === undefined) throw new InvalidArgumentError(`${JSON.stringify(text)}: ${KEY_RULE}.`);
  return [...before, key];
}

/**
 * Reads a file of one key per line in batches. Empty lines and lines that begin with # are skipped.
 * @param path "-" reads standard input
 * @throws CubeError INVALID_ARGUMENT with the number of an invalid line
 */
export async function* readKeys(path: string, batchKeys: number): AsyncGenerator<Uint32Array> {
  let batch: bigint[] = [];
  let number = 0;
  for await (const line of readLines(path)) {
    number += 1;
    const text = line.trim();
    if (text === '' || text.startsWith('#')) continue;
    const key = parseKey(text);
    if (key === undefined) {
      const shown = JSON.stringify(text.slice(0, 60));
      throw new CubeError('INVALID_ARGUMENT', `${path}, line ${number}: ${KEY_RULE}, got ${shown}`);
    }
    batch.push(key);
    if (batch.length < batchKeys) continue;
    yield packKeys(batch);
    batch = [];
  }
  if (batch.length > 0) yield packKeys(batch);
}

/**
 * Hashes (slot, feature) pairs to keys as the manifest defines.
 * @throws CubeError INVALID_ARGUMENT for an unknown slot, with the existing ones
 */
export function hashFeatures(
  { hash, slots, bundle, version }: Manifest,
  names: readonly string[],
  features: readonly string[],
): Uint32Array {
  const keys = new Uint32Array(2 * names.length);
  names.forEach((name, i) => {
    const slot = slots.find((candidate) => candidate.name === name);
    if (slot === undefined) {
      const known = slots.map((candidate) => candidate.name).join(', ');
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${bundle} ${version} has no slot ${JSON.stringify(name)} ` +
          `(it has: ${known === '' ? 'none' : known})`,
      );
    }
    new RowHasher(hash, [slot]).hashRows([features[i]!], 1, keys, 2 * i);
  });
  return keys;
}
