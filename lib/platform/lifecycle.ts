/** A server process from start to end: SIGTERM and SIGINT stop it gracefully once, a second signal at once. */
import type { Logger } from './logs.ts';

export interface Stoppable {
  /** Not ready, finish what is in flight, release everything. */
  stop(): Promise<void>;
}

/**
 * Resolves when the process was asked to stop and `service.stop()` has finished. When stopping takes longer than
 * `graceMs` the process exits with 1.
 */
export function runUntilStopped(
  service: Stoppable,
  logger: Logger,
  graceMs = 30_000,
): Promise<void> {
  return new Promise((resolve, reject) => {
    let stopping = false;
    const onSignal = (signal: NodeJS.Signals): void => {
      if (stopping) process.exit(1);
      stopping = true;
      logger.info({ signal }, 'stopping');
      const timer = setTimeout(() => {
        logger.error({ graceMs }, 'did not stop in time');
        process.exit(1);
      }, graceMs);
      service.stop().then(
        () => {
          clearTimeout(timer);
          process.off('SIGTERM', onSignal);
          process.off('SIGINT', onSignal);
          logger.info('stopped');
          resolve();
        },
        (error: unknown) => {
          clearTimeout(timer);
          reject(error);
        },
      );
    };
    process.on('SIGTERM', onSignal);
    process.on('SIGINT', onSignal);
  });
}
