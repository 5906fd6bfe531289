/** Messages between the store and its load worker: cloneable objects, one response per request. */
import type { ErrorCode } from '../core/errors.ts';
import type { KernelKind } from '../core/kernels/kernels.ts';
import type { LayerHeader } from '../core/layer-format.ts';
import type { SealedHeader } from '../core/sealed-format.ts';
import type { PlacedSection } from './section-placement.ts';

export interface LoadWorkerData {
  /** The thread runs only while the machine has idle time. */
  readonly whenIdle: boolean;
}

/** Reads and checks a header. */
export interface InspectRequest {
  readonly type: 'inspect';
  readonly id: number;
  readonly path: string;
  /** Descriptor if the store has the file open; its path may no longer exist. */
  readonly descriptor: number | undefined;
  /** The key of a sealed file, once the store has found it. */
  readonly dataKey: Uint8Array | undefined;
}

/** Reads sections of an inspected layer into memories and verifies every block involved. */
export interface FillRequest {
  readonly type: 'fill';
  readonly id: number;
  readonly path: string;
  readonly descriptor: number | undefined;
  readonly dataKey: Uint8Array | undefined;
  readonly header: LayerHeader;
  readonly sections: readonly PlacedSection[];
  /** Indexed by a section's `memory`; `hashAddress` is 8 bytes of scratch space in each. */
  readonly memories: readonly WebAssembly.Memory[];
  readonly hashAddress: number;
  readonly kernelKind: KernelKind;
  /** Maximum read rate. */
  readonly bytesPerSecond: number;
  /** Blocks to fill, `first` to `end` − 1; the filter of a delta needs all of them. */
  readonly blocks: { readonly first: number; readonly end: number };
  /** Tells the thread to leave the remaining blocks to another one. */
  readonly handOver: Int32Array | undefined;
  /** The thread's word of the progress, from 0. */
  readonly part: number;
  /** The words of a LoadProgress. */
  readonly progress: Float64Array | undefined;
}

/** Aborts requests in progress, responds to them, then ends the thread. */
interface StopRequest {
  readonly type: 'stop';
}

export type LoadWorkerMessage = InspectRequest | FillRequest | StopRequest;

/** The header and the verified block checksums as words (low, high). */
export interface LayerInspection {
  readonly header: LayerHeader;
  readonly checksums: Uint32Array;
  /** The key of a sealed file. */
  readonly dataKey: Uint8Array | undefined;
}

/** The file is sealed, and the request has no key. */
export interface SealedInspection {
  readonly sealed: SealedHeader;
}

export interface FillResult {
  /** The key filter of a delta, once all blocks are filled. */
  readonly filter: Uint32Array | undefined;
  /** The first block that was not filled: the end, or where the thread was told to stop. */
  readonly next: number;
}

export type LoadWorkerResponse =
  | {
      readonly id: number;
      readonly ok: true;
      readonly result: LayerInspection | SealedInspection | FillResult;
    }
  | { readonly id: number; readonly ok: false; readonly code: ErrorCode; readonly message: string };
