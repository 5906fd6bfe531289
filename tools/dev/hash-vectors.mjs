/**
 * Writes docs/hash-vectors.json: what the keys of docs/formats/keys.md must come out as, made with xxhash-wasm and so
 * independent of our own hashing. `--check` compares instead of writing.
 *
 *     node tools/dev/hash-vectors.mjs [--check]
 */
import { readFileSync, writeFileSync } from 'node:fs';
import xxhash from 'xxhash-wasm';

const path = new URL('../../docs/hash-vectors.json', import.meta.url);
const { h64Raw } = await xxhash();

/** Lengths around xxh64's own steps: tails of 1, 4 and 8 bytes, stripes of 32. */
const LENGTHS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 29, 30, 31, 32, 33, 63, 64, 65, 100, 1000];
const patterned = (length) =>
  Array.from({ length }, (_, i) => String.fromCharCode(33 + ((i * 7 + length) % 94))).join('');
const TEXTS = [
  '68fd1e64',
  'ffffffff',
  '0',
  'a b\tc',
  'quote " and \\',
  '\u0000',
  'é',
  'Straße',
  '€',
  '東京',
  '한국어 텍스트',
  '😀',
  'a😀é€z',
  '😀'.repeat(20),
  'ж'.repeat(16),
];
/** One digit to ten, the largest a slot index may be; those of Paddle's Criteo reader in between. */
const SLOT_INDICES = [0, 7, 14, 39, 1000, 4_294_967_295];
const SEEDS = [0n, 1n, 0xffff_ffffn, 0x9e37_79b9_7f4a_7c15n, 0xffff_ffff_ffff_ffffn];
const MODULI = [0n, 1n, 100_001n, 4_294_967_296n, 0xffff_ffff_ffff_fff1n];

function keyOf({ scheme, slot, feature, seed, modulo }) {
  const between = scheme === 'xxh64-tagged' ? '\u0000' : '';
  const hash = h64Raw(new TextEncoder().encode(`${slot}${between}${feature}`), seed);
  return modulo === 0n ? hash : hash % modulo;
}

function cases() {
  const list = [];
  const add = (slot, feature, seed, modulo) => {
    for (const scheme of ['xxh64-concat', 'xxh64-tagged']) {
      list.push({ scheme, slot, feature, seed, modulo });
    }
  };
  for (const length of LENGTHS) add(14, patterned(length), 0n, 0n);
  for (const text of TEXTS) add(39, text, 0n, 0n);
  for (const slot of SLOT_INDICES) add(slot, '05db9164', 0n, 0n);
  for (const seed of SEEDS) for (const text of ['', '68fd1e64', '東京']) add(14, text, seed, 0n);
  for (const modulo of MODULI) for (const text of ['', '68fd1e64', '😀']) add(20, text, 0n, modulo);
  add(26, patterned(100), 0x9e37_79b9_7f4a_7c15n, 100_001n);
  // The two that concatenation cannot tell apart, and the tag can.
  add(1, '4x', 0n, 0n);
  add(14, 'x', 0n, 0n);
  return list;
}

const vectors = cases().map((vector) => ({
  ...vector,
  seed: vector.seed.toString(),
  modulo: vector.modulo.toString(),
  key: keyOf(vector).toString(),
}));
const distinct = new Map(vectors.map((vector) => [JSON.stringify(vector), vector]));
const document = `${JSON.stringify([...distinct.values()], null, 2)}\n`;

if (!process.argv.includes('--check')) writeFileSync(path, document);
else if (readFileSync(path, 'utf8') !== document) {
  console.error('docs/hash-vectors.json is not what tools/dev/hash-vectors.mjs writes');
  process.exitCode = 1;
}
