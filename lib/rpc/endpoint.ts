/** host:port as text and as parts; IPv6 hosts stand in brackets. */
import { CubeError } from '../core/errors.ts';

export interface Endpoint {
  readonly host: string;
  readonly port: number;
}

const ENDPOINT = /^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):(\d{1,5})$/;

/** @throws CubeError INVALID_ARGUMENT */
export function parseEndpoint(text: string): Endpoint {
  const match = ENDPOINT.exec(text);
  const port = Number(match?.[2]);
  if (match === null || port < 1 || port > 65_535) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `endpoint: expected host:port, got ${JSON.stringify(text)}`,
    );
  }
  return { host: match[1]!.replace(/^\[|\]$/g, ''), port };
}

export function formatEndpoint(host: string, port: number): string {
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;
}
