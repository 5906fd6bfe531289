/** One seek in flight: its keys scattered by shard, a question to each shard that has some, and what came of it. */
import { DICT_METHOD, DICT_SERVICE } from '../../proto/dict.ts';
import { type DictAnswer, writeDictRequest } from '../../proto/dict-seek.ts';
import { OutputBuffer } from '../../proto/output-buffer.ts';
import { CubeError } from '../core/errors.ts';
import { keyToBigint } from '../core/keys.ts';
import { OUTCOME_HIT, OUTCOME_UNAVAILABLE, OUTCOME_UNSEEN } from './lookup-group.ts';
import { murmur32OfKey } from './murmur32.ts';
import type { CallContext, ShardSubject } from './replica-probe.ts';
import type { ReplicaSet } from './replica-set.ts';
import type { RequestLimits, Scatter, ShardRequest } from './scatter.ts';
import { ShardCall, type ShardQuestion } from './shard-call.ts';
import { halves } from './shard-requests.ts';
import type { ValueTarget } from './value-target.ts';

export interface SeekSummary {
  /** Distinct versions of the answers, sorted; '' is a server that loaded no version. */
  readonly versions: readonly string[];
  /** The answers are of several versions: a rollout is under way, or a server was left behind. */
  readonly mixed: boolean;
  readonly unseen: number;
  readonly unavailable: number;
  /** Why the first of the unavailable keys is: which shard, which replica, what it said. */
  readonly reason?: string;
}

/** Where values go. */
export type SeekTarget =
  | { readonly kind: 'values'; readonly values: ValueTarget }
  | {
      readonly kind: 'rows';
      readonly dim: number;
      readonly rows: Float32Array;
      readonly outcomes: Uint8Array;
    };

export interface SeekTask {
  readonly dict: string;
  readonly keys: Uint32Array;
  readonly count: number;
  readonly target: SeekTarget;
  readonly shardNum: number;
  readonly deadlineMs: number;
  /** u32; undefined: that of each request's first key. */
  readonly requestHash: number | undefined;
  readonly keysPerRequestMax: number;
}

const NO_BYTES = new Uint8Array(0);
const NO_VERSIONS: readonly string[] = [];
/** A request's bytes, which are sent before the next one's are written. */
const output = new OutputBuffer(4096);

export class SeekCall {
  readonly task: SeekTask;
  readonly scatter: Scatter;
  readonly subject: ShardSubject;
  readonly #sets: readonly ReplicaSet[];
  readonly #answer: DictAnswer;
  readonly #context: CallContext;
  readonly #versions = new Set<string>();
  #unseen = 0;
  #unavailable = 0;
  #reason = '';
  #fatal: CubeError | undefined;

  /** @param answer scratch, used without waiting */
  constructor(
    task: SeekTask,
    sets: readonly ReplicaSet[],
    scratch: Scatter,
    answer: DictAnswer,
    context: CallContext,
  ) {
    this.task = task;
    this.scatter = scratch;
    this.subject = new DictSubject(task.dict);
    this.#sets = sets;
    this.#answer = answer;
    this.#context = context;
  }

