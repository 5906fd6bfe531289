/**
 * xxh64 in 32-bit words of portable TypeScript, without WebAssembly and BigInt. A property test
 * compares it with the kernel and with xxhash-wasm.
 */
import { multiplyHigh } from '../keys.ts';

const P1_LOW = 0x85eb_ca87;
const P1_HIGH = 0x9e37_79b1;
const P2_LOW = 0x27d4_eb4f;
const P2_HIGH = 0xc2b2_ae3d;
const P3_LOW = 0x9e37_79f9;
const P3_HIGH = 0x1656_67b1;
const P4_LOW = 0xc2b2_ae63;
const P4_HIGH = 0x85eb_ca77;
const P5_LOW = 0x1656_67c5;
const P5_HIGH = 0x27d4_eb2f;

/** The 64-bit register of the steps below: a function cannot return two words without an object. */
let low = 0;
let high = 0;

function multiply(byLow: number, byHigh: number): void {
  high = (multiplyHigh(low, byLow) + Math.imul(high, byLow) + Math.imul(low, byHigh)) >>> 0;
  low = Math.imul(low, byLow) >>> 0;
}

function add(otherLow: number, otherHigh: number): void {
  const sum = low + (otherLow >>> 0);
  high = (high + otherHigh + (sum > 0xffff_ffff ? 1 : 0)) >>> 0;
  low = sum >>> 0;
}

/** @param by 1..31 */
function rotate(by: number): void {
  const oldLow = low;
  low = ((low << by) | (high >>> (32 - by))) >>> 0;
  high = ((high << by) | (oldLow >>> (32 - by))) >>> 0;
}

/** acc = rotl(acc + lane · P2, 31) · P1, for the accumulator in the register. */
function round(laneLow: number, laneHigh: number): void {
  const accLow = low;
  const accHigh = high;
  low = laneLow;
  high = laneHigh;
  multiply(P2_LOW, P2_HIGH);
  add(accLow, accHigh);
  rotate(31);
  multiply(P1_LOW, P1_HIGH);
}

function word(bytes: Uint8Array, at: number): number {
  return (
    (bytes[at]! | (bytes[at + 1]! << 8) | (bytes[at + 2]! << 16) | (bytes[at + 3]! << 24)) >>> 0
  );
}

const lanes = new Uint32Array(8);

function roundLane(lane: number, bytes: Uint8Array, at: number): void {
  low = lanes[2 * lane]!;
  high = lanes[2 * lane + 1]!;
  round(word(bytes, at), word(bytes, at + 4));
  lanes[2 * lane] = low;
  lanes[2 * lane + 1] = high;
}

function startLanes(seedLow: number, seedHigh: number): void {
  for (let lane = 0; lane < 4; lane++) {
    low = seedLow >>> 0;
    high = seedHigh >>> 0;
    if (lane === 0) add(P1_LOW, P1_HIGH);
    if (lane <= 1) add(P2_LOW, P2_HIGH);
    if (lane === 3) add(~P1_LOW + 1, ~P1_HIGH);
    lanes[2 * lane] = low;
    lanes[2 * lane + 1] = high;
  }
}

const ROTATIONS: readonly number[] = [1, 7, 12, 18];

/** Folds the four lanes into the register. */
function mergeLanes(): void {
  let sumLow = 0;
  let sumHigh = 0;
  for (let lane = 0; lane < 4; lane++) {
    low = lanes[2 * lane]!;
    high = lanes[2 * lane + 1]!;
    rotate(ROTATIONS[lane]!);
    add(sumLow, sumHigh);
    sumLow = low;
    sumHigh = high;
  }
  for (let lane = 0; lane < 4; lane++) {
    const accLow = low;
    const accHigh = high;
    low = 0;
    high = 0;
    round(lanes[2 * lane]!, lanes[2 * lane + 1]!);
    low = (low ^ accLow) >>> 0;
    high = (high ^ accHigh) >>> 0;
    multiply(P1_LOW, P1_HIGH);
    add(P4_LOW, P4_HIGH);
  }
}

/** Mixes in the bytes after the last whole stripe of 32. */
function foldTail(bytes: Uint8Array, at: number, end: number): void {
  for (; at + 8 <= end; at += 8) {
    const accLow = low;
    const accHigh = high;
    low = 0;
    high = 0;
    round(word(bytes, at), word(bytes, at + 4));
    low = (low ^ accLow) >>> 0;
    high = (high ^ accHigh) >>> 0;
    rotate(27);
    multiply(P1_LOW, P1_HIGH);
    add(P4_LOW, P4_HIGH);
  }
  if (at + 4 <= end) {
    xorProduct(word(bytes, at), P1_LOW, P1_HIGH);
    rotate(23);
    multiply(P2_LOW, P2_HIGH);
    add(P3_LOW, P3_HIGH);
    at += 4;
  }
  for (; at < end; at++) {
    xorProduct(bytes[at]!, P5_LOW, P5_HIGH);
    rotate(11);
    multiply(P1_LOW, P1_HIGH);
  }
}

function xorProduct(value: number, primeLow: number, primeHigh: number): void {
  const accLow = low;
  const accHigh = high;
  low = value;
  high = 0;
  multiply(primeLow, primeHigh);
  low = (low ^ accLow) >>> 0;
  high = (high ^ accHigh) >>> 0;
}

function avalanche(): void {
  low = (low ^ (high >>> 1)) >>> 0; // x ^= x >>> 33
  multiply(P2_LOW, P2_HIGH);
  const shifted = ((low >>> 29) | (high << 3)) >>> 0; // x ^= x >>> 29
  low = (low ^ shifted) >>> 0;
  high = (high ^ (high >>> 29)) >>> 0;
  multiply(P3_LOW, P3_HIGH);
  low = (low ^ high) >>> 0; // x ^= x >>> 32
}

/** xxh64 of bytes[start..end) as two words (low, high) at `hash[at]`. */
export function xxh64Words(
  bytes: Uint8Array,
  start: number,
  end: number,
  seedLow: number,
  seedHigh: number,
  hash: Uint32Array,
  at: number,
): void {
  let position = start;
  if (end - start >= 32) {
    startLanes(seedLow, seedHigh);
    for (; position + 32 <= end; position += 32) {
      for (let lane = 0; lane < 4; lane++) roundLane(lane, bytes, position + 8 * lane);
    }
    mergeLanes();
  } else {
    low = seedLow >>> 0;
    high = seedHigh >>> 0;
    add(P5_LOW, P5_HIGH);
  }
  const length = end - start;
  add(length >>> 0, Math.floor(length / 0x1_0000_0000));
  foldTail(bytes, position, end);
  avalanche();
  hash[at] = low;
  hash[at + 1] = high;
}
