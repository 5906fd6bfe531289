/**
 * One lookup in flight: its keys scattered by shard, a question to each shard that has some, and what came of it. Unanswered keys
 * are unavailable; their rows are filled, so that the caller's buffers are defined.
 */
import { LOOKUP_GROUPS_MAX } from '../../proto/lookup.ts';
import { CubeError } from '../core/errors.ts';
import { type LookupSummary, OUTCOME_UNAVAILABLE } from './lookup-group.ts';
import type { LookupPlan } from './lookup-plan.ts';
import { murmur32OfKey } from './murmur32.ts';
import type { PlannedTable } from './planned-table.ts';
import type { CallContext } from './replica-probe.ts';
import type { ReplicaSet } from './replica-set.ts';
import {
  fillPart,
  type KeyGroup,
  type RequestLimits,
  type RowTarget,
  type Scatter,
  type ShardRequest,
} from './scatter.ts';
import { type Asked, takeRows, takeValues } from './shard-answer.ts';
import { ShardCall, type ShardFailure, type ShardQuestion } from './shard-call.ts';
import { halves } from './shard-requests.ts';
import type { ValueTarget } from './value-target.ts';

/** Of rows that one answer may carry: far below the 64 MiB that servers allow. */
const ANSWER_BYTES_MAX = 8 << 20;

/** Where the answers go, by group. */
export type Targets =
  | { readonly kind: 'rows'; readonly groups: readonly RowTarget[] }
  | { readonly kind: 'values'; readonly groups: readonly ValueTarget[] };

export interface LookupTask {
  readonly plan: LookupPlan;
  readonly tables: readonly PlannedTable[];
  readonly groups: readonly KeyGroup[];
  readonly targets: Targets;
  readonly deadlineMs: number;
  readonly keysPerRequestMax: number;
  /** u32; undefined: that of each request's first key. */
  readonly requestHash: number | undefined;
}

export class LookupCall {
  readonly task: LookupTask;
  readonly scatter: Scatter;
  readonly #context: CallContext;
  readonly #sets: readonly ReplicaSet[];
  #unseen = 0;
  #unavailable = 0;
  #reason = '';
  #fatal: CubeError | undefined;

  /** @param scratch this call's own until `run` has settled */
  constructor(
    task: LookupTask,
    sets: readonly ReplicaSet[],
    scratch: Scatter,
    context: CallContext,
  ) {
    this.task = task;
    this.scatter = scratch;
    this.#context = context;
    this.#sets = sets;
  }

  /** @throws CubeError of a mistake in the groups, or in the fleet file */
  async run(): Promise<LookupSummary> {
    const { plan, tables, groups, keysPerRequestMax } = this.task;
    const limits: RequestLimits = {
      keys: keysPerRequestMax,
      groups: LOOKUP_GROUPS_MAX,
      answerBytes: ANSWER_BYTES_MAX,
    };
    this.scatter.scatter(groups, plan.shardNum);
    const rowBytes = tables.map((table) => table.rowBytes);
    const requests = this.scatter.requests(limits, rowBytes);
    if (requests.length === 1) await this.#ask(requests[0]!);
    else await Promise.all(requests.map((request) => this.#ask(request)));
    if (this.#fatal !== undefined) throw this.#fatal;
    const unseen = this.#unseen;
    const unavailable = this.#unavailable;
    const { counters } = this.#context;
    counters.unseenKeys += unseen;
    counters.unavailableKeys += unavailable;
    const { version } = plan.manifest;
    if (this.#reason === '') return { version, unseen, unavailable };
    return { version, unseen, unavailable, reason: this.#reason };
  }

  /** Writes the answer of one request. @returns nothing; throws when it is not one to what was asked */
  take(request: ShardRequest, payload: Uint8Array, attachment: Uint8Array): void {
    const { plan, tables, targets } = this.task;
    const asked: Asked = {
      version: plan.manifest.version,
      parts: request.parts,
      tables,
      order: this.scatter.order,
    };
    this.#unseen +=
      targets.kind === 'rows'
        ? takeRows(asked, targets.groups, payload, attachment)
        : takeValues(asked, targets.groups, payload, attachment);
  }

  /** Settles one request: answered, or its keys marked unavailable, or the call marked fatal. Never rejects. */
  async #ask(request: ShardRequest): Promise<void> {
    const set = this.#sets[request.shard]!;
    const question = new LookupQuestion(this, request);
    const failure = await new ShardCall(this.#context, set, question).run();
    if (failure === undefined) return;
    if (failure.fatal === undefined) this.#giveUp(request, failure);
    else if (failure.fatal.code === 'TOO_LARGE' && this.#canHalve(request)) {
      await Promise.all(halves(request).map((half) => this.#ask(half)));
    } else this.#fatal ??= this.#located(failure.fatal, request.shard, failure.endpoint);
  }

  /** How long values are is known only to the servers: where they are too many bytes for one answer, fewer are asked for. */
  #canHalve({ start, end }: ShardRequest): boolean {
    return this.task.targets.kind === 'values' && end - start > 1;
  }

  #giveUp(request: ShardRequest, { reason }: ShardFailure): void {
    const { plan, tables, targets } = this.task;
    const { order } = this.scatter;
    this.#unavailable += request.end - request.start;
    if (this.#reason === '') {
      this.#reason = `shard ${request.shard} of ${plan.shardNum}: ${reason}`;
    }
    for (const part of request.parts) {
      if (targets.kind === 'values') {
        const { outcomes } = targets.groups[part.group]!;
        for (let i = 0; i < part.count; i++) outcomes[order[part.start + i]!] = OUTCOME_UNAVAILABLE;
      } else {
        const { fillRow } = tables[part.group]!;
        fillPart(part, order, fillRow, OUTCOME_UNAVAILABLE, targets.groups[part.group]!);
      }
    }
  }

  /** A mistake's message with the place: which replica of which shard said so. */
  #located(error: CubeError, shard: number, endpoint: string): CubeError {
    const { bundle, version } = this.task.plan.manifest;
    const where = `${bundle} ${version}, shard ${shard} at ${endpoint}`;
    return new CubeError(error.code, `${where}: ${error.message}`, { cause: error });
  }
}

/** What one request of a lookup asks. */
class LookupQuestion implements ShardQuestion {
  readonly subject: LookupPlan;
  readonly deadlineMs: number;
  readonly #call: LookupCall;
  readonly #request: ShardRequest;

  constructor(call: LookupCall, request: ShardRequest) {
    this.subject = call.task.plan;
    this.deadlineMs = call.task.deadlineMs;
    this.#call = call;
    this.#request = request;
  }

  get hash(): number {
    const { words } = this.#call.scatter;
    const at = 2 * this.#request.start;
    return this.#call.task.requestHash ?? murmur32OfKey(words[at]!, words[at + 1]!);
  }

  payload(): Uint8Array {
    const { plan, tables } = this.#call.task;
    return plan.head(this.#request.shard, this.#request.parts, tables);
  }

  attachment(): Uint8Array {
    return this.#call.scatter.keyBytes(this.#request);
  }

  take(payload: Uint8Array, attachment: Uint8Array): void {
    this.#call.take(this.#request, payload, attachment);
  }
}
