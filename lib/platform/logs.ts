/** Structured logs, one JSON object a line on stderr. Never a line per request, never a secret. */
import { createRequire } from 'node:module';
import type * as Pino from 'pino';
import type { Logger } from 'pino';

export type { Logger } from 'pino';

export const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error', 'silent'] as const;

/** @param name the process, as it appears in every line */
export function createLogger(name: string, level: (typeof LOG_LEVELS)[number] = 'info'): Logger {
  // Loaded for the first logger: commands that are done in no time have none.
  const { destination, pino } = createRequire(import.meta.url)('pino') as typeof Pino;
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
