/**
 * Who may make control calls: with a token file whoever bears the token, else only this host. Lookups need neither:
 * the two authorities are separate.
 */
import { createHash, timingSafeEqual } from 'node:crypto';
import type { FastifyRequest } from 'fastify';
import { CubeError } from '../lib/core/errors.ts';
import { readText } from '../lib/platform/files.ts';

const TOKEN_BYTES_MIN = 16;
const LOOPBACK = /^(::ffff:)?127\.|^::1$/;

export class ControlAccess {
  /** Digests are compared: they have one length, so neither time nor length tells about the token. */
  readonly #tokenDigest: Buffer | undefined;

  /** @param tokenFile undefined: only callers of this host. @throws CubeError when it is unreadable or too short */
  constructor(tokenFile: string | undefined) {
    if (tokenFile === undefined) return;
    const token = readText(tokenFile, 4096).trim();
    if (token.length < TOKEN_BYTES_MIN) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${tokenFile}: a control token has at least ${TOKEN_BYTES_MIN} characters`,
      );
    }
    this.#tokenDigest = digest(token);
  }

  /** @throws CubeError DENIED */
  check(request: FastifyRequest): void {
    if (this.#tokenDigest === undefined) {
      if (LOOPBACK.test(request.socket.remoteAddress ?? '')) return;
      throw new CubeError(
        'DENIED',
        'control calls are only answered on this host; start the server with --control-token-file to allow others',
      );
    }
    const bearer = /^Bearer (.+)$/.exec(request.headers.authorization ?? '')?.[1] ?? '';
    if (timingSafeEqual(digest(bearer), this.#tokenDigest)) return;
    throw new CubeError('DENIED', 'control calls need "Authorization: Bearer" with the token');
  }
}

function digest(token: string): Buffer {
  return createHash('sha256').update(token).digest();
}
