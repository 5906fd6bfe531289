/** The latest warnings and errors of this process's log, each message once with its count. */

export interface RecentWarning {
  readonly level: 'warn' | 'error';
  readonly message: string;
  /** The error that the line reports; empty without one. */
  readonly detail: string;
  readonly count: number;
  /** ISO 8601. */
  readonly firstAt: string;
  readonly lastAt: string;
}

/** The oldest message makes room for the next. */
const MESSAGES_MAX = 100;
const TEXT_CHARS_MAX = 500;
const ERROR_LEVEL = 50;

const warnings = new Map<string, RecentWarning>();

/** @param args of a pino call: fields and a message, or only a message */
export function recordWarning(args: readonly unknown[], level: number): void {
  const [fields, text] = typeof args[0] === 'string' ? [{}, args[0]] : args;
  const { error, err, reason, code } = (fields ?? {}) as Readonly<Record<string, unknown>>;
  const detail = err instanceof Error ? err.message : (error ?? reason ?? code ?? '');
  const message = String(text ?? '').slice(0, TEXT_CHARS_MAX);
  const known = warnings.get(message);
  const at = new Date().toISOString();
  warnings.delete(message);
  warnings.set(message, {
    level: level >= ERROR_LEVEL ? 'error' : 'warn',
    message,
    detail: String(detail).slice(0, TEXT_CHARS_MAX),
    count: (known?.count ?? 0) + 1,
    firstAt: known?.firstAt ?? at,
    lastAt: at,
  });
  const [oldest] = warnings.keys();
  if (warnings.size > MESSAGES_MAX && oldest !== undefined) warnings.delete(oldest);
}

/** Newest first. */
export function listRecentWarnings(): RecentWarning[] {
  return [...warnings.values()].reverse();
}
