/**
 * Creates kernels over a shared memory: WebAssembly with SIMD, or portable TypeScript where the
 * runtime has no SIMD.
 */
import type { Kernels } from './contract.ts';
import { KERNELS_WASM_BASE64 } from './generated/kernels.ts';
import { createPortableKernels } from './portable.ts';

export const PAGE_BYTES = 65_536;
/** A WebAssembly memory has at most 4 GiB. */
export const MEMORY_PAGES_MAX = 65_536;

export type KernelKind = 'wasm' | 'portable';

let compiledModule: WebAssembly.Module | undefined;
let detectedKind: KernelKind | undefined;

/**
 * The fastest kind that this runtime supports: portable without WebAssembly SIMD or shared memory.
 */
export function detectKernelKind(): KernelKind {
  if (detectedKind === undefined) {
    try {
      compileKernels();
      detectedKind = 'wasm';
    } catch {
      detectedKind = 'portable';
    }
  }
  return detectedKind;
}

function compileKernels(): WebAssembly.Module {
  compiledModule ??= new WebAssembly.Module(
    Uint8Array.from(atob(KERNELS_WASM_BASE64), (c) => c.charCodeAt(0)),
  );
  return compiledModule;
}

/**
 * Creates kernels over `memory`. After the memory has grown, portable kernels must be created
 * again.
 * @param kind for tests and benchmarks; default: the fastest that the runtime supports
 */
export function createKernels(
  memory: WebAssembly.Memory,
  kind: KernelKind = detectKernelKind(),
): Kernels {
  if (kind === 'portable') return createPortableKernels(memory.buffer);
  const instance = new WebAssembly.Instance(compileKernels(), { env: { memory } });
  return instance.exports as unknown as Kernels;
}

/**
 * Creates a shared memory that may grow to 4 GiB. It reserves address space for the maximum, but
 * pages only for `bytes`.
 */
export function createMemory(bytes: number): WebAssembly.Memory {
  const initial = Math.ceil(bytes / PAGE_BYTES);
  return new WebAssembly.Memory({ initial, maximum: MEMORY_PAGES_MAX, shared: true });
}

/**
 * Makes one object for each kind, when it is asked for the first time. Calls are synchronous, so
 * all users in a thread share it.
 */
export function shareByKind<T>(
  create: (kind: KernelKind | undefined) => T,
): (kind: KernelKind | undefined) => T {
  const made = new Map<KernelKind | undefined, T>();
  return (kind) => {
    let one = made.get(kind);
    if (one === undefined) {
      one = create(kind);
      made.set(kind, one);
    }
    return one;
  };
}
