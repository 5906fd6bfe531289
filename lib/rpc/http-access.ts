/** Access control of HTTP requests: shows the gate the head of a request. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { AccessGate, CallGrant } from '../access/access-gate.ts';
import type { CallerHead } from '../access/caller.ts';
import { type ClientCertificate, findCertificate } from './control-caller.ts';
import type { HttpAdmission } from './http-admission.ts';

/**
 * Admits a request until its response is sent. @param route the route's path
 * @throws CubeError UNAUTHENTICATED, DENIED, RATE_LIMITED
 */
export function admitHttpCall(
  gate: AccessGate,
  admission: HttpAdmission,
  request: IncomingMessage,
  response: ServerResponse,
  route: string,
): CallGrant {
  const verb = request.method ?? '';
  const grant = createHttpGrant(gate, request, verb, route);
  admission.onResponseEnd(response, () => grant.end());
  return grant;
}

/**
 * Admits a request until `end` of the grant is called. @param route the route's path
 * @throws CubeError UNAUTHENTICATED, DENIED, RATE_LIMITED
 */
export function createHttpGrant(
  gate: AccessGate,
  request: HttpCaller,
  verb: string,
  route: string,
): CallGrant {
  return gate.admit(new HttpCallerHead(request), { protocol: 'http', verb, path: route });
}

type HttpCaller = Pick<IncomingMessage, 'headers' | 'socket'>;

class HttpCallerHead implements CallerHead {
  readonly #request: HttpCaller;
  readonly authorization: string | undefined;

  constructor(request: HttpCaller) {
    this.#request = request;
    this.authorization = request.headers.authorization;
  }

  get apiKey(): string | undefined {
    return this.#getHeader('x-api-key');
  }

  get peerAddress(): string | undefined {
    return this.#request.socket.remoteAddress;
  }

  get forwardedFor(): string | undefined {
    return this.#getHeader('x-forwarded-for');
  }

  /** Only read when it matters. */
  get certificate(): ClientCertificate | undefined {
    return findCertificate(this.#request);
  }

  #getHeader(name: string): string | undefined {
    const value = this.#request.headers[name];
    return typeof value === 'string' ? value : undefined;
  }
}
