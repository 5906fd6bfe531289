/**
 * Authorizes control calls: a caller needs the token, an API key with the scope of the action, or a
 * trusted client certificate. Where none of them is configured, only callers on this host are
 * allowed. Every refusal, and every action with its result, is recorded in the audit log.
 */

import { createHash, timingSafeEqual } from 'node:crypto';
import { isIP } from 'node:net';
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { AccessGate } from '../access/access-gate.ts';
import type { AuditLog } from '../access/audit-log.ts';
import { readApiKey } from '../access/caller.ts';
import type { ControlVerb } from '../access/scopes.ts';
import { CubeError } from '../core/errors.ts';
import { quoteInput } from '../core/shown-input.ts';
import { wallClockMs } from '../platform/clock.ts';
import { getFileStamp } from '../platform/files.ts';
import type { Logger } from '../platform/logs.ts';
import { RateLimitedLog } from '../platform/logs.ts';
import { type ControlCaller, getControlCaller } from './control-caller.ts';
import { readTokenFile } from './credentials.ts';
import { ERROR_CODE_HEADER } from './direct-routes.ts';

const WRONG_TOKEN = 'the token is wrong';
const LOOPBACK = /^(::ffff:)?127\.|^::1$/;
/** Longer bodies of control calls are not read for the name of what they change. */
const AUDITED_BODY_BYTES_MAX = 64 << 10;

/** The scope of reading a state that only operators may read. */
type ControlScope = `control:${ControlVerb}` | 'metrics';

export interface ControlAccessOptions {
  /** Undefined: tokens are not accepted. */
  readonly tokenFile: string | undefined;
  /** Accept trusted client certificates. Default false. */
  readonly acceptCertificates?: boolean;
  /** Whose API keys are accepted, if it has any. */
  readonly gate?: AccessGate | undefined;
  readonly audit?: AuditLog | undefined;
  readonly logger: Logger;
  /** The options that allow callers from other hosts, for error messages. */
  readonly authFlags?: string;
}

/** Who was authorized, for the audit log. */
interface AuthorizedCaller {
  readonly address: string | undefined;
  readonly key?: string;
  readonly certificate?: string;
}

/** Hooks of a route of control calls. */
export interface ControlGuard {
  readonly onRequest: (request: FastifyRequest) => Promise<void>;
  readonly onResponse: (request: FastifyRequest, reply: FastifyReply) => Promise<void>;
}

