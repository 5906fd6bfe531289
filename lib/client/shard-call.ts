/**
 * One request to one shard, until some replica has answered it or none can: the first replica, further ones after failures
 * (each at most once, within the retry budget), and a backup beside one that is slow.
 *
 * Invariants
 * - `take` runs at most once to its end, and never after the call has settled: a late answer is dropped unread.
 * - A failure that every replica would repeat (FATAL) ends the call at once.
 */
import type { CubeError } from '../core/errors.ts';
import type { CallResult } from '../rpc/channel.ts';
import type { Replica } from './replica.ts';
import {
  type CallContext,
  FATAL,
  noteFailure,
  probeAnother,
  type ShardSubject,
} from './replica-probe.ts';
import type { ReplicaSet } from './replica-set.ts';

/** One request of a call. */
export interface ShardQuestion {
  readonly subject: ShardSubject;
  /** u32, for consistent hashing. */
  readonly hash: number;
  readonly deadlineMs: number;
  /** The request's bytes, which are sent before this question is asked again: views of scratch will do. */
  payload(): Uint8Array;
  attachment(): Uint8Array;
  /** Checks an answer and takes what is in it, without waiting. @throws CubeError when it is none to this question */
  take(payload: Uint8Array, attachment: Uint8Array): void;
}

/** Why a request was not answered. */
export interface ShardFailure {
  /** The last failure, and where. */
  readonly reason: string;
  /** Set when every replica would say the same: the caller's or the fleet's mistake, not an outage. */
  readonly fatal: CubeError | undefined;
  /** Who said so. */
  readonly endpoint: string;
}

export class ShardCall {
  readonly #context: CallContext;
  readonly #set: ReplicaSet;
  readonly #question: ShardQuestion;
  readonly #tried: Replica[] = [];
  #inFlight = 0;
  #settled = false;
  #reason = 'no time was left to ask';
  #backupTimer: NodeJS.Timeout | undefined;
  #resolve: (failure: ShardFailure | undefined) => void = () => undefined;

  constructor(context: CallContext, set: ReplicaSet, question: ShardQuestion) {
    this.#context = context;
    this.#set = set;
    this.#question = question;
  }

  /** @returns undefined once the answer is taken, else why there is none. Never rejects. Call it once. */
  run(): Promise<ShardFailure | undefined> {
    return new Promise((resolve) => {
      this.#resolve = resolve;
      this.#set.countRequest();
      this.#askNext();
    });
  }

  /** Asks the next replica, or ends when there is none and nobody asked can still answer. */
  #askNext(): void {
    const { subject, hash, deadlineMs } = this.#question;
    const { versionKey } = subject;
    const nowMs = this.#context.clock.nowMs();
    const asked = this.#tried.length;
    if (nowMs < deadlineMs && asked <= this.#set.retryMax) {
      const replica = this.#set.pick(versionKey, this.#tried, nowMs, hash);
      if (replica !== undefined && (asked === 0 || this.#takeRetry())) {
        if (asked > 0) this.#context.counters.retries++;
        this.#ask(replica, nowMs, false);
        if (asked === 0) this.#armBackup(nowMs);
        return;
      }
    }
    if (this.#inFlight === 0)
      this.#settle({ reason: this.#reason, fatal: undefined, endpoint: '' });
  }

  #takeRetry(): boolean {
    if (this.#set.takeRetry()) return true;
    this.#context.counters.budgetRefusals++;
    this.#reason = `${this.#reason}; the retry budget is spent`;
    return false;
  }

  #ask(replica: Replica, nowMs: number, isBackup: boolean): void {
    const question = this.#question;
    this.#tried.push(replica);
    this.#inFlight++;
    this.#context.counters.requests++;
    probeAnother(this.#context, this.#set, question.subject, replica, nowMs);
    const { service, method } = question.subject;
    const leftMs = question.deadlineMs - nowMs;
    replica.call(service, method, question.payload(), question.attachment(), leftMs, nowMs).then(
      (answer) => this.#receive(replica, nowMs, answer, isBackup),
      (error: unknown) => this.#fail(replica, nowMs, error),
    );
  }

  /** Runs as the continuation of the answer, of which the bytes are valid only now. */
  #receive(replica: Replica, startedMs: number, answer: CallResult, isBackup: boolean): void {
    if (this.#settled) {
      this.#inFlight--;
      replica.exit(startedMs, this.#context.clock.nowMs(), false);
      return;
    }
    try {
      this.#question.take(answer.payload, answer.attachment);
    } catch (error) {
      this.#fail(replica, startedMs, error);
      return;
    }
    this.#inFlight--;
    this.#set.observe(replica.exit(startedMs, this.#context.clock.nowMs(), false));
    replica.answered(this.#question.subject.versionKey);
    if (isBackup) this.#context.counters.backupsWon++;
    this.#settle(undefined);
  }

  #fail(replica: Replica, startedMs: number, thrown: unknown): void {
    const { clock } = this.#context;
    const { endpoint } = replica;
    this.#inFlight--;
    replica.exit(startedMs, clock.nowMs(), true);
    const error = noteFailure(this.#context, replica, this.#question.subject, thrown);
    if (this.#settled) return;
    this.#reason = `${endpoint}: ${error.code} ${error.message}`;
    if (FATAL.has(error.code)) this.#settle({ reason: this.#reason, fatal: error, endpoint });
    else this.#askNext();
  }

  #armBackup(nowMs: number): void {
    const delayMs = this.#set.backupDelayMs();
    if (delayMs >= this.#question.deadlineMs - nowMs || this.#settled) return;
    this.#backupTimer = setTimeout(this.#askBackup, delayMs);
  }

  readonly #askBackup = (): void => {
    const { subject, hash } = this.#question;
    if (this.#settled || this.#tried.length > this.#set.retryMax) return;
    const nowMs = this.#context.clock.nowMs();
    const replica = this.#set.pickBackup(subject.versionKey, this.#tried, nowMs, hash);
    if (replica === undefined) return;
    if (!this.#set.takeRetry()) {
      this.#context.counters.budgetRefusals++;
      return;
    }
    this.#context.counters.backups++;
    this.#ask(replica, nowMs, true);
  };

  #settle(failure: ShardFailure | undefined): void {
    this.#settled = true;
    clearTimeout(this.#backupTimer);
    this.#resolve(failure);
  }
}
