/**
 * Who may make control calls: whoever bears the token, or shows a certificate that is believed; where neither is asked for, only
 * this host. Lookups need none of it: the two authorities are separate.
 */
import { createHash, timingSafeEqual } from 'node:crypto';
import { isIP } from 'node:net';
import { CubeError } from '../core/errors.ts';
import { wallClockMs } from '../platform/clock.ts';
import { fileStamp } from '../platform/files.ts';
import type { Logger } from '../platform/logs.ts';
import { SparseLog } from '../platform/sparse-log.ts';
import type { ControlCaller } from './control-caller.ts';
import { readTokenFile } from './control-token.ts';

const LOOPBACK = /^(::ffff:)?127\.|^::1$/;
/** What the caller makes up, in our words. */
const NAME_CHARS_MAX = 100;

export interface ControlAccessOptions {
  /** Undefined: no token is asked for. */
  readonly tokenFile: string | undefined;
  /** Believed certificates are let in. */
  readonly certificates?: boolean;
  readonly logger: Logger;
  /** The flags with which others are let in. */
  readonly flags?: string;
}

export class ControlAccess {
  readonly #tokenFile: string | undefined;
  readonly #certificates: boolean;
  readonly #logger: Logger;
  readonly #log: SparseLog;
  readonly #flags: string;
  /** Digests are compared: they have one length, so neither time nor length tells about the token. */
  #tokenDigest: Buffer | undefined;
  #stamp: string | undefined;

  /** @throws CubeError when the token file is unreadable, or no token */
  constructor(options: ControlAccessOptions) {
    const { tokenFile, certificates = false, logger, flags = '--control-token-file' } = options;
    this.#tokenFile = tokenFile;
    this.#certificates = certificates;
    this.#logger = logger;
    this.#log = new SparseLog(logger);
    this.#flags = flags;
    if (tokenFile === undefined) return;
    this.#stamp = fileStamp(tokenFile);
    this.#tokenDigest = digest(readTokenFile(tokenFile));
  }

  /** @throws CubeError DENIED, which is also logged */
  check(caller: ControlCaller): void {
    const refusal = this.#refusal(caller);
    if (refusal === undefined) return;
    const { remoteAddress, certificate } = caller;
    const shown = certificate === undefined ? {} : { certificate: certificate.subject };
    this.#log.warn({ remoteAddress, ...shown, reason: refusal }, 'control call denied');
    throw new CubeError('DENIED', refusal);
  }

  /** @returns undefined when the call is allowed */
  #refusal(caller: ControlCaller): string | undefined {
    const tokenFile = this.#tokenFile;
    if (tokenFile === undefined && !this.#certificates) return localRefusal(caller, this.#flags);
    if (tokenFile !== undefined && this.#bearsToken(tokenFile, caller)) return undefined;
    const wanted = tokenFile === undefined ? [] : ['"Authorization: Bearer" with the token'];
    if (!this.#certificates) return `control calls need ${wanted[0]}`;
    const fault = certificateFault(caller);
    if (fault === '') return undefined;
    return `control calls need ${[...wanted, 'a client certificate'].join(', or ')}: ${fault}`;
  }

  #bearsToken(tokenFile: string, { authorization = '' }: ControlCaller): boolean {
    this.#rereadToken(tokenFile);
    const bearer = /^Bearer (.+)$/.exec(authorization)?.[1] ?? '';
    return this.#tokenDigest !== undefined && timingSafeEqual(digest(bearer), this.#tokenDigest);
  }

  /** Tokens are changed by replacing the file; while it cannot be read the last one stays good. */
  #rereadToken(tokenFile: string): void {
    const stamp = fileStamp(tokenFile);
    if (stamp === this.#stamp) return;
    this.#stamp = stamp;
    try {
      this.#tokenDigest = digest(readTokenFile(tokenFile));
      this.#logger.info({ tokenFile }, 'control token changed');
    } catch (error) {
      const { message } = error as Error;
      this.#logger.warn({ error: message }, 'control token unreadable; the last one stays good');
    }
  }
}

/** Why a caller is not let in by its certificate; empty: it is. */
function certificateFault({ certificate, origin }: ControlCaller): string {
  if (certificate === undefined) return 'none that is believed was shown; call over TLS with one';
  const { subject, fault, validUntilMs } = certificate;
  const name = JSON.stringify(subject.slice(0, NAME_CHARS_MAX));
  if (fault !== undefined) return `that of ${name} is not believed (${fault})`;
  // A connection may outlive what it was begun with.
  if (validUntilMs < wallClockMs()) return `that of ${name} has expired since; connect again`;
  // A browser shows the certificate for any page.
  return origin === undefined ? '' : 'web pages are not answered by it';
}

/** This host, and no web page: one in a browser here sends an Origin, or comes under a name that was rebound to us. */
function localRefusal(
  { remoteAddress, host, origin }: ControlCaller,
  flags: string,
): string | undefined {
  if (!LOOPBACK.test(remoteAddress ?? '')) {
    return `control calls are only answered on this host; start the server with ${flags} to allow others`;
  }
  if (origin !== undefined) return 'control calls are not answered to web pages';
  const name = (host ?? 'localhost').replace(/:\d+$/, '').replace(/^\[|\]$/g, '');
  if (name === 'localhost' || isIP(name) > 0) return undefined;
  return `control calls name this host by its address or localhost, not ${JSON.stringify(name.slice(0, NAME_CHARS_MAX))}; or use ${flags}`;
}

function digest(token: string): Buffer {
  return createHash('sha256').update(token).digest();
}
