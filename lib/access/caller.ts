/** A caller as every protocol shows it, before the body of its request is read. */

/** A TLS client certificate. */
export interface CallerCertificate {
  /** For messages and logs. */
  readonly subject: string;
  /** Why it is not trusted; absent: it is trusted. */
  readonly fault?: string;
  /** Milliseconds since 1970. */
  readonly validUntilMs: number;
}

/** Undefined: not sent. */
export interface CallerHead {
  /** HTTP's `authorization`, as gRPC metadata or as baidu_std's `authentication_data` too. */
  readonly authorization: string | undefined;
  /** The header or metadata `x-api-key`. */
  readonly apiKey?: string | undefined;
  /** The IP address of the connection's other end. */
  readonly peerAddress: string | undefined;
  /** The header `x-forwarded-for`, which only trusted proxies may send. */
  readonly forwardedFor?: string | undefined;
  readonly certificate?: CallerCertificate | undefined;
}

/** The method that a request calls. */
export interface CalledMethod {
  readonly protocol: 'http' | 'grpc' | 'baidu_std';
  /** HTTP's method; empty elsewhere. */
  readonly verb: string;
  /** HTTP's route, or `/service/method`. */
  readonly path: string;
}

/**
 * Returns the API key that a caller sent: `x-api-key`, `Bearer <key>`, or over baidu_std the key
 * alone; undefined without one.
 */
export function readApiKey({
  apiKey,
  authorization,
}: Pick<CallerHead, 'apiKey' | 'authorization'>): string | undefined {
  if (apiKey !== undefined && apiKey !== '') return apiKey;
  if (authorization === undefined || authorization === '') return undefined;
  const bearer = /^bearer +(.*)$/is.exec(authorization)?.[1];
  return (bearer ?? authorization).trim();
}
