/** A seek: Cube's own lookup of values in a dict, at whichever version each server has active. */
import { DICT_METHOD, DICT_SERVICE } from '../../proto/dict.ts';
import { type DictResponse, writeDictRequest } from '../../proto/dict-seek.ts';
import { OutputBuffer } from '../../proto/output-buffer.ts';
import { CubeError } from '../core/errors.ts';
import { keyToBigint } from '../core/keys.ts';
import { OUTCOME_HIT, OUTCOME_UNAVAILABLE, OUTCOME_UNSEEN } from '../core/lookup-group.ts';
import type { CallTarget } from './replica-probe.ts';
import type { RequestLimits, ShardRequest } from './scatter-gather.ts';
import { type CallResources, ShardedCall, type ShardedTask } from './sharded-call.ts';
import type { ValueOutput } from './value-output.ts';

export interface SeekSummary {
  /**
   * Distinct versions of the responses, sorted; '' stands for a server that has loaded no version.
   */
  readonly versions: readonly string[];
  /**
   * The responses came from several versions: a rollout is in progress, or a server did not take
   * part in one.
   */
  readonly mixed: boolean;
  readonly unseen: number;
  readonly unavailable: number;
  /** Why the first unavailable key is unavailable: shard, replica and its error. */
  readonly reason?: string;
}

/** The buffers that a seek fills. */
export type SeekOutput =
  | { readonly kind: 'values'; readonly values: ValueOutput }
  | {
      readonly kind: 'rows';
      readonly dim: number;
      readonly rows: Float32Array;
      readonly outcomes: Uint8Array;
    };

export interface SeekTask extends ShardedTask {
  readonly dict: string;
  /** 2·count words (low, high). */
  readonly keys: Uint32Array;
  readonly count: number;
  readonly output: SeekOutput;
  readonly shardNum: number;
}

const NO_BYTES = new Uint8Array(0);
const NO_VERSIONS: readonly string[] = [];
/** The bytes of one request, which are sent before the next request is encoded. */
const requestBuffer = new OutputBuffer(4096);

export class SeekCall extends ShardedCall<SeekTask> {
  readonly #outcomes: Uint8Array;
  readonly #response: DictResponse;
  readonly #versions = new Set<string>();

  /** @param response scratch of the client, used synchronously */
  constructor(task: SeekTask, response: DictResponse, resources: CallResources) {
    super(new DictTarget(task.dict), task, resources);
    const { output } = task;
    this.#outcomes = output.kind === 'rows' ? output.outcomes : output.values.outcomes;
    this.#response = response;
  }

  /** @throws CubeError for a mistake that every replica reports alike */
  async run(): Promise<SeekSummary> {
    const { keys, count, shardNum, keysPerRequestMax } = this.task;
    const limits: RequestLimits = {
      keys: keysPerRequestMax,
      groups: 1,
      responseBytes: Number.MAX_SAFE_INTEGER,
    };
    this.keys.assign([{ keys, count }], shardNum);
    await this.sendAll(this.keys.createRequests(limits, [0]));
    const { unseen, unavailable, reason } = this;
    const versions = [...this.#versions].sort();
    const summary = { versions, mixed: versions.length > 1, unseen, unavailable };
    return reason === '' ? summary : { ...summary, reason };
  }

  encodePayload({ start, end }: ShardRequest): Uint8Array {
    requestBuffer.truncate(0);
    writeDictRequest(requestBuffer, this.keys.words, start, end);
    return requestBuffer.writtenBytes();
  }

  encodeAttachment(): Uint8Array {
    return NO_BYTES;
  }

  readResponse(request: ShardRequest, payload: Uint8Array): void {
    const response = this.#response;
    const { start, end, parts } = request;
    try {
      response.decode(payload, end - start);
    } catch (error) {
      const text = `the response is not a seek response: ${(error as Error).message}`;
      throw new CubeError('INTERNAL', text);
    }
    const { output } = this.task;
    const { order } = this.keys;
    if (output.kind === 'rows') this.#writeRows(request, output.dim, output.rows);
    else {
      const { starts, ends, bytes } = response;
      for (const part of parts) output.values.add(order, { part, starts, ends, bytes });
    }
    for (let i = 0; i < end - start; i++) {
      const isHit = response.hits[i] === 1;
      this.#outcomes[order[start + i]!] = isHit ? OUTCOME_HIT : OUTCOME_UNSEEN;
      if (!isHit) this.unseen++;
    }
    this.#versions.add(response.version);
  }

  protected fillUnavailable({ start, end }: ShardRequest): void {
    const { output } = this.task;
    const { order } = this.keys;
    for (let position = start; position < end; position++) {
      const index = order[position]!;
      this.#outcomes[index] = OUTCOME_UNAVAILABLE;
      if (output.kind === 'rows') {
        output.rows.fill(0, index * output.dim, (index + 1) * output.dim);
      }
    }
  }

  protected canSplit(): boolean {
    return true;
  }

  protected describe(): string {
    return `dict ${this.task.dict}`;
  }

  protected get subject(): { bundle: string } {
    return { bundle: this.task.dict };
  }

  /** Checks all lengths, then writes the rows. */
  #writeRows({ start, end }: ShardRequest, dim: number, rows: Float32Array): void {
    const { hits, starts, ends, bytes } = this.#response;
    const { order } = this.keys;
    for (let i = 0; i < end - start; i++) {
      const length = ends[i]! - starts[i]!;
      if (hits[i] === 1 && length !== 4 * dim) this.#rejectLength(start + i, length, dim);
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

  #rejectLength(position: number, length: number, dim: number): never {
    const key = keyToBigint(this.keys.words, position);
    throw new CubeError(
      'INVALID_ARGUMENT',
      `dict ${this.task.dict}: the value of key ${key} has ${length} bytes, ` +
        `but a row of dim ${dim} has ${4 * dim}; pass the dim of the dict's rows, or use seek`,
    );
  }
}

/** A dict, at the version that each server has active. */
class DictTarget implements CallTarget {
  readonly service = DICT_SERVICE;
  readonly method = DICT_METHOD;
  readonly versionKey: string;

  constructor(dict: string) {
    this.versionKey = dict;
  }

  probePayload(): Uint8Array {
    return NO_BYTES;
  }

  checkProbeResponse(payload: Uint8Array): void {
    if (payload.length > 0) {
      throw new CubeError('INTERNAL', 'the response to a seek without keys has values');
    }
  }

  getLoadedVersions(): readonly string[] {
    return NO_VERSIONS;
  }
}
