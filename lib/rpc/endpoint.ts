/** Parses and formats host:port; IPv6 hosts are in brackets. */
import { CubeError } from '../core/errors.ts';

export interface Endpoint {
  readonly host: string;
  readonly port: number;
}

const ENDPOINT = /^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):(\d{1,5})$/;

/** @throws CubeError INVALID_ARGUMENT */
export function parseEndpoint(text: string): Endpoint {
  const [, host, digits] = ENDPOINT.exec(text) ?? [];
  const port = Number(digits);
  if (host === undefined || port < 1 || port > 65_535) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `endpoint: expected host:port, got ${JSON.stringify(text)}`,
    );
  }
  return { host: host.replace(/^\[|\]$/g, ''), port };
}

export function formatEndpoint(host: string, port: number): string {
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;
}
