/**
 * The hit rate of the row cache (W-TinyLFU, serving/stores/row-cache.ts) against an LRU cache with
 * the same number of entries, on Zipf distributions of keys, with and without scans (bulk scoring
 * of rows that are requested once). Then the time and memory of a hit.
 */
import { RowCache } from '../serving/stores/row-cache.ts';

const KEYS = 1_000_000;
const LOOKUPS = 1_500_000;
const WIDTH = 10;
const row = new Float32Array(WIDTH);

/** Pseudo-random numbers in [0, 1): xorshift. */
function randomFractions(): () => number {
  let state = 123_456_789;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
}

/**
 * Draws keys of a Zipf distribution, in which 0 is the most popular key, from its inverse
 * cumulative shares.
 */
function zipfKeys(exponent: number): Uint32Array {
  const shares = new Float64Array(KEYS);
  let total = 0;
  for (let i = 0; i < KEYS; i++) {
    total += 1 / (i + 1) ** exponent;
    shares[i] = total;
  }
  const random = randomFractions();
  return Uint32Array.from({ length: LOOKUPS }, () => {
    const target = random() * total;
    let [low, high] = [0, KEYS - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (shares[middle]! < target) low = middle + 1;
      else high = middle;
    }
    return low;
  });
}

/** Replaces every tenth block of 20,000 lookups by keys that are requested only once. */
function withScans(keys: Uint32Array): Uint32Array {
  return keys.map((key, i) => (Math.floor(i / 20_000) % 10 === 9 ? KEYS + i : key));
}

interface Cache {
  /** Adds a missing key. @returns whether the key was in the cache */
  get(key: number): boolean;
}

function lru(capacity: number): Cache {
  const order = new Map<number, true>();
  return {
    get(key) {
      const hit = order.delete(key);
      order.set(key, true);
      const [oldest] = order.keys();
      if (order.size > capacity && oldest !== undefined) order.delete(oldest);
      return hit;
    },
  };
}

function tinyLfu(capacity: number): Cache {
  const cache = new RowCache(capacity, WIDTH);
  return {
    get(key) {
      if (cache.find(1, key, 0) >= 0) return true;
      cache.add(1, key, 0, row, 0);
      return false;
    },
  };
}

/** The hit rate of the last two thirds of the lookups: the first third fills the cache. */
function hitRate(cache: Cache, keys: Uint32Array): number {
  const warm = Math.floor(keys.length / 3);
  let hits = 0;
  for (let i = 0; i < keys.length; i++) if (cache.get(keys[i]!) && i >= warm) hits++;
  return hits / (keys.length - warm);
}

const percent = (share: number): string => `${(100 * share).toFixed(1)} %`.padStart(8);

process.stdout.write(
  'The hit rate of the row cache (W-TinyLFU) against an LRU cache of the same size.\n' +
    'keys, of 1 M         entries       LRU  W-TinyLFU\n',
);
for (const exponent of [0.9, 1, 1.1]) {
  const plain = zipfKeys(exponent);
  for (const [name, keys] of [
    [`Zipf ${exponent.toFixed(1)}`, plain],
    [`Zipf ${exponent.toFixed(1)} and scans`, withScans(plain)],
  ] as const) {
    for (const capacity of [10_000, 100_000]) {
      const rates = [hitRate(lru(capacity), keys), hitRate(tinyLfu(capacity), keys)].map(percent);
      process.stdout.write(
        `${name.padEnd(20)} ${String(capacity).padStart(8)} ${rates.join('   ')}\n`,
      );
    }
  }
}

const cache = new RowCache(100_000, WIDTH);
for (let key = 0; key < 100_000; key++) cache.add(1, key, 0, row, 0);
const lookups = zipfKeys(1).map((key) => key % 100_000);
const out = new Float32Array(WIDTH);
const startMs = performance.now();
for (const key of lookups) {
  const entry = cache.find(1, key, 0);
  if (entry >= 0) cache.copyRow(entry, out, 0);
}
const nanoseconds = ((performance.now() - startMs) / lookups.length) * 1e6;
const entryBytes = cache.bytes / cache.capacity;
process.stdout.write(
  `a hit takes ${nanoseconds.toFixed(0)} ns for a row of ${WIDTH} × f32; an entry takes ` +
    `${entryBytes.toFixed(0)} bytes, of which the row is ${4 * WIDTH}\n`,
);
