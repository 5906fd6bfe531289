/**
 * The exposure log: a JSON line for each request in an experiment, to be joined with clicks. Lines
 * are written in batches; while the disk is too slow, further ones are dropped and counted.
 */
import { createHash } from 'node:crypto';
import { CubeError } from '../../lib/core/errors.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { RotatingFile, type RotatingFileOptions } from '../../lib/platform/rotating-file.ts';

export interface ExposureLogOptions {
  readonly file: RotatingFileOptions;
  /** Share of the requests that are logged, from 0 to 1. */
  readonly share: number;
  readonly logger: Logger;
}

export interface Exposure {
  readonly model: string;
  readonly version: string;
  readonly assignments: readonly { readonly experiment: string; readonly variant: string }[];
  /** The experiment key; only its hash is written. */
  readonly key: string | undefined;
  readonly scores: readonly number[];
}

const FLUSH_MS = 200;
const PENDING_BYTES_MAX = 4 << 20;
/** Scores of a long list of candidates are cut here. */
const SCORES_MAX = 100;

export class ExposureLog {
  readonly #file: RotatingFile;
  readonly #options: ExposureLogOptions;
  #pending: string[] = [];
  #pendingBytes = 0;
  #timer: NodeJS.Timeout | undefined;
  #writing: Promise<void> = Promise.resolve();
  #dropped = 0;

  /** @throws CubeError when the file cannot be opened */
  constructor(options: ExposureLogOptions) {
    this.#options = options;
    this.#file = new RotatingFile(options.file);
  }

  /** Lines that were not written. */
  get dropped(): number {
    return this.#dropped;
  }

  record({ model, version, assignments, key, scores }: Exposure): void {
    const { share } = this.#options;
    if (share < 1 && Math.random() >= share) return;
    const line = `${JSON.stringify({
      at: new Date().toISOString(),
      model,
      version,
      variants: Object.fromEntries(assignments.map((each) => [each.experiment, each.variant])),
      ...(key !== undefined && { key_sha256: hashKey(key) }),
      scores: scores.slice(0, SCORES_MAX),
    })}\n`;
    if (this.#pendingBytes + line.length > PENDING_BYTES_MAX) {
      this.#dropped++;
      return;
    }
    this.#pending.push(line);
    this.#pendingBytes += line.length;
    this.#timer ??= setTimeout(() => this.#flush(), FLUSH_MS);
  }

  /** Writes what is pending. */
  async close(): Promise<void> {
    clearTimeout(this.#timer);
    this.#flush();
    await this.#writing;
  }

  #flush(): void {
    this.#timer = undefined;
    this.#writing = this.#writing.then(() => this.#write());
  }

  async #write(): Promise<void> {
    const lines = this.#pending;
    if (lines.length === 0) return;
    this.#pending = [];
    this.#pendingBytes = 0;
    try {
      await this.#file.append(Buffer.from(lines.join('')));
    } catch (error) {
      this.#dropped += lines.length;
      this.#options.logger.error({ error: CubeError.from(error).message }, 'exposures are lost');
    }
  }
}

/** The hash by which exposures and clicks are joined without the key itself. */
function hashKey(key: string): string {
  return createHash('sha256').update(key).digest('hex');
}
