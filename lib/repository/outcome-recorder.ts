/**
 * Records for a process which versions have served and which failed to load, each once. Recording
 * never fails and never delays the process: what could not be written is tried at the next call.
 */
import { CubeError } from '../core/errors.ts';
import type { Logger } from '../platform/logs.ts';
import { isFaultOfVersion, type Outcome, type VersionOutcomes } from './outcomes.ts';
import type { Repository } from './repository.ts';

export interface OutcomeRecorderOptions {
  readonly repository: () => Pick<Repository, 'recordOutcome'>;
  readonly bundle: string;
  /** The author of the records. */
  readonly author: string;
  readonly logger: Logger;
}

export class OutcomeRecorder {
  readonly #options: OutcomeRecorderOptions;
  /** What is recorded, or being recorded, as "version outcome". */
  readonly #known = new Set<string>();
  /** The last problem, which is logged once. */
  #problem = '';
  #isReadOnly = false;

  constructor(options: OutcomeRecorderOptions) {
    this.#options = options;
  }

  /** Outcomes that were read from the repository. */
  addKnown({ served, failed }: VersionOutcomes): void {
    for (const version of served) this.#known.add(`${version} served`);
    for (const version of failed) this.#known.add(`${version} failed`);
  }

  /** Never rejects. */
  recordServed(version: string): Promise<void> {
    return this.#record(version, 'served', 'it was loaded and serves');
  }

  /** Errors that say nothing about the version are not recorded. Never rejects. */
  async recordFailed(version: string, error: CubeError): Promise<void> {
    if (isFaultOfVersion(error)) await this.#record(version, 'failed', error.message);
  }

  async #record(version: string, outcome: Outcome, reason: string): Promise<void> {
    const { repository, bundle, author: by, logger } = this.#options;
    const key = `${version} ${outcome}`;
    if (this.#isReadOnly || this.#known.has(key)) return;
    this.#known.add(key);
    try {
      await repository().recordOutcome(bundle, version, outcome, { by, reason });
      this.#problem = '';
    } catch (error) {
      this.#known.delete(key);
      const { code, message } = CubeError.from(error);
      this.#isReadOnly = code === 'UNSUPPORTED';
      if (message === this.#problem) return;
      this.#problem = message;
      const text =
        'cannot record which versions have served: a rollback may go to one that has not';
      logger[this.#isReadOnly ? 'info' : 'warn']({ bundle, version, code, error: message }, text);
    }
  }
}
