/** Points in time on the command line: a time, or a duration from now. */
import { CubeError } from '../../lib/core/errors.ts';

const UNITS_MS: Readonly<Record<string, number>> = {
  m: 60_000,
  h: 3_600_000,
  d: 86_400_000,
};
const DURATION = /^(\d{1,6})([mhd])$/;
const TIME = /^\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d+)?)?Z)?$/;

/**
 * @param text `90d`, `12h`, `30m`, `0m`, `2026-12-31` or `2026-12-31T12:00:00Z`
 * @returns ISO 8601, UTC
 * @throws CubeError INVALID_ARGUMENT
 */
export function parseTime(text: string, nowMs: number): string {
  const [, count, unit = ''] = DURATION.exec(text) ?? [];
  if (count !== undefined) {
    return new Date(nowMs + Number(count) * (UNITS_MS[unit] ?? 0)).toISOString();
  }
  const timeMs = TIME.test(text) ? Date.parse(text) : Number.NaN;
  if (!Number.isNaN(timeMs)) return new Date(timeMs).toISOString();
  throw new CubeError(
    'INVALID_ARGUMENT',
    `expected a duration such as 90d, 12h or 30m, or a time such as 2026-12-31T12:00:00Z, got ` +
      JSON.stringify(text.slice(0, 60)),
  );
}
