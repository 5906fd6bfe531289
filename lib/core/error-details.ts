/**
 * What an error is about, as data beside its message. Callers decide by these fields and never
 * parse messages. Every transport carries them as one JSON text and omits an empty one, so that a
 * peer that does not send details looks like one that has none.
 */

/** All fields are optional. A closed list: a new field needs a reader. */
export interface ErrorDetails {
  /** What was being done, as a verb: load, activate, fetch. */
  readonly action?: string;
  readonly bundle?: string;
  readonly version?: string;
  readonly table?: string;
  /** Content id of a layer. */
  readonly contentId?: string;
  /** Address of the server that failed. */
  readonly server?: string;
  /** Shard index. */
  readonly shard?: number;
  /** Versions of `bundle` that the server has loaded, possibly none; absent: unknown. */
  readonly loadedVersions?: readonly string[];
  /** Milliseconds after which the call is worth another attempt. */
  readonly retryAfterMs?: number;
}

/** As the key of a baidu_std user field and of a gRPC trailer. */
export const ERROR_DETAILS_KEY = 'hypercube-details';
/** Readers ignore longer texts; gRPC clients limit all trailers together to 8 KiB. */
export const ERROR_DETAILS_CHARS_MAX = 2048;

const TEXT_FIELDS = ['action', 'bundle', 'version', 'table', 'contentId', 'server'] as const;

/** @returns ASCII JSON; '' when there are no details */
export function encodeErrorDetails(details: ErrorDetails): string {
  const text = toAsciiJson(details);
  if (text === '{}') return '';
  if (text.length <= ERROR_DETAILS_CHARS_MAX) return text;
  const { loadedVersions: _, ...others } = details;
  const shorter = toAsciiJson(others);
  return shorter.length <= ERROR_DETAILS_CHARS_MAX ? shorter : '';
}

/** @returns the known fields; none of them when the text is not one of details */
export function decodeErrorDetails(text: string): ErrorDetails {
  if (text === '' || text.length > ERROR_DETAILS_CHARS_MAX) return {};
  try {
    return toErrorDetails(JSON.parse(text));
  } catch {
    return {};
  }
}

/** The known fields of a JSON value that a peer sent; fields of a wrong type are ignored. */
export function toErrorDetails(value: unknown): ErrorDetails {
  if (typeof value !== 'object' || value === null) return {};
  const fields = value as Record<string, unknown>;
  const details: { -readonly [K in keyof ErrorDetails]: ErrorDetails[K] } = {};
  for (const name of TEXT_FIELDS) {
    const field = fields[name];
    if (typeof field === 'string') details[name] = field;
  }
  const { shard, loadedVersions, retryAfterMs } = fields;
  if (Number.isSafeInteger(shard)) details.shard = shard as number;
  if (Number.isSafeInteger(retryAfterMs)) details.retryAfterMs = retryAfterMs as number;
  if (Array.isArray(loadedVersions) && loadedVersions.every((name) => typeof name === 'string')) {
    details.loadedVersions = loadedVersions;
  }
  return details;
}

/** Trailers carry printable ASCII only. */
function toAsciiJson(value: object): string {
  return JSON.stringify(value).replaceAll(
    /[^\u0020-\u007e]/g,
    (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}
