/** Addresses of Redis servers as people write them. What is refused is never repeated: it may hold a password. */
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

/** One server, or some nodes of a Cluster, and who asks. */
export interface RedisAddress {
  readonly endpoints: readonly RedisEndpoint[];
  readonly cluster: boolean;
  readonly user: string | undefined;
  readonly password: string | undefined;
  /** host:port of each, for messages and logs. */
  readonly name: string;
}

/** @throws CubeError INVALID_ARGUMENT saying which address is none and why */
export function redisAddress(choice: RedisChoice): RedisAddress {
  const endpoints = choice.urls.map(parseEndpoint);
  const first = endpoints[0];
  if (first === undefined) refuse('no address of a Redis server: give redis://host:port');
  const cluster = choice.cluster ?? endpoints.length > 1;
  if (cluster && endpoints.some(({ database }) => database !== 0)) {
    refuse('a Redis Cluster has database 0 alone: leave the number out');
  }
  if (!cluster && endpoints.length > 1) refuse('several Redis addresses are a Cluster');
  if (endpoints.some(({ tls }) => tls !== first.tls)) {
    refuse('of a Redis Cluster either all addresses are rediss:// or none');
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
  const where = `Redis address ${i + 1}`;
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    return refuse(`${where} is no address: expected redis[s]://[user[:password]@]host:port`);
  }
  const tls = url.protocol === 'rediss:';
  if (!tls && url.protocol !== 'redis:') {
    refuse(`${where} begins with ${url.protocol}//, not with redis:// or rediss://`);
  }
  if (url.hostname === '') refuse(`${where} has no host`);
  if (!/^\/?\d{0,4}$/.test(url.pathname)) {
    refuse(`${where}: after the port comes at most the number of a database`);
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

function refuse(text: string): never {
  throw new CubeError('INVALID_ARGUMENT', text);
}
