/**
 * The one error type of the project. The set of codes is closed: this table maps each code to every
 * protocol, so that a failure means the same over gRPC, HTTP and baidu_std, and a client knows
 * whether to retry.
 */
import type { ErrorDetails } from './error-details.ts';

/** How a code appears in each protocol. `brpc` follows brpc's errno.proto where it has a number. */
export interface ErrorStatus {
  readonly http: number;
  readonly grpc: number;
  readonly brpc: number;
  /** True when another replica, or the same replica later, may succeed. */
  readonly retryable: boolean;
}

export type { ErrorDetails } from './error-details.ts';

export type ErrorCode =
  | 'INVALID_ARGUMENT'
  | 'UNAUTHENTICATED'
  | 'DENIED'
  | 'NOT_FOUND'
  | 'UNSUPPORTED'
  | 'CONFLICT'
  | 'WRONG_SHARD'
  | 'VERSION_ABSENT'
  | 'TOO_LARGE'
  | 'OVERLOADED'
  | 'RATE_LIMITED'
  | 'NOT_READY'
  | 'UNAVAILABLE'
  | 'STOPPING'
  | 'DEADLINE_EXCEEDED'
  | 'CORRUPT'
  | 'DAMAGED'
  | 'IO'
  | 'INTERNAL';

export const ERROR_STATUS: Readonly<Record<ErrorCode, ErrorStatus>> = {
  /** The request has invalid bytes, flags or fields. */
  INVALID_ARGUMENT: { http: 400, grpc: 3, brpc: 1003, retryable: false },
  /** The caller lacks the authority. Control calls have credentials of their own. */
  DENIED: { http: 403, grpc: 7, brpc: 1004, retryable: false },
  /** The caller sent no valid credential. */
  UNAUTHENTICATED: { http: 401, grpc: 16, brpc: 1004, retryable: false },
  /** The named bundle, table, model or file does not exist. */
  NOT_FOUND: { http: 404, grpc: 5, brpc: 1001, retryable: false },
  /** The service exists, but this build does not support the method. */
  UNSUPPORTED: { http: 501, grpc: 12, brpc: 1002, retryable: false },
  /** The item exists already with other content, or another writer was first. */
  CONFLICT: { http: 409, grpc: 6, brpc: 3001, retryable: false },
  /** A lookup for a shard that this replica does not serve. Never answered as missing keys. */
  WRONG_SHARD: { http: 421, grpc: 9, brpc: 3002, retryable: false },
  /** The requested version is not loaded on this replica; the error names the loaded versions. */
  VERSION_ABSENT: { http: 412, grpc: 9, brpc: 3003, retryable: true },
  /** The request exceeds a limit on size, count or length. */
  TOO_LARGE: { http: 413, grpc: 8, brpc: 1003, retryable: false },
  /** Rejected at once instead of queued without bound. */
  OVERLOADED: { http: 429, grpc: 8, brpc: 2004, retryable: true },
  /** The caller's own limit; `details.retryAfterMs` says when another attempt can succeed. */
  RATE_LIMITED: { http: 429, grpc: 8, brpc: 3004, retryable: false },
  /**
   * No valid version is loaded yet. brpc's clients retry ELIMIT (2004) on another server. They
   * retry ELOGOFF (2003) too, but then call this server no more until its connection is closed.
   */
  NOT_READY: { http: 503, grpc: 14, brpc: 2004, retryable: true },
  /** No replica of a shard, or no store, responded. */
  UNAVAILABLE: { http: 503, grpc: 14, brpc: 3005, retryable: true },
  /** The process is draining and accepts no new requests. */
  STOPPING: { http: 503, grpc: 14, brpc: 2003, retryable: true },
  DEADLINE_EXCEEDED: { http: 504, grpc: 4, brpc: 1008, retryable: false },
  /** A file's bytes do not match its checksums or its format. The load stops. */
  CORRUPT: { http: 500, grpc: 15, brpc: 3006, retryable: false },
  /** The request's bytes do not match their checksum: they were corrupted in transit. Retry. */
  DAMAGED: { http: 400, grpc: 15, brpc: 1003, retryable: true },
  /** The operating system reported an error: disk full, permission denied, port in use. */
  IO: { http: 500, grpc: 13, brpc: 3007, retryable: false },
  INTERNAL: { http: 500, grpc: 13, brpc: 2001, retryable: false },
};

const codeByBrpcNumber = new Map<number, ErrorCode>(
  (Object.entries(ERROR_STATUS) as [ErrorCode, ErrorStatus][])
    .reverse()
    .map(([code, status]) => [status.brpc, code]),
);

/**
 * The code's name, sent beside its brpc number when several codes share that number (brpc has one
 * number for invalid, too large and corrupted requests). Empty when the number identifies the code.
 */
export function getWireErrorName(code: ErrorCode): string {
  return codeByBrpcNumber.get(ERROR_STATUS[code].brpc) === code ? '' : code;
}

export interface CubeErrorOptions {
  readonly cause?: unknown;
  readonly details?: ErrorDetails;
}

const NO_DETAILS: ErrorDetails = Object.freeze({});

/** A failure that a user can act on: the message says what failed, where, and what to do. */
export class CubeError extends Error {
  override readonly name = 'CubeError';
  readonly code: ErrorCode;
  /** What the failure is about, for callers that act on it; empty when unknown. */
  readonly details: ErrorDetails;

  constructor(code: ErrorCode, message: string, options: CubeErrorOptions = {}) {
    super(message, 'cause' in options ? { cause: options.cause } : undefined);
    this.code = code;
    this.details = options.details ?? NO_DETAILS;
  }

  get status(): ErrorStatus {
    return ERROR_STATUS[this.code];
  }

  /**
   * The error that a peer sent as a brpc error code; an unknown code becomes INTERNAL.
   * @param name result of `getWireErrorName` on the peer; ignored when it does not match the number
   */
  static fromBrpc(
    errorCode: number,
    text: string,
    name = '',
    details: ErrorDetails = NO_DETAILS,
  ): CubeError {
    const named = Object.hasOwn(ERROR_STATUS, name) ? (name as ErrorCode) : undefined;
    if (named !== undefined && ERROR_STATUS[named].brpc === errorCode) {
      return new CubeError(named, text, { details });
    }
    return new CubeError(codeByBrpcNumber.get(errorCode) ?? 'INTERNAL', text, { details });
  }

  /** Converts any thrown value. A foreign error becomes INTERNAL and is kept as the cause. */
  static from(error: unknown): CubeError {
    if (error instanceof CubeError) return error;
    const message = error instanceof Error ? error.message : String(error);
    return new CubeError('INTERNAL', message, { cause: error });
  }
}

/**
 * Returns a value that the program guarantees to exist.
 * @param what the name of the value in the error
 * @throws CubeError INTERNAL when it is undefined, which is a defect of the program
 */
export function requireDefined<T>(value: T | undefined, what: string): T {
  if (value !== undefined) return value;
  throw new CubeError('INTERNAL', `internal value missing: ${what}; report this defect`);
}
