/** Messages between serving and its worker processes, over their IPC channels. */
import type { ErrorCode } from '../lib/core/errors.ts';

export type MessageToWorker =
  /** A connection comes with the message; `taken` answers. */
  | { readonly type: 'connection'; readonly id: number }
  /** Send the metrics, or what the console shows of the pipeline; `values` answers. */
  | { readonly type: 'collect'; readonly id: number; readonly part: WorkerPart }
  | { readonly type: 'metrics'; readonly id: number; readonly text: string }
  | { readonly type: 'described'; readonly id: number; readonly pipelines: readonly object[] }
  /** Build the changed set of pipelines, workflows and services; `prepared` answers. */
  | { readonly type: 'prepare'; readonly id: number }
  /** Every worker has built it: use it. */
  | { readonly type: 'commit' }
  | { readonly type: 'discard'; readonly problem: string }
  | { readonly type: 'reloaded'; readonly id: number; readonly error?: WorkerError };

export type MessageFromWorker =
  /** It accepts connections; `isReady`: its models are loaded too. */
  | { readonly type: 'state'; readonly isReady: boolean }
  | { readonly type: 'taken'; readonly id: number }
  /** It stops by itself and accepts no more connections. */
  | { readonly type: 'leaving' }
  | { readonly type: 'values'; readonly id: number; readonly values: object }
  /** A scrape asks for the metrics of all workers. */
  | { readonly type: 'scrape'; readonly id: number }
  /** The console asks for the pipelines of all workers; `described` answers. */
  | { readonly type: 'describe'; readonly id: number }
  | { readonly type: 'prepared'; readonly id: number; readonly error?: WorkerError }
  /** A control call asks for a reload of all workers; `reloaded` answers. */
  | { readonly type: 'reload'; readonly id: number };

export type WorkerPart = 'metrics' | 'pipeline';

export interface WorkerError {
  readonly code: ErrorCode;
  readonly message: string;
}
