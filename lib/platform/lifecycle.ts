/** A service process from start to end: SIGTERM and SIGINT stop it gracefully once, a second signal at once. */
import type { Logger } from './logs.ts';

export interface Stoppable {
  /** Not ready, finish what is in flight, release everything. */
  stop(): Promise<void>;
}

export interface RunOptions {
  readonly graceMs?: number;
  /** Resolves when the service shall stop for another reason than a signal. */
  readonly asked?: Promise<string>;
}

const SIGNALS: readonly NodeJS.Signals[] = ['SIGTERM', 'SIGINT'];

/**
 * Starts a service and resolves when the process was asked to stop and `stop()` has finished. Signals are caught from
 * before the start, so one that comes early stops the service as soon as it has started. When stopping takes longer
 * than `graceMs` the process exits with 1.
 */
export async function runService(
  start: () => Promise<Stoppable>,
  logger: Logger,
  { graceMs = 30_000, asked }: RunOptions = {},
): Promise<void> {
  const signals = catchSignals();
  try {
    const service = await start();
    const reason = await Promise.race([signals.first, ...(asked === undefined ? [] : [asked])]);
    logger.info({ reason }, 'stopping');
    const timer = setTimeout(() => {
      logger.error({ graceMs }, 'did not stop in time');
      process.exit(1);
    }, graceMs);
    await service.stop();
    clearTimeout(timer);
    logger.info('stopped');
  } finally {
    signals.release();
  }
}

function catchSignals(): { first: Promise<NodeJS.Signals>; release: () => void } {
  let onSignal = (_: NodeJS.Signals): void => undefined;
  const first = new Promise<NodeJS.Signals>((resolve) => {
    let caught = false;
    onSignal = (signal) => {
      if (caught) process.exit(1);
      caught = true;
      resolve(signal);
    };
  });
  for (const signal of SIGNALS) process.on(signal, onSignal);
  const release = (): void => {
    for (const signal of SIGNALS) process.off(signal, onSignal);
  };
  return { first, release };
}

/** Aborted by the first SIGTERM or SIGINT, for work that then says how far it came; a second one ends the process at once. */
export function stopOnSignal(): { readonly signal: AbortSignal; readonly release: () => void } {
  const { first, release } = catchSignals();
  const stop = new AbortController();
  first.then(() => stop.abort());
  return { signal: stop.signal, release };
}
