/** What the store and its load worker say to each other: plain cloneable objects, one answer for each request. */
import type { ErrorCode } from '../core/errors.ts';
import type { KernelKind } from '../core/kernels/kernels.ts';
import type { LayerHeader } from '../core/layer-format.ts';

/** Read and check a header. */
export interface InspectRequest {
  readonly type: 'inspect';
  readonly id: number;
  readonly path: string;
}

/** Read the segments of an inspected layer into memories, checking every block. */
export interface FillRequest {
  readonly type: 'fill';
  readonly id: number;
  readonly path: string;
  readonly header: LayerHeader;
  /** One for each segment; its bytes go to `address`, and `hashAt` is 8 bytes of scratch. */
  readonly memories: readonly WebAssembly.Memory[];
  readonly address: number;
  readonly hashAt: number;
  readonly kernelKind: KernelKind;
  /** Read no faster than this; undefined: as fast as possible. */
  readonly bytesPerSecond: number | undefined;
}

/** Give up what is under way, answer it, then end. */
interface StopRequest {
  readonly type: 'stop';
}

export type LoadMessage = InspectRequest | FillRequest | StopRequest;

export type LoadAnswer =
  | { readonly id: number; readonly ok: true; readonly header: LayerHeader }
  | { readonly id: number; readonly ok: false; readonly code: ErrorCode; readonly message: string };
