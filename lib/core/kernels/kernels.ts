/**
 * The kernels over one shared memory: WebAssembly SIMD, or the plain TypeScript twin where that is missing. All
 * arguments are byte addresses and counts inside the memory; they are trusted, so whoever calls checked them.
 *
 * A segment's parameter block (little-endian, PARAMS_BYTES):
 *
 *      0 u64 emptyKey (inline) / firstKey (dense)     44 u32 stride
 *      8 u64 keyStep (dense)                          48 u32 rowBytes (a multiple of 4)
 *     16 u64 homeSlots (inline)                       52 u32 segment index
 *     24 u64 first row of the segment (dense)         56 u32 segment count
 *     32 u64 rows of the segment (dense)              60 u32 zero
 *     40 u32 address of the first slot or row         64 i32 log2(keyStep), or -1 when it is no power of two
 *                                                     68 u32 shard index    72 u32 shard number
 *
 * `work` is WORK_BYTES of scratch that belongs to the calling thread. `found` is a bitmap, 4-byte aligned, written in
 * whole words. The segments of a layer are asked in turn: segment 0 overwrites `found`, the others add to it.
 */
import { KERNELS_WASM_BASE64 } from './generated/kernels.ts';
import { createTwin } from './twin.ts';

export const PARAMS_BYTES = 128;
export const WORK_BYTES = 320;
/** A lookup may read (and ignore) this much beyond a segment; the memory must reach that far. */
export const READ_AHEAD_BYTES = 256;
export const PAGE_BYTES = 65_536;
/** A WebAssembly memory ends at 4 GiB. */
export const MEMORY_PAGES_MAX = 65_536;

export interface Kernels {
  /** xxh64 of a range as a u64 at `hash`. Call it over at most 1 MiB at a time. */
  xxh64(at: number, length: number, seedLow: number, seedHigh: number, hash: number): void;
  /** Keys of `count` texts that end at the u32 offsets `ends`; params: u64 seed, u64 modulo (0: none). */
  hashTexts(params: number, texts: number, ends: number, count: number, keys: number): void;
  /** Rows of the keys that are in this segment, at their place in `rows`. @returns hits */
  lookupInline: SegmentLookup;
  lookupDense: SegmentLookup;
  /** The default row for each key not found. @returns the first one of another shard, where it stops, or -1 */
  fillMissing(
    params: number,
    keys: number,
    found: number,
    rows: number,
    count: number,
    defaultRow: number,
  ): number;
}

export type SegmentLookup = (
  params: number,
  work: number,
  keys: number,
  found: number,
  rows: number,
  count: number,
) => number;

export type KernelKind = 'wasm' | 'twin';

let compiled: WebAssembly.Module | undefined;
let best: KernelKind | undefined;

/** What this runtime can do: the twin where WebAssembly has no SIMD or no shared memory. */
export function bestKernelKind(): KernelKind {
  if (best === undefined) {
    try {
      compileKernels();
      best = 'wasm';
    } catch {
      best = 'twin';
    }
  }
  return best;
}

function compileKernels(): WebAssembly.Module {
  compiled ??= new WebAssembly.Module(
    Uint8Array.from(atob(KERNELS_WASM_BASE64), (c) => c.charCodeAt(0)),
  );
  return compiled;
}

/**
 * Kernels over `memory`. After the memory has grown, kernels of kind 'twin' must be created again.
 * @param kind for tests and benchmarks; otherwise the best there is
 */
export function createKernels(
  memory: WebAssembly.Memory,
  kind: KernelKind = bestKernelKind(),
): Kernels {
  if (kind === 'twin') return createTwin(memory.buffer);
  const instance = new WebAssembly.Instance(compileKernels(), { env: { memory } });
  return instance.exports as unknown as Kernels;
}

/** A shared memory that may grow to 4 GiB: address space is reserved for the most in any case, pages are not. */
export function createMemory(bytes: number): WebAssembly.Memory {
  const initial = Math.ceil(bytes / PAGE_BYTES);
  return new WebAssembly.Memory({ initial, maximum: MEMORY_PAGES_MAX, shared: true });
}
