/**
 * What the main thread and the threads that serve beside it say to each other: cloneable objects. The main thread
 * decides; a serving thread does as told and says when it is done. HTTP requests that a serving thread does not
 * answer itself (control, metrics, health) it hands to the main thread.
 */
import type { ServerLimits } from '../lib/core/limits.ts';
import type { ClientCertificate } from '../lib/rpc/control-caller.ts';
import type { TlsFiles } from '../lib/rpc/tls-identity.ts';
import type { SharedVersion } from '../lib/store/shared-version.ts';
import type { VersionRequest } from '../proto/control.ts';
import type { CubeTable } from './dict-service.ts';

export interface ThreadOptions {
  /** 1 and up; 0 is the main thread. */
  readonly thread: number;
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly host: string;
  readonly port: number;
  readonly cubeTable: CubeTable | undefined;
  /** Absent: TLS is not spoken. */
  readonly tls: TlsFiles | undefined;
  readonly limits: ServerLimits;
  readonly logLevel: string;
}

export type ThreadOrder =
  | { readonly kind: 'hold'; readonly shared: SharedVersion }
  | { readonly kind: 'activate'; readonly request: VersionRequest }
  | { readonly kind: 'drop'; readonly request: VersionRequest }
  | { readonly kind: 'drain'; readonly draining: boolean }
  | { readonly kind: 'listen' }
  /** Answered by `ThreadUse[]`. */
  | { readonly kind: 'observe' }
  /** Answered by the thread's metric values. */
  | { readonly kind: 'metrics' }
  | { readonly kind: 'stop' };

/** Lookups of a version since it was last asked. */
export interface ThreadUse extends VersionRequest {
  readonly lookups: number;
}

export interface HttpCall {
  readonly method: string;
  readonly url: string;
  readonly headers: Record<string, string | string[] | undefined>;
  readonly body: Uint8Array | undefined;
  readonly remoteAddress: string;
  readonly certificate: ClientCertificate | undefined;
}

export interface HttpResult {
  readonly status: number;
  readonly headers: Record<string, string>;
  readonly body: Uint8Array;
}

/** To a serving thread. */
export type ToThread =
  | { readonly type: 'order'; readonly id: number; readonly order: ThreadOrder }
  | { readonly type: 'result'; readonly id: number; readonly result: HttpResult };

/** From a serving thread. */
export type FromThread =
  | { readonly type: 'done'; readonly id: number; readonly answer: unknown }
  | {
      readonly type: 'failed';
      readonly id: number;
      readonly code: string;
      readonly message: string;
    }
  | { readonly type: 'call'; readonly id: number; readonly call: HttpCall };
