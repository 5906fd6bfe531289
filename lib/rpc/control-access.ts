/**
 * Authorizes control calls: a caller needs the token or a trusted client certificate. Where neither
 * is configured, only callers on this host are allowed. Lookups need no authorization.
 */

import { createHash, timingSafeEqual } from 'node:crypto';
import { isIP } from 'node:net';
import { CubeError } from '../core/errors.ts';
import { quoteInput } from '../core/shown-input.ts';
import { wallClockMs } from '../platform/clock.ts';
import { getFileStamp } from '../platform/files.ts';
import type { Logger } from '../platform/logs.ts';
import { RateLimitedLog } from '../platform/logs.ts';
import type { ControlCaller } from './control-caller.ts';
import { readTokenFile } from './credentials.ts';

const LOOPBACK = /^(::ffff:)?127\.|^::1$/;

export interface ControlAccessOptions {
  /** Undefined: tokens are not accepted. */
  readonly tokenFile: string | undefined;
  /** Accept trusted client certificates. Default false. */
  readonly acceptCertificates?: boolean;
  readonly logger: Logger;
  /** The options that allow callers from other hosts, for error messages. */
  readonly authFlags?: string;
}

export class ControlAccess {
  readonly #tokenFile: string | undefined;
  readonly #acceptCertificates: boolean;
  readonly #logger: Logger;
  readonly #log: RateLimitedLog;
  readonly #authFlags: string;
  /**
   * Tokens are compared by digest: of equal length and in constant time, so that timing reveals
   * nothing.
   */
  #tokenDigest: Buffer | undefined;
  #stamp: string | undefined;

  /** @throws CubeError when the token file is unreadable or invalid */
  constructor(options: ControlAccessOptions) {
    const {
      tokenFile,
      acceptCertificates = false,
      logger,
      authFlags = '--control-token-file',
    } = options;
    this.#tokenFile = tokenFile;
    this.#acceptCertificates = acceptCertificates;
    this.#logger = logger;
    this.#log = new RateLimitedLog(logger);
    this.#authFlags = authFlags;
    if (tokenFile === undefined) return;
    this.#stamp = getFileStamp(tokenFile);
    this.#tokenDigest = hashToken(readTokenFile(tokenFile));
  }

  /** @throws CubeError DENIED, which is also logged */
  check(caller: ControlCaller): void {
    const refusal = this.#findRefusal(caller);
    if (refusal === undefined) return;
    const { remoteAddress, certificate } = caller;
    const shown = certificate === undefined ? {} : { certificate: certificate.subject };
    this.#log.warn({ remoteAddress, ...shown, reason: refusal }, 'control call denied');
    throw new CubeError('DENIED', refusal);
  }

  /** Returns why the call is denied; undefined when it is allowed. */
  #findRefusal(caller: ControlCaller): string | undefined {
    const tokenFile = this.#tokenFile;
    if (tokenFile === undefined && !this.#acceptCertificates)
      return findLocalAccessProblem(caller, this.#authFlags);
    if (tokenFile !== undefined && this.#hasToken(tokenFile, caller)) return undefined;
    const token = '"Authorization: Bearer" with the token';
    if (!this.#acceptCertificates) return `control calls need ${token}`;
    const problem = findCertificateProblem(caller);
    if (problem === undefined) return undefined;
    const accepted = tokenFile === undefined ? [] : [token];
    return `control calls need ${[...accepted, 'a client certificate'].join(', or ')}: ${problem}`;
  }

  #hasToken(tokenFile: string, { authorization = '' }: ControlCaller): boolean {
    this.#rereadToken(tokenFile);
    const bearer = /^Bearer (.+)$/.exec(authorization)?.[1] ?? '';
    return this.#tokenDigest !== undefined && timingSafeEqual(hashToken(bearer), this.#tokenDigest);
  }

  /** Reads a replaced token file. While it cannot be read, the previous token stays valid. */
  #rereadToken(tokenFile: string): void {
    const stamp = getFileStamp(tokenFile);
    if (stamp === this.#stamp) return;
    this.#stamp = stamp;
    try {
      this.#tokenDigest = hashToken(readTokenFile(tokenFile));
      this.#logger.info({ tokenFile }, 'control token changed');
    } catch (error) {
      const { message } = error as Error;
      this.#logger.warn(
        { error: message },
        'control token unreadable; the previous one stays valid',
      );
    }
  }
}

/** Returns why a caller's certificate does not authorize it; undefined when it does. */
function findCertificateProblem({ certificate, origin }: ControlCaller): string | undefined {
  if (certificate === undefined) return 'the caller presented none; call over TLS with one';
  const { subject, fault, validUntilMs } = certificate;
  const name = quoteInput(subject);
  if (fault !== undefined) return `the one of ${name} is not trusted (${fault})`;
  // A connection may outlive its certificate.
  if (validUntilMs < wallClockMs()) return `the one of ${name} has expired; connect again`;
  // A browser presents its certificate on behalf of any page.
  return origin === undefined ? undefined : 'it does not authorize web pages';
}

/**
 * Allows this host, but no web page of another site in a browser on it: such a page sends another
 * Origin, or a Host name that was rebound to our address. Returns why the call is denied;
 * undefined when it is allowed.
 */
function findLocalAccessProblem(
  { remoteAddress, host, origin }: ControlCaller,
  flags: string,
): string | undefined {
  if (!LOOPBACK.test(remoteAddress ?? '')) {
    return (
      'control calls are only accepted from this host; ' +
      `start the server with ${flags} to allow others`
    );
  }
  if (origin !== undefined && !isSameOrigin(origin, host)) {
    return 'control calls from web pages of other sites are not accepted';
  }
  const name = (host ?? 'localhost').replace(/:\d+$/, '').replace(/^\[|\]$/g, '');
  if (name === 'localhost' || isIP(name) > 0) return undefined;
  const shown = quoteInput(name);
  const rule = 'control calls must name this host by its address or localhost';
  return `${rule}, not ${shown}; or use ${flags}`;
}

/** Whether a page was served under the name and port that it calls: by this server itself. */
function isSameOrigin(origin: string, host: string | undefined): boolean {
  return host !== undefined && (origin === `http://${host}` || origin === `https://${host}`);
}

function hashToken(token: string): Buffer {
  return createHash('sha256').update(token).digest();
}
