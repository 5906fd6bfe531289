/** `--limit name=value`: every limit of a server, and the table of them that `--help` shows. */
import { DEFAULT_SERVER_LIMITS, type ServerLimits } from '../lib/core/limits.ts';
import { byteCount, InvalidArgumentError } from '../lib/platform/cli.ts';

type LimitName = keyof ServerLimits;

/** What each bounds, in a few words; the reasons for the defaults are in lib/core/limits.ts. */
const MEANING: Record<LimitName, string> = {
  frameBytes: 'body of one baidu_std frame',
  inflatedBytes: 'payload or body of one request once decompressed',
  httpBodyBytes: 'body of one HTTP request',
  httpHeaderBytes: 'head of one HTTP request',
  httpHeadersMs: 'time until the head of an HTTP request is there',
  httpRequestMs: 'time until all of an HTTP request is there',
  jsonChars: 'characters of one JSON seek',
  keysPerRequest: 'keys of one lookup or seek',
  responseBytes: 'rows of one response',
  connections: 'open connections',
  httpInFlight: 'HTTP requests answered at once',
  callsInFlight: 'calls whose answers are deferred at once',
  grpcInFlight: 'gRPC calls and streams open at once',
  grpcStreams: 'the same on one connection',
  grpcMessageBytes: 'one gRPC message to the server',
  grpcPingMs: 'time between pings to a gRPC peer, and until it must answer',
  drainMs: 'wait of a stopping server for calls in flight',
  sniffMs: 'wait for the first bytes of a connection',
  idleMs: 'silence after which a connection is closed',
  outputHighWaterBytes: 'unsent bytes of a connection above which nothing more is read from it',
  slowReaderMs: 'time within which a peer must take slowReaderBytes of what waits for it',
  slowReaderBytes: 'see slowReaderMs',
  inputTotalBytes: 'unfinished requests of all connections together',
  outputTotalBytes: 'unsent answers of all connections together',
};

/** HTTP/2 knows no larger number, and no message is larger. */
const LIMIT_MAX = 2 ** 31 - 1;
/** A week. Timers of more than 24 days would fire at once. */
const MS_MAX = 604_800_000;

const NAMES = Object.keys(DEFAULT_SERVER_LIMITS) as LimitName[];

/** Option parser, may be given several times. */
export function collectLimits(text: string, before: Partial<ServerLimits>): Partial<ServerLimits> {
  const [name = '', value = '', ...rest] = text.split('=');
  if (!NAMES.includes(name as LimitName) || rest.length > 0) {
    throw new InvalidArgumentError(`Expected name=value; the names are ${NAMES.join(', ')}.`);
  }
  return { ...before, [name]: parseValue(name, value) };
}

function parseValue(name: string, text: string): number {
  const value = name.endsWith('Bytes') ? byteCount(text) : Number(text);
  const most = mostOf(name);
  if (text !== '' && Number.isInteger(value) && value >= 1 && value <= most) return value;
  throw new InvalidArgumentError(`${name}: expected a whole number in 1..${most}.`);
}

/** What one of several threads gets of the limits that are totals. */
export function limitsOfThread(limits: ServerLimits, threads: number): ServerLimits {
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

function mostOf(name: string): number {
  if (name.endsWith('TotalBytes')) return Number.MAX_SAFE_INTEGER;
  return name.endsWith('Ms') ? MS_MAX : LIMIT_MAX;
}

export function limitsHelp(): string {
  const rows = NAMES.map((name) => {
    const value = formatValue(name, DEFAULT_SERVER_LIMITS[name]);
    return `  ${name.padEnd(21)} ${value.padStart(9)}  ${MEANING[name]}`;
  });
  return `\nLimits (--limit name=value) and their defaults:\n${rows.join('\n')}\n`;
}

function formatValue(name: string, value: number): string {
  if (!name.endsWith('Bytes')) return String(value);
  const power = value % 2 ** 30 === 0 ? 3 : value % 2 ** 20 === 0 ? 2 : value % 1024 === 0 ? 1 : 0;
  return `${value / 1024 ** power}${['', 'KiB', 'MiB', 'GiB'][power]}`;
}
