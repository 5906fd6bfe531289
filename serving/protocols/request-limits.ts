/** Limits of the serving port and of a request. */
import { CubeError } from '../../lib/core/errors.ts';
import { DEFAULT_SERVER_LIMITS, type ServerLimits } from '../../lib/core/limits.ts';
import { EXPERIMENT_KEY_CHARS_MAX } from '../../proto/ctr.ts';

/** Maximum rows in one request, so that no request delays the others for long. */
export const ROWS_PER_REQUEST_MAX = 10_000;

/** Longest timeout that a request can set. */
export const TIMEOUT_MS_MAX = 600_000;

/**
 * Compared with a cube-server: large requests, small responses, many clients. @param messageBytes
 * maximum bytes of a request, compressed or not
 */
export function createServingLimits(messageBytes: number): ServerLimits {
  return {
    ...DEFAULT_SERVER_LIMITS,
    httpBodyBytes: messageBytes,
    inflatedBytes: messageBytes,
    frameBytes: messageBytes,
    grpcMessageBytes: messageBytes,
    /**
     * Predictions have their own limit (--max-in-flight); this one includes requests whose body is
     * still arriving.
     */
    httpInFlight: 4096,
    grpcInFlight: 4096,
    callsInFlight: 4096,
    grpcStreams: 1024,
  };
}

/**
 * @param place where the request has the key, for the error
 * @returns undefined for none: an empty text is none
 * @throws CubeError INVALID_ARGUMENT
 */
export function checkExperimentKey(value: unknown, place: string): string | undefined {
  if (value === undefined || value === '') return undefined;
  if (typeof value === 'string' && value.length <= EXPERIMENT_KEY_CHARS_MAX) return value;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${place}: expected one value of at most ${EXPERIMENT_KEY_CHARS_MAX} characters`,
  );
}
