/** What a serving process takes from its callers: the limits of its one port, and those of a request. */
import { DEFAULT_SERVER_LIMITS, type ServerLimits } from '../lib/core/limits.ts';

/** Rows of one request; more belong into several, so that no request holds the others up. */
export const ROWS_PER_REQUEST_MAX = 10_000;

/** What a caller may ask to be waited for. */
export const TIMEOUT_MS_MAX = 600_000;

/** A body with as many rows as a request may have, of a thousand bytes each and more. */
const BODY_BYTES_MAX = 16 << 20;

/** Where a serving process differs from a server of tables: large bodies, small answers, many callers. */
export const SERVING_LIMITS: ServerLimits = {
  ...DEFAULT_SERVER_LIMITS,
  httpBodyBytes: BODY_BYTES_MAX,
  inflatedBytes: BODY_BYTES_MAX,
  frameBytes: BODY_BYTES_MAX,
  grpcMessageBytes: BODY_BYTES_MAX,
  /** Predictions are admitted by their own limit; this one also counts bodies that are still on their way. */
  httpInFlight: 4096,
  grpcInFlight: 4096,
  callsInFlight: 4096,
  grpcStreams: 1024,
};
