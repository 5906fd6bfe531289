/** A progress bar on terminals; pipes and logs get none. */
import { Presets, SingleBar } from 'cli-progress';
import { systemClock } from './clock.ts';
import { formatDuration, ProgressEstimate } from './progress-estimate.ts';

/** The rate and the remaining time are computed again, so that a standstill shows. */
const REFRESH_MS = 1000;

export interface Progress {
  /** Sets the work done so far, in the unit passed to `startProgress`. */
  update(done: number): void;
  /** Counts work that an earlier run did, which the next `update` includes. */
  skip(count: number): void;
  stop(): void;
}

const silent: Progress = {
  update: () => undefined,
  skip: () => undefined,
  stop: () => undefined,
};

/**
 * @param total 0 when unknown; then only the work done and its rate are shown
 * @param unit what is counted: "rows", "MB"
 * @param unitBytes bytes per unit, to show bytes per second too
 */
export function startProgress(title: string, total: number, unit: string, unitBytes = 0): Progress {
  if (!process.stderr.isTTY || total < 0) return silent;
  const share = total > 0 ? '{bar} {percentage}% {value}/{total}' : '{value}';
  const bar = new SingleBar(
    {
      format: `${title} ${share} ${unit} · {rate}{left}`,
      stream: process.stderr,
      hideCursor: true,
      clearOnComplete: true,
      fps: 5,
    },
    Presets.rect,
  );
  const estimate = new ProgressEstimate(systemClock.nowMs());
  const describe = (): { rate: string; left: string } => {
    const nowMs = systemClock.nowMs();
    const seconds = total > 0 ? estimate.getSecondsLeft(nowMs, total) : undefined;
    const left = seconds === undefined ? '' : ` · ${formatDuration(seconds)} left`;
    return { rate: formatRate(estimate.getRate(nowMs), unit, unitBytes), left };
  };
  bar.start(total, 0, describe());
  const refresh = setInterval(() => bar.update(describe()), REFRESH_MS).unref();
  return {
    skip: (count) => estimate.skip(count),
    update: (done) => {
      estimate.update(systemClock.nowMs(), done);
      bar.update(total > 0 ? Math.min(done, total) : done, describe());
    },
    stop: () => {
      clearInterval(refresh);
      bar.stop();
    },
  };
}

/** "1.2 M rows/s, 48.0 MB/s" */
function formatRate(perSecond: number, unit: string, unitBytes: number): string {
  const rate = `${formatWithPrefix(perSecond)}${unit}/s`;
  return unitBytes === 0 ? rate : `${rate}, ${formatWithPrefix(perSecond * unitBytes)}B/s`;
}

function formatWithPrefix(value: number): string {
  if (value >= 1e9) return `${(value / 1e9).toFixed(1)} G`;
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (value >= 1e3) return `${(value / 1e3).toFixed(1)} k`;
  return `${Math.round(value)} `;
}
