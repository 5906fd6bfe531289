/**
 * The one error of the project. Its code is closed: this table maps each code to every protocol we speak, so a
 * failure means the same thing over gRPC, HTTP and baidu_std, and a client knows whether another replica may help.
 */

/** How one code appears on each wire. `brpc` follows brpc's errno.proto where it has a number for it. */
export interface ErrorStatus {
  readonly http: number;
  readonly grpc: number;
  readonly brpc: number;
  /** Another replica, or the same one later, may answer. */
  readonly retryable: boolean;
}

export type ErrorCode =
  | 'INVALID_ARGUMENT'
  | 'DENIED'
  | 'NOT_FOUND'
  | 'UNSUPPORTED'
  | 'CONFLICT'
  | 'WRONG_SHARD'
  | 'VERSION_ABSENT'
  | 'TOO_LARGE'
  | 'OVERLOADED'
  | 'NOT_READY'
  | 'UNAVAILABLE'
  | 'STOPPING'
  | 'DEADLINE_EXCEEDED'
  | 'CORRUPT'
  | 'DAMAGED'
  | 'IO'
  | 'INTERNAL';

export const ERROR_STATUS: Readonly<Record<ErrorCode, ErrorStatus>> = {
  /** The caller's bytes, flags or fields are wrong. */
  INVALID_ARGUMENT: { http: 400, grpc: 3, brpc: 1003, retryable: false },
  /** The caller may not do this: control calls have an authority of their own. */
  DENIED: { http: 403, grpc: 7, brpc: 1004, retryable: false },
  /** The named bundle, table, model or file does not exist. */
  NOT_FOUND: { http: 404, grpc: 5, brpc: 1001, retryable: false },
  /** The service exists, the method does not (or is not supported by this build). */
  UNSUPPORTED: { http: 501, grpc: 12, brpc: 1002, retryable: false },
  /** It exists already with other content, or another writer was first. */
  CONFLICT: { http: 409, grpc: 6, brpc: 3001, retryable: false },
  /** A lookup for a shard that this replica does not serve. Never answered as missing keys. */
  WRONG_SHARD: { http: 421, grpc: 9, brpc: 3002, retryable: false },
  /** This replica does not hold the version that the request is pinned to; it names those it holds. */
  VERSION_ABSENT: { http: 412, grpc: 9, brpc: 3003, retryable: true },
  /** Over a limit of size, count or length. */
  TOO_LARGE: { http: 413, grpc: 8, brpc: 1003, retryable: false },
  /** Refused early instead of queued without bound. */
  OVERLOADED: { http: 429, grpc: 8, brpc: 2004, retryable: true },
  /** No valid version is loaded (yet). */
  NOT_READY: { http: 503, grpc: 14, brpc: 3004, retryable: true },
  /** Nobody answered: no replica of a shard, no store. */
  UNAVAILABLE: { http: 503, grpc: 14, brpc: 3005, retryable: true },
  /** The process is finishing its last requests. */
  STOPPING: { http: 503, grpc: 14, brpc: 2003, retryable: true },
  DEADLINE_EXCEEDED: { http: 504, grpc: 4, brpc: 1008, retryable: false },
  /** A file's bytes are not what they must be. Stops the load. */
  CORRUPT: { http: 500, grpc: 15, brpc: 3006, retryable: false },
  /** The caller's bytes are not what their checksum says: the way hurt them, and another try may come through whole. */
  DAMAGED: { http: 400, grpc: 15, brpc: 1003, retryable: true },
  /** The operating system refused: disk full, permission, port in use. */
  IO: { http: 500, grpc: 13, brpc: 3007, retryable: false },
  INTERNAL: { http: 500, grpc: 13, brpc: 2001, retryable: false },
};

const codeOfBrpc = new Map<number, ErrorCode>(
  (Object.entries(ERROR_STATUS) as [ErrorCode, ErrorStatus][])
    .reverse()
    .map(([code, status]) => [status.brpc, code]),
);

/**
 * What a baidu_std error says beside its number where several codes share one: brpc has a single number for a bad request, a large
 * one and a damaged one. Empty where the number alone says it.
 */
export function codeNameOf(code: ErrorCode): string {
  return codeOfBrpc.get(ERROR_STATUS[code].brpc) === code ? '' : code;
}

/** A failure that a user can act on: what was wrong, where, and what to do, in one message. */
export class CubeError extends Error {
  override readonly name = 'CubeError';
  readonly code: ErrorCode;

  constructor(code: ErrorCode, message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.code = code;
  }

  get status(): ErrorStatus {
    return ERROR_STATUS[this.code];
  }

  /**
   * The error that a peer sent as a brpc error code; unknown codes are INTERNAL.
   * @param name what `codeNameOf` gave; empty, unknown or another number's: the number decides
   */
  static fromBrpc(errorCode: number, text: string, name = ''): CubeError {
    const named = Object.hasOwn(ERROR_STATUS, name) ? (name as ErrorCode) : undefined;
    if (named !== undefined && ERROR_STATUS[named].brpc === errorCode) {
      return new CubeError(named, text);
    }
    return new CubeError(codeOfBrpc.get(errorCode) ?? 'INTERNAL', text);
  }

  /** Any thrown value as a CubeError: a foreign error is INTERNAL and keeps its cause. */
  static from(error: unknown): CubeError {
    if (error instanceof CubeError) return error;
    const message = error instanceof Error ? error.message : String(error);
    return new CubeError('INTERNAL', message, { cause: error });
  }
}
