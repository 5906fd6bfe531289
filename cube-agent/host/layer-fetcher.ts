/**
 * The layer transfers of a host, for all its bundles: limits their number and total rate, and
 * starts none that the disk has no room for.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { ByteRateLimiter } from '../../lib/platform/byte-rate-limiter.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import { freeDiskBytes } from '../../lib/platform/files.ts';
import type { CopyOptions } from '../../lib/repository/verified-copy.ts';

export interface LayerFetcherOptions {
  readonly dataFolder: string;
  /** Maximum concurrent transfers. */
  readonly parallel: number;
  /** Total rate limit; undefined: no limit. */
  readonly bytesPerSecond: number | undefined;
  /** Bytes that fetching leaves free on the disk. */
  readonly keepFreeBytes: number;
  readonly clock: Clock;
}

/** One layer that is being fetched. */
export interface Transfer {
  readonly bundle: string;
  readonly version: string;
  readonly table: string;
  readonly contentId: string;
  readonly bytes: number;
  /** Includes the bytes of earlier attempts. */
  arrivedBytes: number;
  /** Bytes that earlier attempts left on disk. */
  readonly resumedBytes: number;
  /** Undefined while the transfer waits for its turn. */
  startMs: number | undefined;
}

export type TransferRequest = Omit<Transfer, 'arrivedBytes' | 'startMs'>;

export class LayerFetcher {
  readonly #options: LayerFetcherOptions;
  readonly #rate: ByteRateLimiter | undefined;
  readonly #transfers = new Set<Transfer>();
  readonly #waiting: (() => void)[] = [];
  #running = 0;
  /** Since the start. */
  fetchedBytes = 0;

  constructor(options: LayerFetcherOptions) {
    const { bytesPerSecond, clock } = options;
    this.#options = options;
    this.#rate =
      bytesPerSecond === undefined ? undefined : new ByteRateLimiter(bytesPerSecond, clock);
  }

  get transfers(): readonly Transfer[] {
    return [...this.#transfers];
  }

  get keepFreeBytes(): number {
    return this.#options.keepFreeBytes;
  }

  /** Free bytes on the disk of the data folder. */
  freeBytes(): number {
    return freeDiskBytes(this.#options.dataFolder);
  }

  /**
   * @param bytes that remain to be fetched
   * @throws CubeError IO with the number of missing bytes
   */
  requireDiskSpace(what: string, bytes: number): void {
    const { dataFolder, keepFreeBytes } = this.#options;
    if (bytes === 0) return;
    let reserved = 0;
    for (const transfer of this.#transfers) reserved += transfer.bytes - transfer.arrivedBytes;
    const freeBytes = this.freeBytes();
    const missing = bytes + reserved + keepFreeBytes - freeBytes;
    if (missing <= 0) return;
    throw new CubeError(
      'IO',
      `no room for ${what}: it needs ${bytes} more bytes in ${dataFolder}; the disk has ` +
        `${freeBytes} bytes free, of which ${reserved} are reserved for other transfers and ` +
        `${keepFreeBytes} are kept free; free ${missing} bytes, lower keep-free or keep-versions`,
    );
  }

  /** Runs `copy` when a transfer slot is free. */
  async run(
    request: TransferRequest,
    signal: AbortSignal,
    copy: (options: CopyOptions) => Promise<void>,
  ): Promise<void> {
    const transfer: Transfer = { ...request, arrivedBytes: 0, startMs: undefined };
    this.#transfers.add(transfer);
    await this.#acquireSlot();
    try {
      if (signal.aborted)
        throw new CubeError('STOPPING', `stopped before fetching ${request.contentId}`);
      transfer.startMs = this.#options.clock.nowMs();
      await copy({
        signal,
        onBytes: (bytes) => this.#count(transfer, bytes),
        ...(this.#rate === undefined ? {} : { rate: this.#rate }),
      });
    } finally {
      this.#transfers.delete(transfer);
      this.#releaseSlot();
    }
  }

  async #acquireSlot(): Promise<void> {
    if (this.#running < this.#options.parallel) this.#running += 1;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
  }

  /** Passes the slot to the next waiting transfer. */
  #releaseSlot(): void {
    const next = this.#waiting.shift();
    if (next === undefined) this.#running -= 1;
    else next();
  }

  #count(transfer: Transfer, bytes: number): void {
    const { resumedBytes, arrivedBytes } = transfer;
    transfer.arrivedBytes = arrivedBytes + bytes;
    this.fetchedBytes +=
      Math.max(0, transfer.arrivedBytes - resumedBytes) - Math.max(0, arrivedBytes - resumedBytes);
  }
}
