/**
 * X.509 certificates for tests, written byte by byte (RFC 5280), so that no test needs a tool or a
 * file that gets old.
 */
import { generateKeyPairSync, type KeyObject, randomBytes, sign } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { isIPv4 } from 'node:net';
import { join } from 'node:path';

const DAY_MS = 86_400_000;
const OIDS = {
  ecdsaWithSha256: '1.2.840.10045.4.3.2',
  commonName: '2.5.4.3',
  keyUsage: '2.5.29.15',
  subjectAltName: '2.5.29.17',
  basicConstraints: '2.5.29.19',
  extendedKeyUsage: '2.5.29.37',
  serverAuth: '1.3.6.1.5.5.7.3.1',
  clientAuth: '1.3.6.1.5.5.7.3.2',
} as const;

export interface CertificateRequest {
  readonly name: string;
  /** Names and IPv4 addresses that it is valid for. */
  readonly hosts?: readonly string[];
  readonly use?: readonly ('serverAuth' | 'clientAuth')[];
  readonly fromMs?: number;
  readonly toMs?: number;
}

/** The three files of every process's TLS options. */
export interface IdentityFiles {
  readonly cert: string;
  readonly key: string;
  readonly ca: string;
}

function der(tag: number, ...parts: Uint8Array[]): Buffer {
  const body = Buffer.concat(parts);
  const { length } = body;
  if (length < 0x80) return Buffer.concat([Buffer.of(tag, length), body]);
  if (length < 0x100) return Buffer.concat([Buffer.of(tag, 0x81, length), body]);
  return Buffer.concat([Buffer.of(tag, 0x82, length >> 8, length & 0xff), body]);
}

const sequence = (...parts: Uint8Array[]): Buffer => der(0x30, ...parts);
const octets = (bytes: Uint8Array): Buffer => der(0x04, bytes);
const bits = (bytes: Uint8Array, unused = 0): Buffer => der(0x03, Buffer.of(unused), bytes);

function oid(name: keyof typeof OIDS): Buffer {
  const [first = 0, second = 0, ...rest] = OIDS[name].split('.').map(Number);
  const bytes = [40 * first + second];
  for (const arc of rest) {
    const septets = [arc & 0x7f];
    for (let more = arc >> 7; more > 0; more >>= 7) septets.unshift((more & 0x7f) | 0x80);
    bytes.push(...septets);
  }
  return der(0x06, Buffer.from(bytes));
}

function encodeName(commonName: string): Buffer {
  return sequence(der(0x31, sequence(oid('commonName'), der(0x0c, Buffer.from(commonName)))));
}

/** UTCTime: valid until 2049. */
function time(ms: number): Buffer {
  return der(0x17, Buffer.from(`${new Date(ms).toISOString().replace(/\D/g, '').slice(2, 14)}Z`));
}

function extension(name: keyof typeof OIDS, value: Uint8Array, critical = false): Buffer {
  return sequence(oid(name), ...(critical ? [der(0x01, Buffer.of(0xff))] : []), octets(value));
}

function hostName(host: string): Buffer {
  return isIPv4(host)
    ? der(0x87, Buffer.from(host.split('.').map(Number)))
    : der(0x82, Buffer.from(host));
}

function extensions({ hosts = [], use = [] }: CertificateRequest, isAuthority: boolean): Buffer {
  const all = isAuthority
    ? [
        extension('basicConstraints', sequence(der(0x01, Buffer.of(0xff))), true),
        // keyCertSign
        extension('keyUsage', bits(Buffer.of(0x04), 2), true),
      ]
    : [
        extension('basicConstraints', sequence(), true),
        // digitalSignature
        extension('keyUsage', bits(Buffer.of(0x80), 7), true),
      ];
  if (use.length > 0) all.push(extension('extendedKeyUsage', sequence(...use.map(oid))));
  if (hosts.length > 0) all.push(extension('subjectAltName', sequence(...hosts.map(hostName))));
  return der(0xa3, sequence(...all));
}

interface Issuer {
  readonly name: string;
  readonly key: KeyObject;
}

function certificate(request: CertificateRequest, publicKey: KeyObject, issuer: Issuer): string {
  const { name, fromMs = Date.now() - DAY_MS, toMs = Date.now() + DAY_MS } = request;
  const algorithm = sequence(oid('ecdsaWithSha256'));
  const signed = sequence(
    der(0xa0, der(0x02, Buffer.of(2))),
    der(0x02, Buffer.concat([Buffer.of(1), randomBytes(8)])),
    algorithm,
    encodeName(issuer.name),
    sequence(time(fromMs), time(toMs)),
    encodeName(name),
    publicKey.export({ type: 'spki', format: 'der' }),
    extensions(request, issuer.name === name),
  );
  const whole = sequence(signed, algorithm, bits(sign('sha256', signed, issuer.key)));
  const lines = whole.toString('base64').match(/.{1,64}/g) ?? [];
  return `-----BEGIN CERTIFICATE-----\n${lines.join('\n')}\n-----END CERTIFICATE-----\n`;
}

/** Makes certificates and writes them, each with its key, into a folder. */
export class CertificateAuthority {
  readonly #folder: string;
  readonly #issuer: Issuer;
  /** The file with its own certificate. */
  readonly path: string;

  constructor(folder: string, name: string) {
    const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
    this.#folder = folder;
    this.#issuer = { name, key: privateKey };
    this.path = join(folder, `${name}.ca.pem`);
    writeFileSync(this.path, certificate({ name }, publicKey, this.#issuer));
  }

  /**
   * Good on this machine, by address alone, for servers and for those who call them, unless the
   * request says otherwise.
   */
  issue(request: CertificateRequest): IdentityFiles {
    const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
    const usual = { hosts: ['127.0.0.1'], use: ['serverAuth', 'clientAuth'] as const };
    const cert = join(this.#folder, `${request.name}.pem`);
    const key = join(this.#folder, `${request.name}.key`);
    writeFileSync(key, privateKey.export({ type: 'pkcs8', format: 'pem' }), { mode: 0o600 });
    writeFileSync(cert, certificate({ ...usual, ...request }, publicKey, this.#issuer));
    return { cert, key, ca: this.path };
  }
}

/** Returns the TLS options of every command. */
export function toTlsFlags({ cert, key, ca }: IdentityFiles): string[] {
  return ['--tls-cert', cert, '--tls-key', key, '--tls-ca', ca];
}
