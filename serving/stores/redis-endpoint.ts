/**
 * Parses the addresses of Redis servers. Errors never repeat an address, because it may contain a
 * password.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { readText } from '../../lib/platform/files.ts';
import type { RedisChoice } from './store-choice.ts';

const DEFAULT_PORT = 6379;
const PASSWORD_BYTES_MAX = 1 << 16;

export interface RedisEndpoint {
  readonly host: string;
  readonly port: number;
  readonly tls: boolean;
  readonly database: number;
  readonly user: string | undefined;
  readonly password: string | undefined;
}

/** One server, or some nodes of a Cluster, and the credentials. */
export interface RedisAddress {
  readonly endpoints: readonly [RedisEndpoint, ...RedisEndpoint[]];
  readonly cluster: boolean;
  readonly user: string | undefined;
  readonly password: string | undefined;
  /** host:port of each endpoint, for errors and logs. */
  readonly name: string;
}

/** @throws CubeError INVALID_ARGUMENT saying which address is invalid, and why */
export function parseRedisAddress(choice: RedisChoice): RedisAddress {
  const [first, ...others] = choice.urls.map(parseEndpoint);
  if (first === undefined)
    reject('the address of a Redis server is missing: give redis://host:port');
  const endpoints: RedisAddress['endpoints'] = [first, ...others];
  const cluster = choice.cluster ?? endpoints.length > 1;
  if (cluster && endpoints.some(({ database }) => database !== 0)) {
    reject('a Redis Cluster has only database 0: omit the database number');
  }
  if (!cluster && endpoints.length > 1)
    reject(
      'several Redis addresses are nodes of a Cluster: allow the cluster, or give one address',
    );
  if (endpoints.some(({ tls }) => tls !== first.tls)) {
    reject('the addresses of a Redis Cluster must all be rediss://, or all redis://');
  }
  const { passwordFile } = choice;
  const password =
    passwordFile === undefined
      ? first.password
      : readText(passwordFile, PASSWORD_BYTES_MAX).replace(/\r?\n$/, '');
  const name = endpoints.map(({ host, port }) => `${host}:${port}`).join(', ');
  return { endpoints, cluster, user: choice.user ?? first.user, password, name };
}

function parseEndpoint(text: string, i: number): RedisEndpoint {
  const name = `Redis address ${i + 1}`;
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    return reject(`${name} is invalid: expected redis[s]://[user[:password]@]host:port`);
  }
  const tls = url.protocol === 'rediss:';
  if (!tls && url.protocol !== 'redis:') {
    reject(`${name} begins with ${url.protocol}//; use redis:// or rediss://`);
  }
  if (url.hostname === '') reject(`${name} has no host`);
  if (!/^\/?\d{0,4}$/.test(url.pathname)) {
    reject(`${name}: only a database number may follow the port`);
  }
  return {
    host: url.hostname.replace(/^\[|\]$/g, ''),
    port: url.port === '' ? DEFAULT_PORT : Number(url.port),
    tls,
    database: Number(url.pathname.slice(1)),
    user: url.username === '' ? undefined : decodeURIComponent(url.username),
    password: url.password === '' ? undefined : decodeURIComponent(url.password),
  };
}

function reject(text: string): never {
  throw new CubeError('INVALID_ARGUMENT', text);
}
