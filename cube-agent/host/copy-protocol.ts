/** What an agent and its copying thread say to each other. */
import type { ErrorCode } from '../../lib/core/errors.ts';
import type { LayerRef } from '../../lib/core/manifest.ts';

export interface LayerCopy {
  readonly bundle: string;
  readonly table: string;
  readonly layer: LayerRef;
  /** The path that it shall have here. */
  readonly target: string;
}

export interface CopyRequest extends LayerCopy {
  readonly type: 'copy';
  readonly id: number;
  /** All copies that are given the same share it. */
  readonly bytesPerSecond: number | undefined;
}

/** Stops a copy between two pieces; it is answered like any other. */
interface AbortRequest {
  readonly type: 'abort';
  readonly id: number;
}

export type CopyMessage = CopyRequest | AbortRequest;

export type CopyReport =
  | { readonly id: number; readonly type: 'bytes'; readonly bytes: number }
  | { readonly id: number; readonly type: 'done' }
  | {
      readonly id: number;
      readonly type: 'failed';
      readonly code: ErrorCode;
      readonly message: string;
    };
