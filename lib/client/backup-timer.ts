/**
 * Tells the calls to one shard when they are due for a backup request. One timer serves all of
 * them: a timer for each call would cost more than the rest of the call's bookkeeping.
 *
 * Calls are told in the order in which they were added. When the delay has become shorter, a call
 * may be told late, by at most the difference.
 */

import type { TimerClock } from '../platform/clock.ts';

/** A call that may want a backup. It waits in at most one timer. */
export abstract class BackupCaller {
  /** Set by the timer: when the call is due, and the call that was added after it. */
  backupAtMs = 0;
  nextBackup: BackupCaller | undefined;

  abstract get isSettled(): boolean;
  /** Called once for each `add`, unless the call has settled before. */
  abstract sendBackup(nowMs: number): void;
}

export class BackupTimer {
  readonly #clock: TimerClock;
  #first: BackupCaller | undefined;
  #last: BackupCaller | undefined;
  #isArmed = false;

  constructor(clock: TimerClock) {
    this.#clock = clock;
  }

  /** @param delayMs finite. A call must not be added again before it was told. */
  add(call: BackupCaller, nowMs: number, delayMs: number): void {
    this.#dropSettled();
    call.backupAtMs = nowMs + delayMs;
    if (this.#last === undefined) this.#first = call;
    else this.#last.nextBackup = call;
    this.#last = call;
    if (!this.#isArmed) this.#arm(delayMs);
  }

  #arm(delayMs: number): void {
    this.#isArmed = true;
    this.#clock.after(Math.max(1, Math.ceil(delayMs)), this.#run);
  }

  readonly #run = (): void => {
    this.#isArmed = false;
    const nowMs = this.#clock.nowMs();
    for (;;) {
      this.#dropSettled();
      const call = this.#first;
      if (call === undefined) return;
      if (call.backupAtMs > nowMs) {
        if (!this.#isArmed) this.#arm(call.backupAtMs - nowMs);
        return;
      }
      this.#dropFirst(call);
      call.sendBackup(nowMs);
    }
  };

  #dropSettled(): void {
    while (this.#first?.isSettled) this.#dropFirst(this.#first);
  }

  #dropFirst(call: BackupCaller): void {
    this.#first = call.nextBackup;
    if (this.#first === undefined) this.#last = undefined;
    call.nextBackup = undefined;
  }
}
