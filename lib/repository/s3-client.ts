/**
 * The S3 client library and what its failures mean. It is an optional package and loaded when the first bucket is used:
 * whoever has folders only needs none of it. Credentials are those of its own environment: variables, profiles, roles.
 */
import type * as Sdk from '@aws-sdk/client-s3';
import { CubeError } from '../core/errors.ts';

const CONNECT_MS = 5000;
/** Milliseconds without a byte. */
export const IDLE_MS = 20_000;
const BUCKET = /^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$/;
const OPTIONS = ['endpoint', 'region'];

export interface S3Location {
  readonly bucket: string;
  /** "" or ends with a slash. */
  readonly prefix: string;
  readonly endpoint: string | undefined;
  readonly region: string | undefined;
}

/** @param url `s3://bucket/prefix?endpoint=…&region=…`. @throws CubeError INVALID_ARGUMENT */
export function parseS3Url(url: string): S3Location {
  const fail = (why: string): never => {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${why}; expected s3://bucket/prefix, with ?endpoint=http://host:9000&region=… where it is not AWS's own`,
    );
  };
  if (!URL.canParse(url)) return fail('not a URL');
  const { host, pathname, searchParams, username, hash } = new URL(url);
  if (username !== '' || hash !== '') fail('an S3 location has no credentials and no fragment');
  if (!BUCKET.test(host)) fail(`${JSON.stringify(host)} is no name of a bucket`);
  for (const name of searchParams.keys()) if (!OPTIONS.includes(name)) fail(`unknown ${name}`);
  const endpoint = searchParams.get('endpoint') ?? undefined;
  if (endpoint !== undefined && !(/^https?:\/\/[^@]+$/.test(endpoint) && URL.canParse(endpoint))) {
    fail('the endpoint is no http(s) URL without credentials');
  }
  const parts = decodeURIComponent(pathname)
    .split('/')
    .filter((part) => part !== '');
  if (parts.some((part) => part === '.' || part === '..')) fail('the prefix has dots for a part');
  const prefix = parts.map((part) => `${part}/`).join('');
  return { bucket: host, prefix, endpoint, region: searchParams.get('region') ?? undefined };
}

export interface S3Connection {
  readonly sdk: typeof Sdk;
  readonly client: Sdk.S3Client;
}

/** @throws CubeError UNSUPPORTED when the package is not installed */
export async function connectS3({ endpoint, region }: S3Location): Promise<S3Connection> {
  const sdk = await import('@aws-sdk/client-s3').catch((error: unknown) => {
    throw new CubeError(
      'UNSUPPORTED',
      'repositories in S3 need the package @aws-sdk/client-s3, which is not installed (npm install @aws-sdk/client-s3)',
      { cause: error },
    );
  });
  const regionOf = region ?? (endpoint === undefined ? undefined : 'us-east-1');
  const client = new sdk.S3Client({
    ...(regionOf === undefined ? {} : { region: regionOf }),
    // Stores that are not AWS's own have rarely a host name for each bucket.
    ...(endpoint === undefined ? {} : { endpoint, forcePathStyle: true }),
    requestHandler: { connectionTimeout: CONNECT_MS, socketTimeout: IDLE_MS },
  });
  return { sdk, client };
}

/** HTTP status of a refusal by the store; undefined for other failures. */
export function statusOf(error: unknown): number | undefined {
  return (error as { $metadata?: { httpStatusCode?: number } }).$metadata?.httpStatusCode;
}

/** @param name of the object or bucket */
export function s3Error(error: unknown, name: string): CubeError {
  if (error instanceof CubeError) return error;
  const { name: kind, message } = error as Error;
  const status = statusOf(error);
  const options = { cause: error };
  if (kind === 'NoSuchBucket')
    return new CubeError('NOT_FOUND', `${name}: no such bucket`, options);
  if (status === 404) return new CubeError('NOT_FOUND', `${name}: no such object`, options);
  if (status === 401 || status === 403) {
    const text = `${name}: the store refuses (${kind}); look at the credentials and at the bucket's policy`;
    return new CubeError('DENIED', text, options);
  }
  if (kind === 'CredentialsProviderError') {
    const text = `${name}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE`;
    return new CubeError('DENIED', text, options);
  }
  if (message === 'Region is missing') {
    const text = `${name}: no region; give ?region=…, or set AWS_REGION`;
    return new CubeError('INVALID_ARGUMENT', text, options);
  }
  if (status === 416) return new CubeError('CORRUPT', `${name}: it ends before`, options);
  if (status !== undefined && status >= 400 && status < 500 && status !== 429) {
    return new CubeError('UNSUPPORTED', `${name}: the store answers ${status} (${kind})`, options);
  }
  return new CubeError('UNAVAILABLE', `${name}: ${message || kind}`, options);
}
