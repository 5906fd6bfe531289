/**
 * Messages between the main thread and serving threads, as cloneable objects. The main thread
 * decides; a serving thread executes commands and reports completion. It forwards HTTP requests
 * that it does not answer itself (control, metrics, health) to the main thread.
 */

import type { AccessConfig } from '../lib/access/process-access.ts';
import type { ServerLimits } from '../lib/core/limits.ts';
import type { LogFormat, LogLevel } from '../lib/platform/logs.ts';
import type { ClientCertificate } from '../lib/rpc/control-caller.ts';
import type { TlsFiles } from '../lib/rpc/tls-identity.ts';
import type { SharedVersion } from '../lib/store/shared-version.ts';
import type { VersionRequest } from '../proto/control.ts';
import type { CubeTable } from './dict-service.ts';

export interface ThreadOptions {
  /** Starts at 1; 0 is the main thread. */
  readonly thread: number;
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly host: string;
  readonly port: number;
  readonly cubeTable: CubeTable | undefined;
  /** Why the load that was due at start failed; empty when it has not. */
  readonly startFailure: string;
  /** Absent: no TLS. */
  readonly tls: TlsFiles | undefined;
  readonly access: AccessConfig;
  readonly limits: ServerLimits;
  readonly logLevel: LogLevel;
  readonly logFormat: LogFormat;
}

export type ThreadCommand =
  | { readonly kind: 'add'; readonly shared: SharedVersion }
  | { readonly kind: 'activate'; readonly request: VersionRequest }
  | { readonly kind: 'remove'; readonly request: VersionRequest }
  | { readonly kind: 'drain'; readonly draining: boolean }
  | { readonly kind: 'listen' }
  /** Result: `ThreadLookupCount[]`. */
  | { readonly kind: 'count-lookups' }
  /** Result: the thread's metric values. */
  | { readonly kind: 'metrics' }
  | { readonly kind: 'stop' };

/** Lookups of a version since the last report. */
export interface ThreadLookupCount extends VersionRequest {
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
export type MessageToThread =
  | { readonly type: 'command'; readonly id: number; readonly command: ThreadCommand }
  | { readonly type: 'result'; readonly id: number; readonly result: HttpResult };

/** From a serving thread. */
export type MessageFromThread =
  | { readonly type: 'done'; readonly id: number; readonly answer: unknown }
  | {
      readonly type: 'failed';
      readonly id: number;
      readonly code: string;
      readonly message: string;
    }
  | { readonly type: 'call'; readonly id: number; readonly call: HttpCall };
