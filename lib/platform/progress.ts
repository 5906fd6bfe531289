/** Progress of long work: a bar on a terminal, nothing elsewhere (pipes and logs stay clean). */
import { Presets, SingleBar } from 'cli-progress';

export interface Progress {
  /** Sets the work done so far, in the unit given to `startProgress`. */
  update(done: number): void;
  stop(): void;
}

const silent: Progress = { update: () => undefined, stop: () => undefined };

/** @param unit what is counted: "rows", "MB" */
export function startProgress(title: string, total: number, unit: string): Progress {
  if (!process.stderr.isTTY || total <= 0) return silent;
  const bar = new SingleBar(
    {
      format: `${title} {bar} {percentage}% {value}/{total} ${unit} · {eta_formatted} left`,
      stream: process.stderr,
      hideCursor: true,
      clearOnComplete: true,
      fps: 5,
    },
    Presets.rect,
  );
  bar.start(total, 0);
  return {
    update: (done) => bar.update(Math.min(done, total)),
    stop: () => bar.stop(),
  };
}
