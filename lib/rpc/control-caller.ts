/** Who calls, as far as it shows: what control calls are allowed by. */
import { Socket } from 'node:net';
import { TLSSocket } from 'node:tls';
import type { FastifyRequest } from 'fastify';

/** A client certificate. */
export interface ClientCertificate {
  /** For people. */
  readonly subject: string;
  /** Why it is not believed; absent: it is. */
  readonly fault?: string;
  /** Since 1970. */
  readonly validUntilMs: number;
}

/** What is known of a caller, over any protocol; undefined: not sent. */
export interface ControlCaller {
  readonly remoteAddress: string | undefined;
  /** HTTP's Host, gRPC's :authority. */
  readonly host: string | undefined;
  readonly origin: string | undefined;
  readonly authorization: string | undefined;
  readonly certificate?: ClientCertificate | undefined;
}

/** In a call that this process makes to itself: the certificate shown to where the call came in. */
const INNER_CERTIFICATE = 'x-hypercube-inner-certificate';

/** The caller of a request over HTTP, or of one that came over another protocol or thread and was made one here. */
export function callerOf({ headers, socket }: FastifyRequest): ControlCaller {
  const { host, origin, authorization } = headers;
  // Whoever calls from outside has a socket: its headers say nothing of certificates.
  const inner = socket instanceof Socket ? undefined : headers[INNER_CERTIFICATE];
  const certificate =
    typeof inner === 'string'
      ? (JSON.parse(inner) as ClientCertificate)
      : certificateOf(socket as Socket | undefined);
  return { remoteAddress: socket.remoteAddress, host, origin, authorization, certificate };
}

/** The headers of a call to ourselves, with the certificate that was shown outside, and no other. */
export function innerHeaders<T>(
  headers: Readonly<Record<string, T>>,
  certificate: ClientCertificate | undefined,
): Record<string, T | string> {
  const { [INNER_CERTIFICATE]: _forged, ...others } = headers;
  if (certificate === undefined) return others;
  return { ...others, [INNER_CERTIFICATE]: JSON.stringify(certificate) };
}

/** @returns undefined over a plain connection, and where none was shown */
export function certificateOf(socket: Socket | undefined): ClientCertificate | undefined {
  if (!(socket instanceof TLSSocket)) return undefined;
  const certificate = socket.getPeerX509Certificate();
  if (certificate === undefined) return undefined;
  const { subject, validTo } = certificate;
  const fault = socket.authorized ? {} : { fault: String(socket.authorizationError) };
  return { subject: subject.replaceAll('\n', ', '), validUntilMs: Date.parse(validTo), ...fault };
}
