/** Keys that are text in the input: signed as serving signs the features of one slot (docs/formats/keys.md, `xxh64-concat`). */
import { xxh64 } from '../../../lib/core/hash.ts';

/** The key of a feature of slot `slot` as two words (low, high). */
export function signKey(slot: number, feature: string, words: Uint32Array): void {
  const hash = xxh64(Buffer.from(`${slot}${feature}`, 'utf8'));
  words[0] = Number(hash & 0xffff_ffffn);
  words[1] = Number(hash >> 32n);
}
