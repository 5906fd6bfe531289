/** Parsers of `--limit name=value`, with the table of limits for the help, and of `--shard`. */

import { DEFAULT_SERVER_LIMITS, type ServerLimits } from '../lib/core/limits.ts';
import { InvalidArgumentError, parseByteCount } from '../lib/platform/cli.ts';

type LimitName = keyof ServerLimits;

/** Descriptions for the help; lib/core/limits.ts explains the defaults. */
const DESCRIPTIONS: Record<LimitName, string> = {
  frameBytes: 'Body of one baidu_std frame, or of one seek over HTTP',
  inflatedBytes: 'Decompressed payload or body of one request',
  httpBodyBytes: 'Body of one HTTP request',
  httpHeaderBytes: 'Headers of one HTTP request',
  httpHeadersMs: 'Time to receive the headers of an HTTP request',
  httpRequestMs: 'Time to receive a whole HTTP request',
  keysPerRequest: 'Keys of one lookup or seek',
  responseBytes: 'Rows of one response',
  connections: 'Open connections; a new one replaces the longest idle one',
  httpInFlight: 'Concurrent HTTP requests',
  callsInFlight: 'Concurrent baidu_std calls that are not answered at once',
  grpcInFlight: 'Concurrent gRPC calls and streams',
  grpcStreams: 'Concurrent gRPC calls and streams per connection',
  grpcMessageBytes: 'One gRPC request message',
  grpcPingMs: 'Interval of gRPC keepalive pings, and timeout of each',
  drainMs: 'Time that a stopping server waits for calls in flight',
  sniffMs: 'Time for a client to send the first bytes of a connection',
  idleMs: 'Idle time after which a connection is closed; 0: never',
  outputHighWaterBytes: 'Unsent bytes of a connection above which reading from it pauses',
  slowReaderMs: 'Time after which a connection is closed if its client has read too slowly',
  slowReaderBytes: 'Pending bytes that a client must read within slowReaderMs',
  inputTotalBytes: 'Incomplete requests of all connections',
  outputTotalBytes: 'Unsent responses of all connections',
};

/** The largest number of HTTP/2. */
const LIMIT_MAX = 2 ** 31 - 1;
/** One week. Timers of more than 24 days would fire at once. */
const MS_MAX = 604_800_000;

const LIMIT_NAMES = Object.keys(DEFAULT_SERVER_LIMITS) as LimitName[];

/** Parses a repeatable option. */
export function collectLimits(text: string, before: Partial<ServerLimits>): Partial<ServerLimits> {
  const [name = '', value = '', ...rest] = text.split('=');
  if (!LIMIT_NAMES.includes(name as LimitName) || rest.length > 0) {
    throw new InvalidArgumentError(`Expected name=value; the names are ${LIMIT_NAMES.join(', ')}.`);
  }
  return { ...before, [name]: parseLimit(name, value) };
}

function parseLimit(name: string, text: string): number {
  const value = name.endsWith('Bytes') ? parseByteCount(text) : Number(text);
  const least = name === 'idleMs' ? 0 : 1;
  const most = getMaximum(name);
  if (text !== '' && Number.isInteger(value) && value >= least && value <= most) return value;
  throw new InvalidArgumentError(`${name}: expected a whole number in ${least}..${most}.`);
}

/** The share of one of several threads in limits that apply to the whole process. */
export function divideLimits(limits: ServerLimits, threads: number): ServerLimits {
  if (threads === 1) return limits;
  const share = (total: number): number => Math.ceil(total / threads);
  return {
    ...limits,
    connections: share(limits.connections),
    httpInFlight: share(limits.httpInFlight),
    callsInFlight: share(limits.callsInFlight),
    grpcInFlight: share(limits.grpcInFlight),
    inputTotalBytes: share(limits.inputTotalBytes),
    outputTotalBytes: share(limits.outputTotalBytes),
  };
}

function getMaximum(name: string): number {
  if (name.endsWith('TotalBytes')) return Number.MAX_SAFE_INTEGER;
  return name.endsWith('Ms') ? MS_MAX : LIMIT_MAX;
}

export function formatLimitsHelp(): string {
  const rows = LIMIT_NAMES.map((name) => {
    const value = formatValue(name, DEFAULT_SERVER_LIMITS[name]);
    return `  ${name.padEnd(21)} ${value.padStart(9)}  ${DESCRIPTIONS[name]}`;
  });
  const heading = 'Limits with their defaults (--limit name=value; times in milliseconds):';
  return `\n${heading}\n${rows.join('\n')}\n`;
}

function formatValue(name: string, value: number): string {
  if (!name.endsWith('Bytes')) return String(value);
  const power = value % 2 ** 30 === 0 ? 3 : value % 2 ** 20 === 0 ? 2 : value % 1024 === 0 ? 1 : 0;
  return `${value / 1024 ** power}${['', 'KiB', 'MiB', 'GiB'][power]}`;
}

const SHARDS_MAX = 256;

/** Parses "3", "0-3" or "0,2,5". @returns shard indexes in ascending order */
export function parseShards(text: string): number[] {
  const shards = new Set<number>();
  for (const part of text.split(',')) {
    const match = /^(\d{1,5})(?:-(\d{1,5}))?$/.exec(part.trim());
    const first = Number(match?.[1]);
    const last = Number(match?.[2] ?? match?.[1]);
    if (match === null || last < first || last > 65_535) {
      throw new InvalidArgumentError(
        'Expected a shard such as 3, a range such as 0-3, or a list such as 0,2,5.',
      );
    }
    if (last - first >= SHARDS_MAX) {
      throw new InvalidArgumentError(`At most ${SHARDS_MAX} shards run under one supervisor.`);
    }
    for (let shard = first; shard <= last; shard++) shards.add(shard);
  }
  return [...shards].sort((a, b) => a - b);
}
