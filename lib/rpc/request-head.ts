/**
 * Parses the head of a plain POST of HTTP/1.1 whose body has a Content-Length. Everything else is
 * `unusual` and left to node:http: other methods, versions and forms of the target, repeated
 * headers, headers that change how a message is framed, and bytes that are not allowed. The parser
 * accepts less than node:http, and nothing that node:http would read differently.
 */

export interface RequestHead {
  /** The request target: a path that begins with a slash, and possibly a query. */
  readonly path: string;
  /** By name in lower case; no name comes twice. */
  readonly headers: Readonly<Record<string, string>>;
  /** Above 0. */
  readonly contentLength: number;
  /** Where the body begins. */
  readonly bodyStart: number;
}

/** A longer head is unusual; node:http has its own limit. */
const HEAD_BYTES_MAX = 4 << 10;

const METHOD = Buffer.from('POST /');
const VERSION = Buffer.from(' HTTP/1.1\r\n');
const [TAB, LF, CR, SPACE, COLON] = [9, 10, 13, 32, 58];
const CONTENT_LENGTH = /^[1-9]\d{0,14}$/;
/**
 * Headers that frame the message, need an answer of their own (`origin`: the headers of CORS), or
 * have a value of another type.
 */
const UNUSUAL_HEADERS: ReadonlySet<string> = new Set([
  'transfer-encoding',
  'content-encoding',
  'expect',
  'keep-alive',
  'origin',
  'proxy-connection',
  'set-cookie',
  'te',
  'trailer',
  'upgrade',
]);

/** Marks the bytes of a set with 1. */
function createByteSet(isMember: (char: string, code: number) => boolean): Uint8Array {
  return Uint8Array.from({ length: 256 }, (_, code) =>
    Number(isMember(String.fromCharCode(code), code)),
  );
}

const TARGET_BYTES = createByteSet((_, code) => code > SPACE && code < 127);
const NAME_BYTES = createByteSet((char) => /[\w!#$%&'*+.^`|~-]/.test(char));
const VALUE_BYTES = createByteSet((_, code) => code === TAB || (code >= SPACE && code < 127));

/** Positions in `bytes` of the names and values of a head: start and end of each. */
const positions: number[] = [];

/**
 * @param bytes the head lies between `start` and `end`, or a part of it
 * @returns `incomplete` when `bytes` may be the beginning of a head
 */
export function parseRequestHead(
  bytes: Buffer,
  start: number,
  end: number,
): RequestHead | 'incomplete' | 'unusual' {
  const limit = Math.min(end, start + HEAD_BYTES_MAX);
  const short = limit === end ? 'incomplete' : 'unusual';
  let at = start;
  for (let i = 0; i < METHOD.length; i++, at++) {
    if (at === limit) return short;
    if (bytes[at] !== METHOD[i]) return 'unusual';
  }
  const pathStart = at - 1;
  while (at < limit && TARGET_BYTES[bytes[at]!] === 1) at++;
  const pathEnd = at;
  for (let i = 0; i < VERSION.length; i++, at++) {
    if (at === limit) return short;
    if (bytes[at] !== VERSION[i]) return 'unusual';
  }
  positions.length = 0;
  for (;;) {
    const nameStart = at;
    while (at < limit && NAME_BYTES[bytes[at]!] === 1) at++;
    if (at === limit) return short;
    if (at === nameStart) break;
    if (bytes[at] !== COLON) return 'unusual';
    positions.push(nameStart, at++);
    while (at < limit && (bytes[at] === SPACE || bytes[at] === TAB)) at++;
    const valueStart = at;
    while (at < limit && VALUE_BYTES[bytes[at]!] === 1) at++;
    let valueEnd = at;
    while (valueEnd > valueStart && (bytes[valueEnd - 1] === SPACE || bytes[valueEnd - 1] === TAB))
      valueEnd--;
    positions.push(valueStart, valueEnd);
    if (at === limit) return short;
    if (bytes[at++] !== CR) return 'unusual';
    if (at === limit) return short;
    if (bytes[at++] !== LF) return 'unusual';
  }
  if (bytes[at++] !== CR) return 'unusual';
  if (at === limit) return short;
  if (bytes[at++] !== LF) return 'unusual';
  const text = bytes.toString('latin1', start, at);
  const path = text.slice(pathStart - start, pathEnd - start);
  return createHead(bytes, text, { start, path, bodyStart: at });
}

/** Names of headers that requests repeat. */
const KNOWN_NAMES = [
  'host',
  'x-api-key',
  'accept',
  'connection',
  'user-agent',
  'timeout-ms',
  'traceparent',
  'content-type',
  'authorization',
  'content-length',
  'accept-encoding',
  'x-experiment-key',
  'inference-header-content-length',
];
/** The same by length. */
const NAMES_BY_LENGTH: readonly (readonly string[])[] = Array.from({ length: 32 }, (_, length) =>
  KNOWN_NAMES.filter((name) => name.length === length),
);
/** The byte of each letter in lower case. */
const LOWER_CASE = Uint8Array.from({ length: 256 }, (_, code) =>
  String.fromCharCode(code).toLowerCase().charCodeAt(0),
);

/** A known name is one string for all requests, by which V8 finds a property faster. */
function readName(bytes: Buffer, start: number, end: number): string {
  for (const name of NAMES_BY_LENGTH[end - start] ?? []) {
    let i = 0;
    while (i < name.length && LOWER_CASE[bytes[start + i]!] === name.charCodeAt(i)) i++;
    if (i === name.length) return name;
  }
  return bytes.toString('latin1', start, end).toLowerCase();
}

/** Collects the headers of a head at `positions`. */
function createHead(
  bytes: Buffer,
  text: string,
  { start, path, bodyStart }: { start: number; path: string; bodyStart: number },
): RequestHead | 'unusual' {
  const headers: Record<string, string> = {};
  for (let i = 0; i < positions.length; i += 4) {
    const name = readName(bytes, positions[i]!, positions[i + 1]!);
    // Also true for the names that every object has.
    if (headers[name] !== undefined || UNUSUAL_HEADERS.has(name)) return 'unusual';
    headers[name] = text.slice(positions[i + 2]! - start, positions[i + 3]! - start);
  }
  const { host, connection = 'keep-alive', 'content-length': length = '' } = headers;
  const isKept = connection === 'keep-alive' || connection.toLowerCase() === 'keep-alive';
  const isPlain = host !== undefined && isKept;
  if (!isPlain || !CONTENT_LENGTH.test(length)) return 'unusual';
  return { path, headers, contentLength: Number(length), bodyStart };
}