export class ControlAccess {
  readonly #options: ControlAccessOptions;
  readonly #tokenFile: string | undefined;
  readonly #acceptCertificates: boolean;
  readonly #logger: Logger;
  readonly #log: RateLimitedLog;
  readonly #authFlags: string;
  readonly #authorized = new WeakMap<FastifyRequest, AuthorizedCaller>();
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
    this.#options = options;
    this.#tokenFile = tokenFile;
    this.#acceptCertificates = acceptCertificates;
    this.#logger = logger;
    this.#log = new RateLimitedLog(logger);
    this.#authFlags = authFlags;
    if (tokenFile === undefined) return;
    this.#stamp = getFileStamp(tokenFile);
    this.#tokenDigest = hashToken(readTokenFile(tokenFile));
  }

  /**
   * Hooks that authorize the calls of a route, and record them with their results.
   * @param scope of each call; reading a state (`metrics`) is recorded only when it is refused
   */
  guard(scope: ControlScope | ((request: FastifyRequest) => ControlScope)): ControlGuard {
    const find = typeof scope === 'function' ? scope : () => scope;
    return {
      onRequest: async (request) => {
        const caller = getControlCaller(request);
        const needed = find(request);
        this.#authorized.set(request, this.#authorize(caller, needed, describeRoute(request)));
      },
      onResponse: async (request, reply) => {
        const caller = this.#authorized.get(request);
        if (caller === undefined || find(request) === 'metrics') return;
        this.#options.audit?.recordAction({
          action: describeRoute(request),
          protocol: 'http',
          target: describeTarget(request),
          ...caller,
          result: describeResult(reply),
        });
      },
    };
  }

  /** Runs a control action and records its result. @throws CubeError DENIED, and those of `run` */
  async run<T>(
    caller: ControlCaller,
    action: { readonly scope: ControlScope; readonly action: string; readonly target: string },
    run: () => Promise<T>,
  ): Promise<T> {
    const authorized = this.#authorize(caller, action.scope, action.action);
    let result = 'OK';
    try {
      return await run();
    } catch (error) {
      result = CubeError.from(error).code;
      throw error;
    } finally {
      const { action: name, target } = action;
      this.#options.audit?.recordAction({ action: name, target, ...authorized, result });
    }
  }

  /** @throws CubeError DENIED, which is also logged */
  #authorize(caller: ControlCaller, scope: ControlScope, action: string): AuthorizedCaller {
    const { remoteAddress, forwardedFor, certificate } = caller;
    const head = { peerAddress: remoteAddress, forwardedFor };
    const { gate } = this.#options;
    const address = gate === undefined ? remoteAddress : gate.findClient(head);
    const found = this.#findRefusal(caller, scope);
    if (typeof found !== 'string') return { address, ...found };
    const shown = certificate === undefined ? {} : { certificate: certificate.subject };
    this.#log.warn({ remoteAddress: address, ...shown, reason: found }, 'control call denied');
    this.#options.audit?.recordRefusal({
      action,
      address,
      ...shown,
      result: 'DENIED',
      reason: found,
    });
    throw new CubeError('DENIED', found);
  }

  /** Returns why the call is denied; who makes it when it is allowed. */
  #findRefusal(
    caller: ControlCaller,
    scope: ControlScope,
  ): string | Omit<AuthorizedCaller, 'address'> {
    const tokenFile = this.#tokenFile;
    const { gate } = this.#options;
    const hasKeys = gate?.hasKeys ?? false;
    if (tokenFile === undefined && !this.#acceptCertificates && !hasKeys)
      return findLocalAccessProblem(caller, this.#authFlags) ?? {};
    if (tokenFile !== undefined && this.#hasToken(tokenFile, caller)) return {};
    const keyText = hasKeys ? readApiKey(caller) : undefined;
    if (gate !== undefined && keyText !== undefined) {
      const key = gate.findKey(keyText);
      if (key === undefined) return 'the credential is not valid';
      if (key.includes(scope)) return { key: key.id };
      return `key ${key.id} lacks the scope ${scope}`;
    }
    const accepted = [
      ...(tokenFile === undefined ? [] : ['"Authorization: Bearer" with the token']),
      ...(hasKeys ? [`an API key with the scope ${scope}`] : []),
    ];
    // A wrong token is not told how it differs from the right one.
    const wrong = tokenFile !== undefined && readBearer(caller) !== '' ? WRONG_TOKEN : '';
    if (!this.#acceptCertificates) {
      return wrong || `control calls need ${accepted.join(', or ')}`;
    }
    const problem = findCertificateProblem(caller);
    if (problem === undefined) {
      if (gate?.certificateIncludes(scope) === false) {
        return `client certificates lack the scope ${scope} here`;
      }
      return { certificate: caller.certificate?.subject ?? '' };
    }
    const needed = [...accepted, 'a client certificate'].join(', or ');
    return `${wrong && `${wrong}; `}control calls need ${needed}: ${problem}`;
  }

  #hasToken(tokenFile: string, caller: ControlCaller): boolean {
    this.#rereadToken(tokenFile);
    const digest = hashToken(readBearer(caller));
    return this.#tokenDigest !== undefined && timingSafeEqual(digest, this.#tokenDigest);
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

/** The token that a caller sent; '' if none. */
function readBearer({ authorization = '' }: ControlCaller): string {
  return /^Bearer (.+)$/.exec(authorization)?.[1] ?? '';
}

function describeRoute({ method, routeOptions, params }: FastifyRequest): string {
  const path = (routeOptions.url ?? '').replaceAll(/:(\w+)/g, (name, key: string) => {
    const value = (params as Record<string, string> | undefined)?.[key];
    return value === undefined ? name : value.slice(0, 128);
  });
  return `${method} ${path}`;
}

/** The bundle and version, or the model, that a call names. */
function describeTarget({ body }: FastifyRequest): string | undefined {
  if (!(body instanceof Uint8Array) || body.length === 0) return undefined;
  if (body.length > AUDITED_BODY_BYTES_MAX) return undefined;
  try {
    const fields = JSON.parse(new TextDecoder().decode(body)) as Record<string, unknown>;
    const names = ['bundle', 'version', 'channel', 'command'].flatMap((name) =>
      typeof fields[name] === 'string' ? [`${name}=${fields[name]}`] : [],
    );
    return names.length === 0 ? undefined : names.join(' ');
  } catch {
    return undefined;
  }
}

function describeResult(reply: FastifyReply): string {
  if (reply.statusCode < 400) return 'OK';
  const brpc = Number(reply.getHeader(ERROR_CODE_HEADER));
  return brpc > 0 ? CubeError.fromBrpc(brpc, '').code : `HTTP ${reply.statusCode}`;
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
 * Allows this host, but no proxy on it, whose callers are elsewhere, and no web page of another
 * site in a browser on it: such a page sends another Origin, or a Host name that was rebound to our
 * address. Returns why the call is denied; undefined when it is allowed.
 */
function findLocalAccessProblem(
  { remoteAddress, host, origin, forwardedFor }: ControlCaller,
  flags: string,
): string | undefined {
  if (!LOOPBACK.test(remoteAddress ?? '')) {
    return (
      'control calls are only accepted from this host; ' +
      `start the server with ${flags} to allow others`
    );
  }
  if (forwardedFor !== undefined) {
    return `control calls through a proxy need a credential; start the server with ${flags}`;
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
