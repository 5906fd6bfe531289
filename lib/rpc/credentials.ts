/** What a caller of control calls shows for itself: a token, a certificate, both or nothing. */
import { Agent } from 'node:https';
import { fileStamp } from '../platform/files.ts';
import { readTokenFile } from './control-token.ts';
import { type TlsFiles, TlsIdentity } from './tls-identity.ts';

/** Idle connections are kept for so long, by less than any server of ours. */
const KEEP_ALIVE_MS = 4000;

export interface CredentialFiles {
  readonly tokenFile?: string | undefined;
  /** With it every call is made over TLS. */
  readonly tls?: TlsFiles | undefined;
  /** The name that certificates must have; undefined: what is called, by name or address. */
  readonly tlsServerName?: string | undefined;
}

/** Read again when the files change; while they cannot be read, what was read last stays good. */
export class Credentials {
  readonly #tokenFile: string | undefined;
  readonly #serverName: string | undefined;
  readonly #identity: TlsIdentity | undefined;
  #token: string | undefined;
  #stamp: string | undefined;
  #agent: Agent | undefined;
  #agentOptions: object | undefined;

  /** @throws CubeError when a file is unreadable, or is not what it should be */
  constructor({ tokenFile, tls, tlsServerName }: CredentialFiles = {}) {
    this.#tokenFile = tokenFile;
    this.#serverName = tlsServerName;
    this.#identity = tls && new TlsIdentity(tls);
    if (tokenFile === undefined) return;
    this.#stamp = fileStamp(tokenFile);
    this.#token = readTokenFile(tokenFile);
  }

  get token(): string | undefined {
    const stamp = this.#tokenFile && fileStamp(this.#tokenFile);
    if (this.#tokenFile === undefined || stamp === this.#stamp) return this.#token;
    this.#stamp = stamp;
    try {
      this.#token = readTokenFile(this.#tokenFile);
    } catch {
      // Whoever is called says when the last one is not good any more.
    }
    return this.#token;
  }

  /** The connections of https calls; undefined: calls are plain. */
  get tlsAgent(): Agent | undefined {
    if (this.#identity === undefined) return undefined;
    const { options } = this.#identity;
    if (options !== this.#agentOptions) {
      this.#agentOptions = options;
      // Connections of the old one end with their calls, or soon when they are idle.
      this.#agent = new Agent({
        ...options,
        ...(this.#serverName === undefined ? {} : { servername: this.#serverName }),
        ...{ rejectUnauthorized: true, maxCachedSessions: 0 },
        ...{ keepAlive: true, timeout: KEEP_ALIVE_MS },
      });
    }
    return this.#agent;
  }
}

export const NO_CREDENTIALS: Credentials = new Credentials();
