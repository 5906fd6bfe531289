/**
 * The credentials of a caller: a token or API key, a certificate, both or none. A token is one line
 * in a file, or in an environment variable; it never appears on a command line, in a log or in a
 * message.
 */
import { Agent } from 'node:https';
import type { ConnectionOptions } from 'node:tls';
import { CubeError } from '../core/errors.ts';
import { systemClock } from '../platform/clock.ts';
import { readText } from '../platform/files.ts';
import { RereadValue } from '../platform/reread-value.ts';
import { type TlsFiles, TlsIdentity } from './tls-identity.ts';

/** How long idle connections are kept: less than the idle timeout of our servers. */
const KEEP_ALIVE_MS = 4000;
/**
 * Minimum interval between looks at the token file: as often as servers look at their keys, and
 * sooner than a denied call is tried again.
 */
const TOKEN_INTERVAL_MS = 250;
const TOKEN_BYTES_MAX = 4096;
const TOKEN_CHARS_MIN = 16;
/** The characters that an HTTP header can carry. */
const TOKEN = /^[\x20-\x7e]+$/;

export interface CredentialFiles {
  readonly tokenFile?: string | undefined;
  /** The token itself, where there is no file. */
  readonly token?: string | undefined;
  /** When set, every call uses TLS. */
  readonly tls?: TlsFiles | undefined;
  /** The name that server certificates must have; undefined: the name or address called. */
  readonly tlsServerName?: string | undefined;
}

/**
 * Files are read again when they change. While they cannot be read, their previous content stays
 * valid.
 */
export class Credentials {
  readonly #tokenFile: string | undefined;
  readonly #tls: TlsFiles | undefined;
  readonly #serverName: string | undefined;
  readonly #identity: TlsIdentity | undefined;
  readonly #token: { readonly current: string } | undefined;
  #agent: Agent | undefined;
  #agentOptions: object | undefined;
  #connectionSource: object | undefined;
  #connectionOptions: ConnectionOptions | undefined;

  /** @throws CubeError when a file is unreadable or invalid */
  constructor({ tokenFile, token, tls, tlsServerName }: CredentialFiles = {}) {
    this.#tokenFile = tokenFile;
    this.#tls = tls;
    this.#serverName = tlsServerName;
    this.#identity = tls && new TlsIdentity(tls);
    if (tokenFile !== undefined) {
      // A token that cannot be read is not reported: the server rejects the previous one once it is
      // no longer valid.
      this.#token = new RereadValue({
        paths: [tokenFile],
        read: () => readTokenFile(tokenFile),
        intervalMs: TOKEN_INTERVAL_MS,
        clock: systemClock,
      });
    } else if (token !== undefined) this.#token = { current: checkToken(token, 'the token') };
  }

  /** A command line that posts to a process with these credentials, which stay in their files. */
  formatPost(address: string, path: string): string {
    const { cert, key, ca } = this.#tls ?? {};
    const options = [
      ...(this.#tokenFile === undefined
        ? []
        : [`-H "Authorization: Bearer $(cat ${this.#tokenFile})"`]),
      ...(cert === undefined ? [] : [`--cert ${cert}`]),
      ...(key === undefined ? [] : [`--key ${key}`]),
      ...(ca === undefined ? [] : [`--cacert ${ca}`]),
    ];
    const scheme = this.#tls === undefined ? 'http' : 'https';
    return ['curl -X POST', ...options, `${scheme}://${address}${path}`].join(' ');
  }

  get token(): string | undefined {
    return this.#token?.current;
  }

  /** The options of a TLS connection, a new object when files have changed; undefined: plain. */
  get tlsOptions(): ConnectionOptions | undefined {
    if (this.#identity === undefined) return undefined;
    const { options } = this.#identity;
    if (options !== this.#connectionSource) {
      this.#connectionSource = options;
      const serverName = this.#serverName;
      this.#connectionOptions = {
        ...options,
        ...(serverName === undefined ? {} : { servername: serverName }),
        rejectUnauthorized: true,
      };
    }
    return this.#connectionOptions;
  }

  /** The agent for https calls; undefined: calls use plain HTTP. */
  get tlsAgent(): Agent | undefined {
    if (this.#identity === undefined) return undefined;
    const options = this.tlsOptions;
    if (options !== undefined && options !== this.#agentOptions) {
      this.#agentOptions = options;
      // Connections of the previous agent close after their calls, or soon when idle.
      this.#agent = new Agent({
        ...options,
        maxCachedSessions: 0,
        keepAlive: true,
        timeout: KEEP_ALIVE_MS,
      });
    }
    return this.#agent;
  }
}

export const NO_CREDENTIALS: Credentials = new Credentials();

/** A key, or a token as we advise to make them, where the name of its file belongs. */
const TOKEN_AS_PATH = /^(hck_[\w-]{20,}|[0-9a-f]{64})$/i;

/** @throws CubeError INVALID_ARGUMENT when the content is not a valid token, and as `readText` */
export function readTokenFile(path: string): string {
  if (TOKEN_AS_PATH.test(path)) {
    const text = 'a token is given where the name of its file belongs: tokens are never arguments';
    throw new CubeError('INVALID_ARGUMENT', text);
  }
  return checkToken(readText(path, TOKEN_BYTES_MAX).trim(), path);
}

function checkToken(token: string, source: string): string {
  if (token.length >= TOKEN_CHARS_MIN && TOKEN.test(token)) return token;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${source}: a token has at least ${TOKEN_CHARS_MIN} characters, ` +
      'printable ASCII on one line (openssl rand -hex 32 makes one)',
  );
}
