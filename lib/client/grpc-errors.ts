/** Errors of gRPC calls as CubeErrors. */
import { type ServiceError, status } from '@grpc/grpc-js';
import { decodeErrorDetails, ERROR_DETAILS_KEY } from '../core/error-details.ts';
import { CubeError, ERROR_STATUS, type ErrorCode } from '../core/errors.ts';

/** The trailer with the error's own code, which is more exact than gRPC's status. */
const CODE_KEY = 'hypercube-code';

/** The error code for a gRPC status without that trailer. */
const CODE_BY_STATUS: Readonly<Record<number, ErrorCode>> = {
  [status.UNAUTHENTICATED]: 'UNAUTHENTICATED',
  [status.INVALID_ARGUMENT]: 'INVALID_ARGUMENT',
  [status.NOT_FOUND]: 'NOT_FOUND',
  [status.DEADLINE_EXCEEDED]: 'DEADLINE_EXCEEDED',
  [status.RESOURCE_EXHAUSTED]: 'OVERLOADED',
  [status.UNIMPLEMENTED]: 'UNSUPPORTED',
  [status.UNAVAILABLE]: 'UNAVAILABLE',
  [status.CANCELLED]: 'UNAVAILABLE',
};

export function fromServiceError(error: ServiceError, host: string): CubeError {
  const own = String(error.metadata?.get(CODE_KEY)[0] ?? '');
  const code = Object.hasOwn(ERROR_STATUS, own)
    ? (own as ErrorCode)
    : (CODE_BY_STATUS[error.code] ?? 'INTERNAL');
  const details = decodeErrorDetails(String(error.metadata?.get(ERROR_DETAILS_KEY)[0] ?? ''));
  return new CubeError(code, `${host}: ${error.details}`, { cause: error, details });
}
