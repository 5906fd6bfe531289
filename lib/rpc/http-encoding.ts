/**
 * Content encodings of HTTP bodies, in and out: gzip and deflate, which in HTTP means zlib's
 * format. Responses are compressed by zlib's threads, so that a large one delays no other.
 */
import { promisify } from 'node:util';
import { deflate, gzip } from 'node:zlib';
import { CubeError } from '../core/errors.ts';
import { COMPRESSION_GZIP, COMPRESSION_ZLIB, decompress } from './compression.ts';

export type HttpEncoding = 'gzip' | 'deflate';

/** A smaller body fits into one packet: compressing it saves nothing. */
const ENCODED_BYTES_MIN = 1400;
/** Favors speed over size: most bodies are read on the same network. */
const OPTIONS = { level: 1 } as const;
const DECODERS: Readonly<Record<HttpEncoding, number>> = {
  gzip: COMPRESSION_GZIP,
  deflate: COMPRESSION_ZLIB,
};
const ENCODERS = { gzip: promisify(gzip), deflate: promisify(deflate) } as const;

/**
 * Decompresses the body of a request.
 * @param bytesMax maximum bytes after decompression
 * @throws CubeError INVALID_ARGUMENT, TOO_LARGE
 */
export function decodeBody(
  encoding: string | undefined,
  body: Buffer,
  bytesMax: number,
): Uint8Array {
  if (encoding === undefined || encoding === 'identity') return body;
  if (encoding === 'gzip' || encoding === 'deflate') {
    return decompress(DECODERS[encoding], body, bytesMax);
  }
  throw new CubeError(
    'INVALID_ARGUMENT',
    `Content-Encoding ${encoding.slice(0, 40)} is not supported; send gzip, deflate, or none`,
  );
}

/**
 * The encoding of a response. @param accepted the header Accept-Encoding @returns undefined for a
 * body that is sent as it is
 */
export function chooseEncoding(
  accepted: string | string[] | undefined,
  byteCount: number,
): HttpEncoding | undefined {
  if (accepted === undefined || byteCount < ENCODED_BYTES_MIN) return undefined;
  const weights = parseWeights(String(accepted));
  const weigh = (encoding: HttpEncoding): number => weights.get(encoding) ?? weights.get('*') ?? 0;
  const best = weigh('deflate') > weigh('gzip') ? 'deflate' : 'gzip';
  return weigh(best) > 0 ? best : undefined;
}

/** The headers of an encoded response. @param vary its header Vary so far */
export function getEncodingHeaders(
  encoding: HttpEncoding,
  vary: number | string | string[] | undefined,
): Record<string, string> {
  const varies = vary === undefined ? 'accept-encoding' : `${vary}, accept-encoding`;
  return { 'content-encoding': encoding, vary: varies };
}

export function encodeBody(encoding: HttpEncoding, body: string | Uint8Array): Promise<Buffer> {
  return ENCODERS[encoding](body, OPTIONS);
}

/** Parses `gzip;q=0.5, deflate`. An encoding without a weight has 1. */
function parseWeights(accepted: string): ReadonlyMap<string, number> {
  return new Map(
    accepted.split(',').map((item) => {
      const [name = '', ...parameters] = item.split(';').map((part) => part.trim().toLowerCase());
      const weight = parameters.find((parameter) => parameter.startsWith('q='));
      return [name, weight === undefined ? 1 : Number(weight.slice(2)) || 0];
    }),
  );
}
