/**
 * Logs on stderr or in a rotated file, without secrets: one JSON object per line, or short readable
 * lines on a terminal.
 */

import { createRequire } from 'node:module';
import { isatty } from 'node:tty';
import { type Command, Option } from 'commander';
import type * as Pino from 'pino';
import type { Logger } from 'pino';
import type * as PinoPretty from 'pino-pretty';
import { systemClock } from './clock.ts';
import { recordWarning } from './recent-warnings.ts';
import { RotatingFile, type RotatingFileOptions } from './rotating-file.ts';

export type { Logger } from 'pino';

export const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'silent'] as const;
export const LOG_FORMATS = ['text', 'json'] as const;
export const LOG_FORMAT_HELP =
  'Format of log messages (default: text on a terminal, else one JSON object per line)';

export type LogLevel = (typeof LOG_LEVELS)[number];
export type LogFormat = (typeof LOG_FORMATS)[number];

export interface LoggerOptions {
  /** Lowest level to write (default: info). */
  readonly level?: LogLevel | undefined;
  readonly format?: LogFormat | undefined;
  /** Written instead of stderr. */
  readonly file?: RotatingFileOptions | undefined;
  /** With `file`: warnings and errors are written here instead of there. */
  readonly warningsFile?: RotatingFileOptions | undefined;
}

const STDERR = 2;
/** pino's number. */
const WARN_LEVEL = 40;
/** What a reader closes: the pipe, or the terminal. */
const CLOSED_CODES: readonly (string | undefined)[] = ['EPIPE', 'EIO'];

export function addLogFormatOption(command: Command): Command {
  return command.addOption(
    new Option('--log-format <format>', LOG_FORMAT_HELP).choices(LOG_FORMATS),
  );
}

/** Loads with the first logger: short commands need none. */
const require = createRequire(import.meta.url);

/** One for the whole process, because it has one stderr. */
let processFormat: LogFormat | undefined;

/** The format of this process's log, for its threads and child processes. */
export function getLogFormat(): LogFormat {
  return processFormat ?? (isatty(STDERR) ? 'text' : 'json');
}

/**
 * @param name process name, which appears in every line of JSON
 * @throws CubeError when the log file cannot be opened
 */
export function createLogger(name: string, options: LoggerOptions = {}): Logger {
  const { level = 'info', format } = options;
  processFormat = format ?? processFormat;
  const { pino } = require('pino') as typeof Pino;
  return pino(
    {
      name,
      level,
      base: { name, pid: process.pid },
      timestamp: () => `,"time":"${new Date().toISOString()}"`,
      formatters: { level: (label) => ({ level: label }) },
      hooks: {
        logMethod(args, method, levelNumber) {
          if (levelNumber >= WARN_LEVEL) recordWarning(args, levelNumber);
          method.apply(this, args);
        },
      },
      redact: ['token', 'password', 'authorization', '*.token', '*.password', '*.authorization'],
    },
    openDestination(options),
  );
}

/** A logger of a thread: its lines go to `forward`, for `writeForwardedLine` in the main thread. */
export function createForwardingLogger(level: LogLevel, forward: (line: string) => void): Logger {
  const { pino } = require('pino') as typeof Pino;
  const formatters = { level: (label: string) => ({ level: label }) };
  return pino({ level, base: null, timestamp: false, formatters }, { write: forward });
}

/** @param line of `createForwardingLogger` */
export function writeForwardedLine(logger: Logger, line: string): void {
  const { level, msg, ...fields } = JSON.parse(line) as { level: string; msg?: string };
  const isLevel = LOG_LEVELS.some((known) => known === level);
  logger[isLevel ? (level as LogLevel) : 'info'](fields, msg);
}

function openDestination({
  level = 'info',
  format,
  file,
  warningsFile,
}: LoggerOptions): Pino.DestinationStream {
  if (file === undefined) return openStderr();
  const all = openLogFile(file, format);
  if (warningsFile === undefined || level === 'silent') return all;
  const { multistream } = require('pino') as typeof Pino;
  const warnings = openLogFile(warningsFile, format);
  return multistream(
    [
      { level, stream: all },
      { level: 'warn', stream: warnings },
    ],
    { dedupe: true },
  );
}

function openStderr(): Pino.DestinationStream {
  const { destination } = require('pino') as typeof Pino;
  const stderr = destination({ dest: STDERR, sync: true });
  // A process whose terminal was closed goes on, or stops its children, without logs.
  stderr.on('error', (error: NodeJS.ErrnoException) => {
    if (!CLOSED_CODES.includes(error.code)) throw error;
  });
  if (getLogFormat() === 'json') return stderr;
  return createTextStream(stderr, isatty(STDERR));
}

/** Lines that cannot be written, for example to a full disk, go to stderr. */
function openLogFile(
  options: RotatingFileOptions,
  format: LogFormat = 'json',
): Pino.DestinationStream {
  const file = new RotatingFile(options);
  const stream: Pino.DestinationStream = {
    write(line) {
      try {
        file.appendNow(Buffer.from(line));
      } catch {
        process.stderr.write(line);
      }
    },
  };
  return format === 'json' ? stream : createTextStream(stream, false);
}

function createTextStream(
  stream: Pino.DestinationStream,
  isTerminal: boolean,
): Pino.DestinationStream {
  const { prettyFactory } = require('pino-pretty') as typeof PinoPretty;
  const format = prettyFactory({
    colorize: isTerminal,
    ignore: 'name,pid',
    singleLine: true,
    translateTime: 'SYS:HH:MM:ss',
  });
  // Clears the line, which may have a progress bar; the bar is drawn again below.
  const clear = isTerminal ? '\r\u001b[K' : '';
  return { write: (line) => stream.write(clear + format(line)) };
}

const INTERVAL_MS = 1000;

export class RateLimitedLog {
  readonly #logger: Logger;
  #nextMs = Number.NEGATIVE_INFINITY;
  #suppressed = 0;

  constructor(logger: Logger) {
    this.#logger = logger;
  }

  warn(fields: object, message: string): void {
    const nowMs = systemClock.nowMs();
    if (nowMs < this.#nextMs) {
      this.#suppressed++;
      return;
    }
    this.#nextMs = nowMs + INTERVAL_MS;
    const suppressed = this.#suppressed;
    this.#suppressed = 0;
    this.#logger.warn(suppressed === 0 ? fields : { ...fields, suppressed }, message);
  }
}
