/**
 * Who a process is in TLS, and whose certificates it believes: three PEM files, read again when they change, so that certificates
 * are renewed without a restart. While the new ones cannot be used the last good ones stay.
 */
import { constants, X509Certificate } from 'node:crypto';
import { createSecureContext, type SecureContextOptions } from 'node:tls';
import { CubeError } from '../core/errors.ts';
import { systemClock } from '../platform/clock.ts';
import { fileStamp, readText } from '../platform/files.ts';
import type { Logger } from '../platform/logs.ts';

const PEM_BYTES_MAX = 1 << 20;
const CERTIFICATE = /-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/g;
/** How often the files are looked at, at most. */
const LOOK_MS = 1000;

export interface TlsFiles {
  /** The certificate, followed by those between it and the authority. */
  readonly cert: string;
  readonly key: string;
  /** The authorities whose certificates are believed, and no others. */
  readonly ca: string;
}

export class TlsIdentity {
  readonly #files: TlsFiles;
  readonly #logger: Logger | undefined;
  #options: SecureContextOptions;
  #stamps: string;
  #nextLookMs: number;

  /** @param logger told of changes. @throws CubeError INVALID_ARGUMENT naming the file and what is wrong with it */
  constructor(files: TlsFiles, logger?: Logger) {
    this.#files = files;
    this.#logger = logger;
    this.#stamps = stampsOf(files);
    this.#nextLookMs = systemClock.nowMs() + LOOK_MS;
    this.#options = readOptions(files);
  }

  /** Another object when the files have changed. */
  get options(): SecureContextOptions {
    const nowMs = systemClock.nowMs();
    if (nowMs < this.#nextLookMs) return this.#options;
    this.#nextLookMs = nowMs + LOOK_MS;
    const stamps = stampsOf(this.#files);
    if (stamps !== this.#stamps) {
      this.#stamps = stamps;
      this.#reread();
    }
    return this.#options;
  }

  #reread(): void {
    const { cert } = this.#files;
    try {
      this.#options = readOptions(this.#files);
      this.#logger?.info({ cert }, 'TLS certificate changed');
    } catch (error) {
      const { message } = CubeError.from(error);
      this.#logger?.warn({ error: message }, 'TLS files unusable; the last ones stay good');
    }
  }
}

function stampsOf({ cert, key, ca }: TlsFiles): string {
  return [cert, key, ca].map(fileStamp).join(' ');
}

function readOptions(files: TlsFiles): SecureContextOptions {
  const cert = readCertificates(files.cert);
  const ca = readCertificates(files.ca);
  const key = readText(files.key, PEM_BYTES_MAX);
  const options: SecureContextOptions = {
    ...{ cert, key, ca, minVersion: 'TLSv1.2' },
    // Each connection shows its certificate anew, and once: neither resumed nor renegotiated.
    secureOptions: constants.SSL_OP_NO_TICKET | constants.SSL_OP_NO_RENEGOTIATION,
  };
  try {
    createSecureContext(options);
    return options;
  } catch (error) {
    // OpenSSL's own words, such as "key values mismatch"; never the key.
    const { reason, message } = error as Error & { reason?: string };
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${files.key} is not the key, in PEM and without a passphrase, of the certificate in ${files.cert} (${reason ?? message})`,
    );
  }
}

/** @throws CubeError where there is none: an empty list of authorities would read as "believe nobody", without a word */
function readCertificates(path: string): string[] {
  const certificates = readText(path, PEM_BYTES_MAX).match(CERTIFICATE) ?? [];
  try {
    for (const pem of certificates) new X509Certificate(pem);
  } catch (error) {
    const { message } = error as Error;
    throw new CubeError('INVALID_ARGUMENT', `${path}: a certificate is damaged (${message})`);
  }
  if (certificates.length > 0) return [...certificates];
  throw new CubeError('INVALID_ARGUMENT', `${path} has no certificate in PEM`);
}
