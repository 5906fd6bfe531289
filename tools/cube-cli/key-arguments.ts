/** Keys as people write them: decimal or 0x hex, as arguments or a line each, or slots and features to be hashed. */
import { CubeError } from '../../lib/core/errors.ts';
import { RowHasher } from '../../lib/core/hash.ts';
import { setKey } from '../../lib/core/keys.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { InvalidArgumentError } from '../../lib/platform/cli.ts';
import { readLines } from '../../lib/platform/text-lines.ts';

const KEY_MAX = (1n << 64n) - 1n;
const KEY_RULE = 'a key is an integer in 0 … 2^64 − 1, decimal or 0x hex';

/** @returns undefined for what is no key */
function parseKey(text: string): bigint | undefined {
  if (!/^(\d{1,20}|0[xX][0-9a-fA-F]{1,16})$/.test(text)) return undefined;
  const key = BigInt(text);
  return key <= KEY_MAX ? key : undefined;
}

/** Option parser: one more key. */
export function collectKey(text: string, before: readonly bigint[] = []): bigint[] {
  const key = parseKey(text);
  if (key === undefined) throw new InvalidArgumentError(`${JSON.stringify(text)}: ${KEY_RULE}.`);
  return [...before, key];
}

/** 2n words. */
export function wordsOf(keys: readonly bigint[]): Uint32Array {
  const words = new Uint32Array(2 * keys.length);
  keys.forEach((key, i) => {
    setKey(words, i, key);
  });
  return words;
}

/**
 * The keys of a file, one a line, in batches; what is empty or begins with # is passed over.
 * @param path "-" is standard input
 * @throws CubeError INVALID_ARGUMENT naming the line
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
    yield wordsOf(batch);
    batch = [];
  }
  if (batch.length > 0) yield wordsOf(batch);
}

/**
 * The keys of (slot, feature) pairs, hashed as the version says.
 * @throws CubeError INVALID_ARGUMENT naming the slots there are
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
        `${bundle} ${version} has no slot ${JSON.stringify(name)} (it has: ${known === '' ? 'none' : known})`,
      );
    }
    new RowHasher(hash, [slot]).hashRows([features[i]!], 1, keys, 2 * i);
  });
  return keys;
}
