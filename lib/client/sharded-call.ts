/**
 * The base of lookups and seeks: the keys of a call are sorted by shard, each shard that has keys
 * gets a request (more where one would exceed a limit), and the outcomes are counted. Keys of
 * unanswered requests become unavailable; their rows are filled, so that the caller's buffers are
 * always defined.
 */
import type { ErrorDetails } from '../core/error-details.ts';
import { CubeError } from '../core/errors.ts';
import type { TraceSpan } from '../core/trace-span.ts';
import { murmur32OfKey } from './murmur32.ts';
import type { CallContext, CallTarget } from './replica-probe.ts';
import type { ReplicaSet } from './replica-set.ts';
import { type ShardedKeys, type ShardRequest, splitRequest } from './scatter-gather.ts';
import { ShardCall, type ShardRequestHandler } from './shard-call.ts';

/** The parameters that lookups and seeks have in common. */
export interface ShardedTask {
  readonly deadlineMs: number;
  readonly keysPerRequestMax: number;
  /** A u32 for consistent hashing; undefined: the hash of each request's first key. */
  readonly requestHash: number | undefined;
  /** The parent of the spans of calls; absent: they are not traced. */
  readonly span?: TraceSpan | undefined;
}

/** The resources that a call borrows from its client. */
export interface CallResources {
  readonly context: CallContext;
  /** Index = shard. */
  readonly replicaSets: readonly ReplicaSet[];
  /** Owned by the call until it has settled. */
  readonly scratch: ShardedKeys;
}

export abstract class ShardedCall<Task extends ShardedTask> implements ShardRequestHandler {
  readonly target: CallTarget;
  readonly deadlineMs: number;
  readonly span: TraceSpan | undefined;
  protected readonly task: Task;
  protected readonly keys: ShardedKeys;
  protected unseen = 0;
  protected unavailable = 0;
  /** Why the first unavailable key is unavailable; empty: none is. */
  protected reason = '';
  /** A request was waited for until its deadline. */
  protected deadlineExceeded = false;
  readonly #context: CallContext;
  readonly #replicaSets: readonly ReplicaSet[];
  #error: CubeError | undefined;

  constructor(target: CallTarget, task: Task, resources: CallResources) {
    this.target = target;
    this.deadlineMs = task.deadlineMs;
    this.span = task.span;
    this.task = task;
    this.keys = resources.scratch;
    this.#context = resources.context;
    this.#replicaSets = resources.replicaSets;
  }

  abstract encodePayload(request: ShardRequest): Uint8Array;
  abstract encodeAttachment(request: ShardRequest): Uint8Array;
  abstract readResponse(request: ShardRequest, payload: Uint8Array, attachment: Uint8Array): void;

  getHash(request: ShardRequest): number {
    const { words } = this.keys;
    const at = 2 * request.start;
    return this.task.requestHash ?? murmur32OfKey(words[at]!, words[at + 1]!);
  }

  /** Marks every key of a request unavailable, and fills its row. */
  protected abstract fillUnavailable(request: ShardRequest): void;

  /** Whether a request that was TOO_LARGE may be sent again in two halves. */
  protected abstract canSplit(request: ShardRequest): boolean;

  /** The bundle and version, or the dict, for error messages. */
  protected abstract describe(): string;

  /** The same as fields of error details. */
  protected abstract get subject(): Pick<ErrorDetails, 'bundle' | 'version'>;

  /** Sends all requests. @throws CubeError for a mistake that every replica reports alike */
  protected async sendAll(requests: readonly ShardRequest[]): Promise<void> {
    const [first] = requests;
    if (requests.length === 1 && first !== undefined) await this.#send(first);
    else await Promise.all(requests.map((request) => this.#send(request)));
    if (this.#error !== undefined) throw this.#error;
    const { counters } = this.#context;
    counters.unseenKeys += this.unseen;
    counters.unavailableKeys += this.unavailable;
  }

  /**
   * Settles one request: answered, or its keys marked unavailable, or the error of the call set.
   * Never rejects.
   */
  async #send(request: ShardRequest): Promise<void> {
    const { shard, start, end } = request;
    const replicaSet = this.#replicaSets[shard]!;
    const failure = await new ShardCall(this.#context, replicaSet, this, request).run();
    if (failure === undefined) return;
    const { permanentError: error, reason, deadlineExceeded, endpoint } = failure;
    if (error === undefined) {
      this.unavailable += end - start;
      this.deadlineExceeded ||= deadlineExceeded;
      if (this.reason === '') {
        this.reason = `shard ${shard} of ${this.#replicaSets.length}: ${reason}`;
      }
      this.fillUnavailable(request);
    } else if (error.code === 'TOO_LARGE' && end - start > 1 && this.canSplit(request)) {
      await Promise.all(splitRequest(request).map((half) => this.#send(half)));
    } else this.#error ??= this.#locate(error, shard, endpoint);
  }

  /** Adds to an error which call failed, and which replica of which shard reported it. */
  #locate(error: CubeError, shard: number, endpoint: string): CubeError {
    const message = `${this.describe()}, shard ${shard} at ${endpoint}: ${error.message}`;
    const details = { ...error.details, ...this.subject, shard, server: endpoint };
    return new CubeError(error.code, message, { cause: error, details });
  }
}
