/**
 * The life cycle of a service process: the first SIGTERM or SIGINT, or the end of its terminal,
 * stops it gracefully; a second one ends it at once.
 */
import { isatty } from 'node:tty';
import type { Logger } from './logs.ts';

export interface Stoppable {
  /** Becomes not ready, finishes requests in flight, then releases everything. */
  stop(): Promise<void>;
}

export interface RunServiceOptions {
  readonly graceMs?: number;
  /** Resolves with a reason when the service must stop without a signal. */
  readonly stopRequest?: Promise<string>;
}

const SIGNALS: readonly NodeJS.Signals[] = ['SIGTERM', 'SIGINT'];
const STDERR = 2;
const startedOnTerminal = isatty(STDERR);

/**
 * Starts a service, waits for a signal or stop request, and resolves when `stop()` has finished.
 * SIGHUP stops it too if the service does not handle it, or if its terminal was closed.
 * Signals are caught before the start, so an early one stops the service as soon as it has started,
 * or earlier where `start` ends itself when its signal is aborted: that is a stop, not a failure.
 * When stopping takes longer than `graceMs`, the process exits with 1.
 */
export async function runService(
  start: (stopping: AbortSignal) => Promise<Stoppable>,
  logger: Logger,
  { graceMs = 30_000, stopRequest }: RunServiceOptions = {},
): Promise<void> {
  const signals = catchSignals();
  const stopping = new AbortController();
  const reason = Promise.race([signals.first, ...(stopRequest === undefined ? [] : [stopRequest])]);
  reason.then(() => stopping.abort());
  try {
    const service = await start(stopping.signal).catch((error: unknown) => {
      if (stopping.signal.aborted) return undefined;
      throw error;
    });
    logger.info({ reason: await reason }, 'stopping');
    const timer = setTimeout(() => {
      logger.error({ graceMs }, 'did not stop in time');
      process.exit(1);
    }, graceMs);
    await service?.stop();
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
  // Services may use SIGHUP themselves, but not the one that a closed terminal sends.
  const onHangUp = (): void => {
    const isClosed = startedOnTerminal && !isatty(STDERR);
    if (isClosed || process.listenerCount('SIGHUP') === 1) onSignal('SIGHUP');
  };
  for (const signal of SIGNALS) process.on(signal, onSignal);
  process.on('SIGHUP', onHangUp);
  const release = (): void => {
    for (const signal of SIGNALS) process.off(signal, onSignal);
    process.off('SIGHUP', onHangUp);
  };
  return { first, release };
}

/**
 * An abort signal for the first SIGTERM or SIGINT, for work that reports its progress when
 * interrupted. A second signal ends the process at once.
 */
export function abortOnSignal(): { readonly signal: AbortSignal; readonly release: () => void } {
  const { first, release } = catchSignals();
  const stop = new AbortController();
  first.then(() => stop.abort());
  return { signal: stop.signal, release };
}
