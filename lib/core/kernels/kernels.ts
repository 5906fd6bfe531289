/**
 * Makes kernels over a shared memory: WebAssembly SIMD, or the plain TypeScript twin where that is missing.
 */
import type { Kernels } from './contract.ts';
import { KERNELS_WASM_BASE64 } from './generated/kernels.ts';
import { createTwin } from './twin.ts';

export const PAGE_BYTES = 65_536;
/** A WebAssembly memory ends at 4 GiB. */
export const MEMORY_PAGES_MAX = 65_536;

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
