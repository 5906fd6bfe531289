/** The text under `pipeline.profile`, in the form that the original's analysis tool reads. */
import { wallClockMs } from '../../lib/platform/clock.ts';

/** When an op ran, in milliseconds from the start of the request. */
export interface OpTime {
  readonly op: string;
  readonly startMs: number;
  readonly endMs: number;
}

/** Start (`_0`) and end (`_1`) of each op, in microseconds of the wall clock. */
export function formatProfile(timings: readonly OpTime[]): string {
  const endMs = timings.reduce((latest, timing) => Math.max(latest, timing.endMs), 0);
  const startUs = Math.round(1_000 * (wallClockMs() - endMs));
  const times = timings.map(
    ({ op, startMs, endMs: opEndMs }) =>
      `${op}_0:${startUs + Math.round(1_000 * startMs)} ` +
      `${op}_1:${startUs + Math.round(1_000 * opEndMs)} `,
  );
  return `\nPROFILE\tpid:${process.pid}\t${times.join('')}\n`;
}
