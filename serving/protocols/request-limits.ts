/** Limits of the serving port and of a request. */
import { DEFAULT_SERVER_LIMITS, type ServerLimits } from '../../lib/core/limits.ts';

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
