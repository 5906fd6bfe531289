/** Structured logs, one JSON object a line on stderr. Never a line per request, never a secret. */
import { destination, type Logger, pino } from 'pino';

export type { Logger } from 'pino';

export const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'silent'] as const;

/** @param name the process, as it appears in every line */
export function createLogger(name: string, level: (typeof LOG_LEVELS)[number] = 'info'): Logger {
  return pino(
    {
      name,
      level,
      base: { name, pid: process.pid },
      timestamp: () => `,"time":"${new Date().toISOString()}"`,
      formatters: { level: (label) => ({ level: label }) },
      redact: ['token', 'password', 'authorization', '*.token', '*.password', '*.authorization'],
    },
    destination({ dest: 2, sync: true }),
  );
}
