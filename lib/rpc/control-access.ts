/**
 * Who may make control calls: with a token file whoever bears the token, else only this host. Lookups need neither:
 * the two authorities are separate.
 */
import { createHash, timingSafeEqual } from 'node:crypto';
import { isIP } from 'node:net';
import { CubeError } from '../core/errors.ts';
import { fileStamp, readText } from '../platform/files.ts';
import type { Logger } from '../platform/logs.ts';

const TOKEN_BYTES_MIN = 16;
const LOOPBACK = /^(::ffff:)?127\.|^::1$/;

/** What is known of a caller, over any protocol; undefined: not sent. */
export interface ControlCaller {
  readonly remoteAddress: string | undefined;
  /** HTTP's Host, gRPC's :authority. */
  readonly host: string | undefined;
  readonly origin: string | undefined;
  readonly authorization: string | undefined;
}

export class ControlAccess {
  readonly #tokenFile: string | undefined;
  readonly #logger: Logger;
  /** The flag with which others are let in. */
  readonly #option: string;
  /** Digests are compared: they have one length, so neither time nor length tells about the token. */
  #tokenDigest: Buffer | undefined;
  #stamp: string | undefined;

  /** @param tokenFile undefined: only callers of this host. @throws CubeError when it is unreadable or too short */
  constructor(tokenFile: string | undefined, logger: Logger, option = '--control-token-file') {
    this.#option = option;
    this.#tokenFile = tokenFile;
    this.#logger = logger;
    if (tokenFile === undefined) return;
    this.#stamp = fileStamp(tokenFile);
    this.#tokenDigest = readDigest(tokenFile);
  }

  /** @throws CubeError DENIED */
  check(caller: ControlCaller): void {
    if (this.#tokenFile === undefined) {
      checkLocal(caller, this.#option);
      return;
    }
    this.#rereadToken(this.#tokenFile);
    const bearer = /^Bearer (.+)$/.exec(caller.authorization ?? '')?.[1] ?? '';
    if (this.#tokenDigest !== undefined && timingSafeEqual(digest(bearer), this.#tokenDigest)) {
      return;
    }
    throw new CubeError('DENIED', 'control calls need "Authorization: Bearer" with the token');
  }

  /** Tokens are changed by replacing the file; while it cannot be read the last one stays good. */
  #rereadToken(tokenFile: string): void {
    const stamp = fileStamp(tokenFile);
    if (stamp === this.#stamp) return;
    this.#stamp = stamp;
    try {
      this.#tokenDigest = readDigest(tokenFile);
      this.#logger.info({ tokenFile }, 'control token changed');
    } catch (error) {
      const { message } = error as Error;
      this.#logger.warn({ error: message }, 'control token unreadable; the last one stays good');
    }
  }
}

/** This host, and no web page: one in a browser here sends an Origin, or comes under a name that was rebound to us. */
function checkLocal({ remoteAddress, host, origin }: ControlCaller, option: string): void {
  if (!LOOPBACK.test(remoteAddress ?? '')) {
    throw new CubeError(
      'DENIED',
      `control calls are only answered on this host; start the server with ${option} to allow others`,
    );
  }
  if (origin !== undefined) {
    throw new CubeError('DENIED', 'control calls are not answered to web pages');
  }
  const name = (host ?? 'localhost').replace(/:\d+$/, '').replace(/^\[|\]$/g, '');
  if (name === 'localhost' || isIP(name) > 0) return;
  throw new CubeError(
    'DENIED',
    `control calls name this host by its address or localhost, not ${JSON.stringify(name.slice(0, 100))}; or use ${option}`,
  );
}

function readDigest(tokenFile: string): Buffer {
  const token = readText(tokenFile, 4096).trim();
  if (token.length >= TOKEN_BYTES_MIN) return digest(token);
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${tokenFile}: a control token has at least ${TOKEN_BYTES_MIN} characters`,
  );
}

function digest(token: string): Buffer {
  return createHash('sha256').update(token).digest();
}
