/** Failures of HTTP requests as CubeErrors. */
import { toErrorDetails } from '../core/error-details.ts';
import { CubeError, ERROR_STATUS, type ErrorCode } from '../core/errors.ts';

/** The error code for an HTTP status without one, for example from a proxy. */
const CODE_BY_STATUS: Readonly<Record<number, ErrorCode>> = {
  400: 'INVALID_ARGUMENT',
  401: 'UNAUTHENTICATED',
  403: 'DENIED',
  404: 'NOT_FOUND',
  408: 'DEADLINE_EXCEEDED',
  413: 'TOO_LARGE',
  429: 'OVERLOADED',
  502: 'UNAVAILABLE',
  503: 'UNAVAILABLE',
  504: 'DEADLINE_EXCEEDED',
};

/** The error of a response whose status reports a failure. */
export function toStatusError(status: number, text: string, host: string): CubeError {
  const own = parseServerError(text, host);
  if (own !== undefined) return own;
  const code = CODE_BY_STATUS[status] ?? 'INTERNAL';
  return new CubeError(code, `${host}: HTTP ${status}: ${text.slice(0, 200)}`);
}

/** The error of a request without a response. */
export function toConnectionError(error: Error, host: string): CubeError {
  if (error instanceof CubeError) return error;
  return new CubeError('UNAVAILABLE', `${host}: ${error.message}`, { cause: error });
}

export function createTimeoutError(host: string, timeoutMs: number): CubeError {
  const text = `${host}: no response within ${Math.round(timeoutMs)} ms`;
  return new CubeError('DEADLINE_EXCEEDED', text);
}

function parseServerError(text: string, host: string): CubeError | undefined {
  try {
    const { code, error, details } = JSON.parse(text);
    if (typeof code !== 'string' || !Object.hasOwn(ERROR_STATUS, code)) return undefined;
    const message = `${host}: ${String(error)}`;
    return new CubeError(code as ErrorCode, message, { details: toErrorDetails(details) });
  } catch {
    return undefined;
  }
}
