/** The caller of a control call, as far as a protocol shows it; the input of ControlAccess. */
import type { IncomingMessage } from 'node:http';
import { Socket } from 'node:net';
import { TLSSocket } from 'node:tls';
import type { FastifyRequest } from 'fastify';
import type { CallerCertificate } from '../access/caller.ts';

/** A client certificate. */
export type ClientCertificate = CallerCertificate;

/** Reading a certificate costs more than a small request; it never changes on a connection. */
const certificates = new WeakMap<TLSSocket, ClientCertificate | null>();

/** A caller over any protocol; undefined: not sent. */
export interface ControlCaller {
  readonly remoteAddress: string | undefined;
  /** HTTP's Host, gRPC's :authority. */
  readonly host: string | undefined;
  readonly origin: string | undefined;
  readonly authorization: string | undefined;
  readonly apiKey?: string | undefined;
  /** The header `x-forwarded-for`: the call came through a proxy. */
  readonly forwardedFor?: string | undefined;
  readonly certificate?: ClientCertificate | undefined;
}

/**
 * The header of a process-internal call with the certificate that the external caller presented.
 */
const INTERNAL_CERTIFICATE_HEADER = 'x-hypercube-inner-certificate';

/**
 * Returns the caller of an HTTP request, or of an internal request made for a call over another
 * protocol or thread.
 */
export function getControlCaller({ headers, socket }: FastifyRequest): ControlCaller {
  const { host, origin, authorization } = headers;
  const read = (name: string): string | undefined => headers[name]?.toString();
  return {
    remoteAddress: socket.remoteAddress,
    host,
    origin,
    authorization,
    apiKey: read('x-api-key'),
    forwardedFor: read('x-forwarded-for'),
    certificate: findCertificate({ headers, socket }),
  };
}

/** The certificate of the caller of a request, which an internal request has in a header. */
export function findCertificate({
  headers,
  socket,
}: Pick<IncomingMessage, 'headers' | 'socket'>): ClientCertificate | undefined {
  // External requests have a socket; their headers must not claim a certificate.
  const inner = socket instanceof Socket ? undefined : headers[INTERNAL_CERTIFICATE_HEADER];
  if (typeof inner === 'string') return JSON.parse(inner) as ClientCertificate;
  return getPeerCertificate(socket as Socket | undefined);
}

/**
 * Returns the headers of an internal call, with the certificate of the external caller and no
 * forged one.
 */
export function toInternalHeaders<T>(
  headers: Readonly<Record<string, T>>,
  certificate: ClientCertificate | undefined,
): Record<string, T | string> {
  const inner: Record<string, T | string> = { ...headers };
  removeInternalHeaders(inner);
  // The request line of HTTP/2.
  for (const name in headers) if (name.startsWith(':')) delete inner[name];
  if (certificate !== undefined) inner[INTERNAL_CERTIFICATE_HEADER] = JSON.stringify(certificate);
  return inner;
}

/** Removes what only internal calls may send from the headers of an external one. */
export function removeInternalHeaders(headers: Record<string, unknown>): void {
  delete headers[INTERNAL_CERTIFICATE_HEADER];
}

/** Returns undefined over a plain connection, and when the peer presented no certificate. */
export function getPeerCertificate(socket: Socket | undefined): ClientCertificate | undefined {
  if (!(socket instanceof TLSSocket)) return undefined;
  const known = certificates.get(socket);
  if (known !== undefined) return known ?? undefined;
  const found = readPeerCertificate(socket);
  certificates.set(socket, found ?? null);
  return found;
}

function readPeerCertificate(socket: TLSSocket): ClientCertificate | undefined {
  const certificate = socket.getPeerX509Certificate();
  if (certificate === undefined) return undefined;
  const { subject, validTo } = certificate;
  const fault = socket.authorized ? {} : { fault: String(socket.authorizationError) };
  return { subject: subject.replaceAll('\n', ', '), validUntilMs: Date.parse(validTo), ...fault };
}
