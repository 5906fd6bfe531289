/**
 * The transfers of a host, over all its bundles: so many at once, so fast together, and none begun that the disk has no
 * room for.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import { freeDiskBytes } from '../../lib/platform/disk-space.ts';
import { RateLimit } from '../../lib/platform/rate-limit.ts';
import type { CopyOptions } from '../../lib/repository/verified-copy.ts';

export interface FetcherOptions {
  readonly dataFolder: string;
  /** Transfers at once. */
  readonly parallel: number;
  /** All together; undefined: as fast as it goes. */
  readonly bytesPerSecond: number | undefined;
  /** What fetching leaves free on the disk. */
  readonly keepFreeBytes: number;
  readonly clock: Clock;
}

/** One layer on its way. */
export interface Transfer {
  readonly bundle: string;
  readonly version: string;
  readonly table: string;
  readonly contentId: string;
  readonly bytes: number;
  /** Those of an earlier attempt included. */
  arrivedBytes: number;
  /** What an earlier attempt had left. */
  readonly resumedBytes: number;
  /** Undefined: it waits for its turn. */
  startMs: number | undefined;
}

export type TransferWish = Omit<Transfer, 'arrivedBytes' | 'startMs'>;

export class Fetcher {
  readonly #options: FetcherOptions;
  readonly #rate: RateLimit | undefined;
  readonly #transfers = new Set<Transfer>();
  readonly #waiting: (() => void)[] = [];
  #running = 0;
  /** Since the start. */
  fetchedBytes = 0;

  constructor(options: FetcherOptions) {
    const { bytesPerSecond, clock } = options;
    this.#options = options;
    this.#rate = bytesPerSecond === undefined ? undefined : new RateLimit(bytesPerSecond, clock);
  }

  get transfers(): readonly Transfer[] {
    return [...this.#transfers];
  }

  get keepFreeBytes(): number {
    return this.#options.keepFreeBytes;
  }

  /** Of the data folder's disk. */
  freeBytes(): number {
    return freeDiskBytes(this.#options.dataFolder);
  }

  /** @param bytes still to come. @throws CubeError IO saying how much is missing */
  requireRoom(what: string, bytes: number): void {
    const { dataFolder, keepFreeBytes } = this.#options;
    if (bytes === 0) return;
    let promised = 0;
    for (const transfer of this.#transfers) promised += transfer.bytes - transfer.arrivedBytes;
    const freeBytes = this.freeBytes();
    const missing = bytes + promised + keepFreeBytes - freeBytes;
    if (missing <= 0) return;
    throw new CubeError(
      'IO',
      `no room for ${what}: it needs ${bytes} bytes more in ${dataFolder}, whose disk has ${freeBytes} free, ` +
        `${promised} of them promised to other transfers and ${keepFreeBytes} kept free; ` +
        `free ${missing} bytes, lower keep-free or keep fewer versions`,
    );
  }

  /** Runs `copy` when it is its turn. */
  async run(
    wish: TransferWish,
    signal: AbortSignal,
    copy: (options: CopyOptions) => Promise<void>,
  ): Promise<void> {
    const transfer: Transfer = { ...wish, arrivedBytes: 0, startMs: undefined };
    this.#transfers.add(transfer);
    await this.#turn();
    try {
      if (signal.aborted) throw new CubeError('STOPPING', `stopped before ${wish.contentId}`);
      transfer.startMs = this.#options.clock.nowMs();
      await copy({
        signal,
        onBytes: (bytes) => this.#count(transfer, bytes),
        ...(this.#rate === undefined ? {} : { rate: this.#rate }),
      });
    } finally {
      this.#transfers.delete(transfer);
      this.#leave();
    }
  }

  async #turn(): Promise<void> {
    if (this.#running < this.#options.parallel) this.#running += 1;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
  }

  /** Whoever waits takes the place over. */
  #leave(): void {
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
