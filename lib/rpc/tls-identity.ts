/**
 * The TLS identity of a process and the authorities it trusts: three PEM files, read again when
 * they change, so that certificates are renewed without a restart. While changed files are invalid,
 * the previous ones stay in use.
 */
import { constants, X509Certificate } from 'node:crypto';
import { createSecureContext, type SecureContextOptions } from 'node:tls';
import { CubeError } from '../core/errors.ts';
import { systemClock } from '../platform/clock.ts';
import { readText } from '../platform/files.ts';
import { RereadValue } from '../platform/reread-value.ts';

const PEM_BYTES_MAX = 1 << 20;
const CERTIFICATE = /-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/g;
/** Minimum interval between checks of the files. */
const CHECK_INTERVAL_MS = 1000;

export const TLS_VERSIONS = ['TLSv1.2', 'TLSv1.3'] as const;
export const CLIENT_CERTIFICATES = ['optional', 'required'] as const;

export interface TlsFiles {
  /**
   * The certificate, followed by its intermediate certificates, and its key. Servers have both; a
   * caller without them is anonymous.
   */
  readonly cert?: string | undefined;
  readonly key?: string | undefined;
  /**
   * The only trusted authorities. Absent: a server requests no client certificates, a caller trusts
   * the authorities of Node.
   */
  readonly ca?: string | undefined;
  /** Default: TLSv1.2. */
  readonly minVersion?: (typeof TLS_VERSIONS)[number] | undefined;
  /** As OpenSSL lists them. Default: those of Node. */
  readonly ciphers?: string | undefined;
  /** Whether callers need a client certificate. Default: optional. */
  readonly clientCertificate?: (typeof CLIENT_CERTIFICATES)[number] | undefined;
}

/** The part of a logger that is needed: clients use certificates too, and have none of pino. */
interface IdentityLogger {
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
}

export class TlsIdentity {
  readonly #files: TlsFiles;
  readonly #options: RereadValue<SecureContextOptions>;

  /**
   * @param logger logs changes. @throws CubeError INVALID_ARGUMENT naming the file and the problem
   */
  constructor(files: TlsFiles, logger?: IdentityLogger) {
    this.#files = files;
    const { cert, key, ca } = files;
    this.#options = new RereadValue({
      paths: [cert, key, ca].filter((path) => path !== undefined),
      read: () => readOptions(files),
      intervalMs: CHECK_INTERVAL_MS,
      clock: systemClock,
      onChange: () => logger?.info({ cert }, 'TLS certificate changed'),
      onInvalid: ({ message: error }) =>
        logger?.warn({ error }, 'TLS files invalid; the previous ones stay in use'),
    });
  }

  /** Whether a server asks its callers for certificates, and whether they must have one. */
  get clientCertificate(): 'none' | (typeof CLIENT_CERTIFICATES)[number] {
    const { ca, clientCertificate } = this.#files;
    return ca === undefined ? 'none' : (clientCertificate ?? 'optional');
  }

  /** Returns the current options: a new object when the files have changed. */
  get options(): SecureContextOptions {
    return this.#options.current;
  }
}

function readOptions(files: TlsFiles): SecureContextOptions {
  const cert = files.cert === undefined ? undefined : readCertificates(files.cert);
  const ca = files.ca === undefined ? undefined : readCertificates(files.ca);
  const key = files.key === undefined ? undefined : readText(files.key, PEM_BYTES_MAX);
  const options: SecureContextOptions = {
    ...(cert !== undefined && { cert }),
    ...(key !== undefined && { key }),
    ...(ca !== undefined && { ca }),
    minVersion: files.minVersion ?? 'TLSv1.2',
    ...(files.ciphers !== undefined && { ciphers: files.ciphers }),
    // Every connection presents its certificate exactly once: no resumption, no renegotiation.
    secureOptions: constants.SSL_OP_NO_TICKET | constants.SSL_OP_NO_RENEGOTIATION,
  };
  try {
    createSecureContext(options);
    return options;
  } catch (error) {
    // OpenSSL's reason, such as "key values mismatch"; it never contains the key.
    const { reason, message, code } = error as Error & { reason?: string; code?: string };
    if (/cipher/i.test(`${reason} ${code}`)) {
      const list = JSON.stringify(files.ciphers ?? '');
      throw new CubeError('INVALID_ARGUMENT', `no usable cipher in the list ${list}`);
    }
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${files.key} is not the key, in PEM and without a passphrase, of the certificate in ` +
        `${files.cert} (${reason ?? message})`,
    );
  }
}

/**
 * @throws CubeError for a file without certificates: an empty list of authorities would silently
 *   trust no one
 */
function readCertificates(path: string): string[] {
  const certificates = readText(path, PEM_BYTES_MAX).match(CERTIFICATE) ?? [];
  try {
    for (const pem of certificates) new X509Certificate(pem);
  } catch (error) {
    const { message } = error as Error;
    throw new CubeError('INVALID_ARGUMENT', `${path}: a certificate is malformed (${message})`);
  }
  if (certificates.length > 0) return [...certificates];
  throw new CubeError('INVALID_ARGUMENT', `${path} contains no certificate in PEM`);
}
