/** The messages between an agent and its copy threads. */
import type { ErrorCode } from '../../lib/core/errors.ts';
import type { LayerRef } from '../../lib/core/manifest.ts';

export interface LayerCopy {
  readonly bundle: string;
  readonly table: string;
  readonly layer: LayerRef;
  /** Path of the copy on this host. */
  readonly target: string;
}

export interface CopyRequest extends LayerCopy {
  readonly type: 'copy';
  readonly id: number;
  /** Rate limit, shared by all copies with the same value. */
  readonly bytesPerSecond: number | undefined;
}

/** Stops a copy between two blocks. The copy still ends with a report. */
interface AbortRequest {
  readonly type: 'abort';
  readonly id: number;
}

/** Frees the space of a removed file. */
interface CloseRequest {
  readonly type: 'close';
  readonly descriptor: number;
}

export interface CopyWorkerData {
  /** The location of the repository. */
  readonly location: string;
  /** The thread runs only while the machine has idle time. */
  readonly whenIdle: boolean;
}

export type CopyMessage = CopyRequest | AbortRequest | CloseRequest;

export type CopyReport =
  | { readonly id: number; readonly type: 'bytes'; readonly bytes: number }
  | { readonly id: number; readonly type: 'done' }
  | {
      readonly id: number;
      readonly type: 'failed';
      readonly code: ErrorCode;
      readonly message: string;
    };
