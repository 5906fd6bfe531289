/** The flags of ctr-client and their parsers; an invalid value is wrong usage. */
import { InvalidArgumentError } from '../../lib/platform/cli.ts';
import type { KeyOptions } from '../../lib/rpc/credential-options.ts';
import type { LoadSchedule } from './load/load-generator.ts';
import type { Protocol } from './protocols/open-protocol.ts';

export interface Flags extends KeyOptions {
  /** File of rows; either this or `replay` is given. */
  readonly rows?: string;
  /** Recording of serving. */
  readonly replay?: string;
  /** 2: the gaps between requests are half as long as recorded. */
  readonly replaySpeed?: number;
  readonly endpoint: string;
  readonly protocol: Protocol;
  readonly model?: string;
  readonly slots?: string;
  readonly limit: number;
  readonly batch: number;
  readonly concurrency: number;
  /** Threads that send requests. */
  readonly workers: number;
  readonly rps?: number;
  /** Seconds. */
  readonly duration?: number;
  /** Seconds. */
  readonly warmUp: number;
  readonly timeoutMs: number;
  readonly matrix?: Matrix;
  readonly against?: string;
  /** Column of the rows, or random. */
  readonly experimentKey?: string;
  readonly byVariant?: boolean;
  readonly maxErrors: number;
  readonly maxDiff: number;
  readonly output?: string;
  readonly chart?: string;
  /** File of the Chrome trace. */
  readonly profile?: string;
  readonly json?: boolean;
}

export interface Matrix {
  readonly batch?: readonly number[];
  readonly concurrency?: readonly number[];
}

export const BATCH_MAX = 10_000;
export const WORKERS_MAX = 64;
export const CONCURRENCY_MAX = 1_000;
const RPS_MAX = 1_000_000;
const SECONDS_MAX = 86_400;
const SPEED_MAX = 100_000;
const AXES: Readonly<Record<keyof Matrix, number>> = {
  batch: BATCH_MAX,
  concurrency: CONCURRENCY_MAX,
};
const AXIS_VALUES_MAX = 20;

/** `host:port` or a URL, as a URL without a path. */
export function parseAddress(text: string): string {
  const address = text.includes('://') ? text : `http://${text}`;
  const url = URL.canParse(address) ? new URL(address) : undefined;
  const isKnown = url !== undefined && ['http:', 'https:', 'grpc:'].includes(url.protocol);
  if (!isKnown || url.pathname.length > 1 || (!text.includes('://') && !/:\d+$/.test(text))) {
    throw new InvalidArgumentError('Expected host:port, or a URL such as http://127.0.0.1:8080.');
  }
  return `${url.protocol === 'https:' ? 'https:' : 'http:'}//${url.host}`;
}

/** Adds an axis such as `batch=1,8,64`. */
export function parseAxis(text: string, others: Matrix = {}): Matrix {
  const [name = '', list = ''] = text.split('=', 2);
  const max = Object.hasOwn(AXES, name) ? AXES[name as keyof Matrix] : 0;
  const values = list.split(',').map(Number);
  const isFit = values.every((value) => Number.isInteger(value) && value >= 1 && value <= max);
  if (!isFit || values.length > AXIS_VALUES_MAX) {
    throw new InvalidArgumentError(
      `Expected batch=1,8,64 or concurrency=1,4,16, with at most ${AXIS_VALUES_MAX} numbers.`,
    );
  }
  return { ...others, [name]: [...new Set(values)] };
}

export function parseRate(text: string): number {
  return parseNumberAbove(text, 0, RPS_MAX, 'requests a second');
}

export function parseSeconds(text: string): number {
  return parseNumberAbove(text.replace(/s$/, ''), 0, SECONDS_MAX, 'seconds');
}

export function parseSpeed(text: string): number {
  return parseNumberAbove(text, 0, SPEED_MAX, 'times the recorded speed');
}

export function parseDifference(text: string): number {
  const value = Number(text);
  if (text !== '' && value >= 0 && value <= 1) return value;
  throw new InvalidArgumentError('Expected a difference of probabilities, 0..1.');
}

export function parseChartPath(text: string): string {
  if (/\.(svg|html)$/.test(text)) return text;
  throw new InvalidArgumentError('Expected a name that ends in .svg or .html.');
}

function parseNumberAbove(text: string, above: number, max: number, unit: string): number {
  const value = Number(text);
  if (text !== '' && value > above && value <= max) return value;
  throw new InvalidArgumentError(`Expected ${unit}: a number above ${above}, at most ${max}.`);
}

/** When requests are sent, as the flags define it. */
export function toLoadSchedule({ concurrency, rps, duration }: Flags): LoadSchedule {
  return {
    concurrency,
    ...(rps === undefined ? {} : { rps }),
    ...(duration === undefined ? {} : { durationMs: duration * 1_000 }),
  };
}
