/**
 * The S3 client library and its errors. It is an optional package, loaded when a bucket is first
 * used. It takes credentials from its own environment: variables, profiles, roles.
 */
import type * as Sdk from '@aws-sdk/client-s3';
import { CubeError } from '../core/errors.ts';

const CONNECT_TIMEOUT_MS = 5000;
/** A request without any byte for this time (ms) fails. */
export const S3_IDLE_MS = 20_000;
const BUCKET_PATTERN = /^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$/;
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
  const fail = (problem: string): never => {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${problem}; expected s3://bucket/prefix, ` +
        'for other stores than AWS with ?endpoint=http://host:9000&region=…',
    );
  };
  if (!URL.canParse(url)) return fail('not a URL');
  const { host, pathname, searchParams, username, hash } = new URL(url);
  if (username !== '' || hash !== '') fail('an S3 location has no credentials and no fragment');
  if (!BUCKET_PATTERN.test(host)) fail(`${JSON.stringify(host)} is not a valid bucket name`);
  for (const name of searchParams.keys())
    if (!OPTIONS.includes(name)) fail(`unknown option ${name}`);
  const endpoint = searchParams.get('endpoint') ?? undefined;
  if (endpoint !== undefined && !(/^https?:\/\/[^@]+$/.test(endpoint) && URL.canParse(endpoint))) {
    fail('the endpoint must be an http(s) URL without credentials');
  }
  const parts = decodeURIComponent(pathname)
    .split('/')
    .filter((part) => part !== '');
  if (parts.some((part) => part === '.' || part === '..')) fail('the prefix has a part . or ..');
  const prefix = parts.map((part) => `${part}/`).join('');
  return { bucket: host, prefix, endpoint, region: searchParams.get('region') ?? undefined };
}

export interface S3Connection {
  readonly sdk: typeof Sdk;
  readonly client: Sdk.S3Client;
}

/** @throws CubeError UNSUPPORTED if the package is not installed */
export async function connectS3({ endpoint, region }: S3Location): Promise<S3Connection> {
  const sdk = await import('@aws-sdk/client-s3').catch((error: unknown) => {
    throw new CubeError(
      'UNSUPPORTED',
      'repositories in S3 need the package @aws-sdk/client-s3; ' +
        'install it with npm install @aws-sdk/client-s3',
      { cause: error },
    );
  });
  const effectiveRegion = region ?? (endpoint === undefined ? undefined : 'us-east-1');
  const client = new sdk.S3Client({
    ...(effectiveRegion === undefined ? {} : { region: effectiveRegion }),
    // Stores other than AWS rarely have a host name for each bucket.
    ...(endpoint === undefined ? {} : { endpoint, forcePathStyle: true }),
    requestHandler: { connectionTimeout: CONNECT_TIMEOUT_MS, socketTimeout: S3_IDLE_MS },
  });
  return { sdk, client };
}

/** HTTP status of an error response; undefined for other failures. */
export function getHttpStatus(error: unknown): number | undefined {
  return (error as { $metadata?: { httpStatusCode?: number } }).$metadata?.httpStatusCode;
}

/** @param name of the object or bucket, for the message */
export function convertS3Error(error: unknown, name: string): CubeError {
  if (error instanceof CubeError) return error;
  const { name: kind, message } = error as Error;
  const status = getHttpStatus(error);
  const options = { cause: error };
  if (kind === 'NoSuchBucket')
    return new CubeError('NOT_FOUND', `${name}: no such bucket`, options);
  if (status === 404) return new CubeError('NOT_FOUND', `${name}: no such object`, options);
  if (status === 401 || status === 403) {
    const text = `${name}: access denied (${kind}); check the credentials and the bucket's policy`;
    return new CubeError('DENIED', text, options);
  }
  if (kind === 'CredentialsProviderError') {
    const text =
      `${name}: no credentials; ` +
      'set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE';
    return new CubeError('DENIED', text, options);
  }
  if (message === 'Region is missing') {
    const text = `${name}: no region; add ?region=… to the location, or set AWS_REGION`;
    return new CubeError('INVALID_ARGUMENT', text, options);
  }
  if (status === 416)
    return new CubeError('CORRUPT', `${name}: the object is shorter than expected`, options);
  if (status !== undefined && status >= 400 && status < 500 && status !== 429) {
    return new CubeError(
      'UNSUPPORTED',
      `${name}: the store responded with HTTP ${status} (${kind})`,
      options,
    );
  }
  return new CubeError('UNAVAILABLE', `${name}: ${message || kind}`, options);
}