  /** @throws CubeError of a mistake that every replica would report */
  async run(): Promise<SeekSummary> {
    const { keys, count, shardNum, keysPerRequestMax } = this.task;
    const limits: RequestLimits = {
      keys: keysPerRequestMax,
      groups: 1,
      answerBytes: Number.MAX_SAFE_INTEGER,
    };
    this.scatter.scatter([{ keys, count }], shardNum);
    const requests = this.scatter.requests(limits, [0]);
    await Promise.all(requests.map((request) => this.#ask(request)));
    if (this.#fatal !== undefined) throw this.#fatal;
    const { counters } = this.#context;
    counters.unseenKeys += this.#unseen;
    counters.unavailableKeys += this.#unavailable;
    const versions = [...this.#versions].sort();
    return {
      versions,
      mixed: versions.length > 1,
      unseen: this.#unseen,
      unavailable: this.#unavailable,
      ...(this.#reason === '' ? {} : { reason: this.#reason }),
    };
  }

  /** Checks an answer, then writes it to the target. @throws CubeError when it is none to this request */
  take(request: ShardRequest, payload: Uint8Array): void {
    const answer = this.#answer;
    const count = request.end - request.start;
    try {
      answer.decode(payload, count);
    } catch (error) {
      const text = `answered something else than a seek: ${(error as Error).message}`;
      throw new CubeError('INTERNAL', text);
    }
    const { target } = this.task;
    if (target.kind === 'rows') this.#takeRows(request, target.dim, target.rows);
    else {
      const [part] = request.parts;
      const { starts, ends, bytes } = answer;
      target.values.add(this.scatter.order, { part: part!, starts, ends, bytes });
    }
    const outcomes = this.#outcomes;
    for (let i = 0; i < count; i++) {
      const hit = answer.hits[i] === 1;
      outcomes[this.scatter.order[request.start + i]!] = hit ? OUTCOME_HIT : OUTCOME_UNSEEN;
      if (!hit) this.#unseen++;
    }
    this.#versions.add(answer.version);
  }

  get #outcomes(): Uint8Array {
    const { target } = this.task;
    return target.kind === 'rows' ? target.outcomes : target.values.outcomes;
  }

  #takeRows({ start, end }: ShardRequest, dim: number, rows: Float32Array): void {
    const { hits, starts, ends, bytes } = this.#answer;
    const { order } = this.scatter;
    for (let i = 0; i < end - start; i++) {
      const length = ends[i]! - starts[i]!;
      if (hits[i] === 1 && length !== 4 * dim) this.#wrongDim(start + i, length, dim);
    }
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    for (let i = 0; i < end - start; i++) {
      const to = order[start + i]! * dim;
      if (hits[i] === 1) {
        const from = starts[i]!;
        for (let d = 0; d < dim; d++) rows[to + d] = view.getFloat32(from + 4 * d, true);
      } else rows.fill(0, to, to + dim);
    }
  }

  #wrongDim(position: number, length: number, dim: number): never {
    const key = keyToBigint(this.scatter.words, position);
    throw new CubeError(
      'INVALID_ARGUMENT',
      `dict ${this.task.dict}: key ${key} has a value of ${length} bytes, a row of dim ${dim} has ${4 * dim}; give the dim of its rows, or use seek`,
    );
  }

  async #ask(request: ShardRequest): Promise<void> {
    const set = this.#sets[request.shard]!;
    const question = new SeekQuestion(this, request);
    const failure = await new ShardCall(this.#context, set, question).run();
    if (failure === undefined) return;
    const { fatal, reason, endpoint } = failure;
    if (fatal === undefined) this.#giveUp(request, reason);
    else if (fatal.code === 'TOO_LARGE' && request.end - request.start > 1) {
      await Promise.all(halves(request).map((half) => this.#ask(half)));
    } else {
      const text = `dict ${this.task.dict}, shard ${request.shard} at ${endpoint}: ${fatal.message}`;
      this.#fatal ??= new CubeError(fatal.code, text, { cause: fatal });
    }
  }

  #giveUp({ shard, start, end }: ShardRequest, reason: string): void {
    const { target, shardNum } = this.task;
    const { order } = this.scatter;
    const outcomes = this.#outcomes;
    this.#unavailable += end - start;
    if (this.#reason === '') this.#reason = `shard ${shard} of ${shardNum}: ${reason}`;
    for (let position = start; position < end; position++) {
      const index = order[position]!;
      outcomes[index] = OUTCOME_UNAVAILABLE;
      if (target.kind === 'rows') {
        target.rows.fill(0, index * target.dim, (index + 1) * target.dim);
      }
    }
  }
}

/** A dict, at whichever version each server has active. */
class DictSubject implements ShardSubject {
  readonly service = DICT_SERVICE;
  readonly method = DICT_METHOD;
  readonly versionKey: string;

  constructor(dict: string) {
    this.versionKey = dict;
  }

  emptyPayload(): Uint8Array {
    return NO_BYTES;
  }

  checkEmpty(payload: Uint8Array): void {
    if (payload.length > 0) throw new CubeError('INTERNAL', 'answered values to no keys');
  }

  heldVersions(): readonly string[] {
    return NO_VERSIONS;
  }
}

/** What one request of a seek asks. */
class SeekQuestion implements ShardQuestion {
  readonly subject: ShardSubject;
  readonly deadlineMs: number;
  readonly #call: SeekCall;
  readonly #request: ShardRequest;

  constructor(call: SeekCall, request: ShardRequest) {
    this.subject = call.subject;
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
    output.truncate(0);
    writeDictRequest(output, this.#call.scatter.words, this.#request.start, this.#request.end);
    return output.written();
  }

  attachment(): Uint8Array {
    return NO_BYTES;
  }

  take(payload: Uint8Array): void {
    this.#call.take(this.#request, payload);
  }
}
