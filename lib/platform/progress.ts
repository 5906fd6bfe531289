/** Progress of long work: a bar on a terminal, nothing elsewhere (pipes and logs stay clean). */
import { Presets, SingleBar } from 'cli-progress';
import { systemClock } from './clock.ts';

export interface Progress {
  /** Sets the work done so far, in the unit given to `startProgress`. */
  update(done: number): void;
  stop(): void;
}

const silent: Progress = { update: () => undefined, stop: () => undefined };

/**
 * @param total 0 when nobody knows: what is done and how fast is shown then
 * @param unit what is counted: "rows", "MB"
 * @param unitBytes bytes of one of them, to show bytes a second too
 */
export function startProgress(title: string, total: number, unit: string, unitBytes = 0): Progress {
  if (!process.stderr.isTTY || total < 0) return silent;
  const share = total > 0 ? '{bar} {percentage}% {value}/{total}' : '{value}';
  const left = total > 0 ? ' · {eta_formatted} left' : '';
  const bar = new SingleBar(
    {
      format: `${title} ${share} ${unit} · {rate}${left}`,
      stream: process.stderr,
      hideCursor: true,
      clearOnComplete: true,
      fps: 5,
    },
    Presets.rect,
  );
  const startMs = systemClock.nowMs();
  const rate = (done: number): string =>
    rateText(done / Math.max(1e-3, (systemClock.nowMs() - startMs) / 1000), unit, unitBytes);
  bar.start(total, 0, { rate: rate(0) });
  return {
    update: (done) => bar.update(total > 0 ? Math.min(done, total) : done, { rate: rate(done) }),
    stop: () => bar.stop(),
  };
}

/** "1.2 M rows/s, 48.0 MB/s" */
function rateText(perSecond: number, unit: string, unitBytes: number): string {
  const rate = `${withPrefix(perSecond)}${unit}/s`;
  return unitBytes === 0 ? rate : `${rate}, ${withPrefix(perSecond * unitBytes)}B/s`;
}

function withPrefix(value: number): string {
  if (value >= 1e9) return `${(value / 1e9).toFixed(1)} G`;
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (value >= 1e3) return `${(value / 1e3).toFixed(1)} k`;
  return `${Math.round(value)} `;
}
