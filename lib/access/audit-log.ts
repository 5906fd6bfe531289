/**
 * The audit log: one JSON line for each control action and each refused credential. Credentials are
 * never part of a record. Lines are written at once, and the file is rotated when full.
 */
import { CubeError } from '../core/errors.ts';
import type { Logger } from '../platform/logs.ts';
import { RateLimitedLog } from '../platform/logs.ts';
import { RotatingFile, type RotatingFileOptions } from '../platform/rotating-file.ts';

/** Refusals recorded per second; more are counted, so that guessing cannot fill the disk. */
const REFUSALS_PER_SECOND = 100;
const FIELD_CHARS_MAX = 512;

/** Undefined: unknown. */
export interface AuditRecord {
  /** The call, such as `POST /v2/repository/models/:model/load`, or the verb of a command. */
  readonly action: string;
  readonly protocol?: string | undefined;
  /** Model, or bundle and version. */
  readonly target?: string | undefined;
  /** The client's IP address. */
  readonly address?: string | undefined;
  /** The id of an API key. */
  readonly key?: string | undefined;
  /** The subject of a client certificate. */
  readonly certificate?: string | undefined;
  /** `OK` or an error code. */
  readonly result: string;
  readonly reason?: string | undefined;
}

export class AuditLog {
  readonly #process: string;
  readonly #file: RotatingFile;
  readonly #isoTime: () => string;
  readonly #log: RateLimitedLog;
  #second = '';
  #refusals = 0;
  #omitted = 0;

  /** @param processName the program, in each record. @throws CubeError when it cannot be opened */
  constructor(
    processName: string,
    options: RotatingFileOptions,
    logger: Logger,
    isoTime: () => string,
  ) {
    this.#process = processName;
    this.#file = new RotatingFile(options);
    this.#isoTime = isoTime;
    this.#log = new RateLimitedLog(logger);
  }

  recordAction(record: AuditRecord): void {
    this.#write('control', record, 0);
  }

  recordRefusal(record: AuditRecord): void {
    const second = this.#isoTime().slice(0, 19);
    if (second !== this.#second) {
      this.#second = second;
      this.#refusals = 0;
    }
    if (++this.#refusals > REFUSALS_PER_SECOND) {
      this.#omitted++;
      return;
    }
    const omitted = this.#omitted;
    this.#omitted = 0;
    this.#write('refused', record, omitted);
  }

  #write(event: string, record: AuditRecord, omitted: number): void {
    const fields = Object.entries(record).map(([name, value]) => [
      name,
      typeof value === 'string' ? value.slice(0, FIELD_CHARS_MAX) : value,
    ]);
    const line = JSON.stringify({
      time: this.#isoTime(),
      event,
      process: this.#process,
      pid: process.pid,
      ...Object.fromEntries(fields),
      ...(omitted > 0 && { omittedBefore: omitted }),
    });
    try {
      this.#file.appendNow(Buffer.from(`${line}\n`));
    } catch (error) {
      // The call goes on: an operator must be able to roll back with a full disk.
      this.#log.warn({ error: CubeError.from(error).message }, 'audit record not written');
    }
  }
}
