/** What the store and its load worker say to each other: plain cloneable objects, one answer for each request. */
import type { ErrorCode } from '../core/errors.ts';
import type { KernelKind } from '../core/kernels/kernels.ts';
import type { LayerHeader } from '../core/layer-format.ts';
import type { PlacedSection } from './section-placement.ts';

/** Read and check a header. */
export interface InspectRequest {
  readonly type: 'inspect';
  readonly id: number;
  readonly path: string;
  /** Of the file when the store holds it open already: it may have lost its name. */
  readonly descriptor: number | undefined;
}

/** Read sections of an inspected layer into memories, checking every block that has some of them. */
export interface FillRequest {
  readonly type: 'fill';
  readonly id: number;
  readonly path: string;
  readonly descriptor: number | undefined;
  readonly header: LayerHeader;
  readonly sections: readonly PlacedSection[];
  /** By the number of the section's memory; `hashAt` is 8 bytes of scratch in each. */
  readonly memories: readonly WebAssembly.Memory[];
  readonly hashAt: number;
  readonly kernelKind: KernelKind;
  /** Read no faster than this. */
  readonly bytesPerSecond: number;
}

/** Give up what is under way, answer it, then end. */
interface StopRequest {
  readonly type: 'stop';
}

export type LoadMessage = InspectRequest | FillRequest | StopRequest;

/** What a layer is, and the checksums of its blocks: words (low, high), checked themselves. */
export interface LayerInspection {
  readonly header: LayerHeader;
  readonly checksums: Uint32Array;
}

/** What filling makes: the filter of a delta. */
export interface LayerFilling {
  readonly filter: Uint32Array | undefined;
}

export type LoadAnswer =
  | { readonly id: number; readonly ok: true; readonly result: LayerInspection | LayerFilling }
  | { readonly id: number; readonly ok: false; readonly code: ErrorCode; readonly message: string };
