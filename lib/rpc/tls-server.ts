/**
 * The TLS server of the shared port: it never listens, receives its sockets from OnePortServer, and
 * returns the decrypted streams. A client certificate is requested if there are authorities for it,
 * and required only by setting: without one, a caller has the rights of a plain connection.
 */
import type { Socket } from 'node:net';
import { createServer, type SecureContextOptions, type Server, type TLSSocket } from 'node:tls';
import type { ServerLimits } from '../core/limits.ts';
import type { Logger } from '../platform/logs.ts';
import { RateLimitedLog } from '../platform/logs.ts';
import type { TlsIdentity } from './tls-identity.ts';

export interface TlsServerOptions {
  readonly identity: TlsIdentity;
  readonly limits: ServerLimits;
  readonly logger: Logger;
  /** Whether the server offers HTTP/2. */
  readonly http2: boolean;
}

export class TlsServer {
  /** Failed handshakes since the start. */
  failedHandshakes = 0;
  readonly #identity: TlsIdentity;
  readonly #log: RateLimitedLog;
  readonly #server: Server;
  /** Receivers of the decrypted streams, by peer. */
  readonly #pending = new Map<string, (secure: TLSSocket) => void>();
  #currentOptions: SecureContextOptions;

  constructor({ identity, limits, logger, http2 }: TlsServerOptions) {
    this.#identity = identity;
    this.#currentOptions = identity.options;
    this.#log = new RateLimitedLog(logger);
    this.#server = createServer({
      ...this.#currentOptions,
      // Over HTTP/2, plain requests are answered too. The bytes that follow decide in any case.
      ALPNProtocols: http2 ? ['h2', 'http/1.1'] : ['http/1.1'],
      handshakeTimeout: limits.sniffMs,
      requestCert: identity.clientCertificate !== 'none',
      rejectUnauthorized: identity.clientCertificate === 'required',
    });
    this.#server.on('secureConnection', (socket) =>
      this.#pending.get(formatPeer(socket))?.(socket),
    );
    this.#server.on('tlsClientError', (error: Error & { code?: string }, socket) => {
      this.failedHandshakes++;
      const { remoteAddress } = socket;
      this.#log.warn(
        { remoteAddress, reason: error.code ?? error.message },
        'TLS handshake failed',
      );
      socket.destroy();
    });
  }

  /**
   * @param socket unread, or with the bytes read put back
   * @param onSecure receives the decrypted stream
   */
  serve(socket: Socket, onSecure: (secure: TLSSocket) => void): void {
    const peer = formatPeer(socket);
    this.#pending.set(peer, onSecure);
    socket.once('close', () => {
      if (this.#pending.get(peer) === onSecure) this.#pending.delete(peer);
    });
    const { options } = this.#identity;
    if (options !== this.#currentOptions) {
      this.#currentOptions = options;
      this.#server.setSecureContext(options);
    }
    this.#server.emit('connection', socket);
  }
}

/** The name of a connection's other end; equal for a stream and the TLS over it. */
function formatPeer({ remoteAddress, remotePort }: Socket): string {
  return `${remoteAddress}:${remotePort}`;
}
