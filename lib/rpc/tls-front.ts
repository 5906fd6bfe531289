/**
 * The TLS side of the one port: a TLS server that never listens, is handed sockets, and hands on what they say once decrypted.
 * A client certificate is asked for, not required: without one a caller is as good as over a plain connection.
 */
import type { Socket } from 'node:net';
import { createServer, type SecureContextOptions, type Server, type TLSSocket } from 'node:tls';
import type { ServerLimits } from '../core/limits.ts';
import type { Logger } from '../platform/logs.ts';
import { SparseLog } from '../platform/sparse-log.ts';
import type { TlsIdentity } from './tls-identity.ts';

export interface TlsFrontOptions {
  readonly identity: TlsIdentity;
  readonly limits: ServerLimits;
  readonly logger: Logger;
  /** Whether HTTP/2 is served inside. */
  readonly http2: boolean;
  readonly onSecure: (socket: TLSSocket) => void;
}

export class TlsFront {
  /** Handshakes that came to nothing. */
  refused = 0;
  readonly #identity: TlsIdentity;
  readonly #log: SparseLog;
  readonly #server: Server;
  #current: SecureContextOptions;

  constructor({ identity, limits, logger, http2, onSecure }: TlsFrontOptions) {
    this.#identity = identity;
    this.#current = identity.options;
    this.#log = new SparseLog(logger);
    this.#server = createServer({
      ...this.#current,
      // Who offers both, as curl does, speaks HTTP/1.1; gRPC offers HTTP/2 alone.
      ALPNProtocols: http2 ? ['http/1.1', 'h2'] : ['http/1.1'],
      handshakeTimeout: limits.sniffMs,
      requestCert: true,
      rejectUnauthorized: false,
    });
    this.#server.on('secureConnection', onSecure);
    this.#server.on('tlsClientError', (error: Error & { code?: string }, socket) => {
      this.refused++;
      const { remoteAddress } = socket;
      this.#log.warn({ remoteAddress, reason: error.code ?? error.message }, 'TLS refused');
      socket.destroy();
    });
  }

  /** @param socket with nothing read from it, or what was read put back */
  serve(socket: Socket): void {
    const { options } = this.#identity;
    if (options !== this.#current) {
      this.#current = options;
      this.#server.setSecureContext(options);
    }
    this.#server.emit('connection', socket);
  }
}
