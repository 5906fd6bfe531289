/**
 * How a batch of a bundle reaches a worker and comes back. Batches use the same slabs again and
 * again, and an object in a message, or new views of a slab, take microseconds on both sides. Thus
 * a message describes a slab once and gives it a number; after that a batch is one number for its
 * slab and its rows. Results are in the slab (batch-slab.ts).
 */
import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import { type SlabShape, type SlabViews, viewResult, viewSlab } from './batch-slab.ts';
import type { FailedReply, InstanceChannel } from './model-instance.ts';

/** Slabs that a worker knows; more than the batches that it may have. */
const SLAB_NUMBERS = 16;
/** Larger slabs get no number: a worker keeps the memory of those that it knows. */
const NUMBERED_BYTES_MAX = 4 << 20;

/** A batch. */
export interface BatchJob {
  readonly slab: SharedArrayBuffer;
  readonly rowCount: number;
}

/** The result of a batch, in addition to its outputs. */
export interface BatchResult {
  /** Keys of the batch that are unseen or unavailable. */
  readonly misses: number;
  readonly lookupMicros: number;
  readonly inferMicros: number;
}

/** A batch whose slab the worker does not know. */
interface SlabMessage extends BatchJob {
  readonly kind: 'run';
  /** The number of the slab from now on; undefined: none. */
  readonly slabNumber: number | undefined;
}

export type BatchMessage = SlabMessage | number;

/** What a worker replies when the result is in the slab. */
export const BATCH_DONE = 0;
export type BatchReply = typeof BATCH_DONE | FailedReply;

/** The main thread's side. */
export class SlabChannel implements InstanceChannel<BatchJob, BatchResult> {
  readonly #slabs: (SharedArrayBuffer | undefined)[] = new Array(SLAB_NUMBERS).fill(undefined);
  /** Of batches without a reply, in their order. */
  readonly #sent: SharedArrayBuffer[] = [];
  #nextNumber = 0;

  encode({ slab, rowCount }: BatchJob): BatchMessage {
    this.#sent.push(slab);
    const known = this.#slabs.indexOf(slab);
    if (known >= 0) return rowCount * SLAB_NUMBERS + known;
    if (slab.byteLength > NUMBERED_BYTES_MAX) {
      return { kind: 'run', slab, rowCount, slabNumber: undefined };
    }
    const slabNumber = this.#nextNumber++ % SLAB_NUMBERS;
    this.#slabs[slabNumber] = slab;
    return { kind: 'run', slab, rowCount, slabNumber };
  }

  decode(reply: BatchReply): BatchResult {
    const slab = requireDefined(this.#sent.shift(), 'the slab of a batch');
    if (reply !== BATCH_DONE) throw new CubeError(reply.code, reply.message);
    const result = viewResult(slab);
    return { misses: result[0]!, lookupMicros: result[1]!, inferMicros: result[2]! };
  }
}

/** A batch as a worker sees it. */
export interface ReceivedBatch {
  readonly views: SlabViews;
  readonly rowCount: number;
}

/** The worker's side. */
export class SlabReceiver {
  readonly #shape: SlabShape;
  readonly #views: (SlabViews | undefined)[] = new Array(SLAB_NUMBERS).fill(undefined);

  constructor(shape: SlabShape) {
    this.#shape = shape;
  }

  /** Call in the order of the messages. */
  receive(message: BatchMessage): ReceivedBatch {
    if (typeof message === 'number') {
      const views = requireDefined(this.#views[message % SLAB_NUMBERS], 'a known slab');
      return { views, rowCount: Math.floor(message / SLAB_NUMBERS) };
    }
    const { slab, rowCount, slabNumber } = message;
    const views = viewSlab(this.#shape, slab);
    if (slabNumber !== undefined) this.#views[slabNumber] = views;
    return { views, rowCount };
  }
}
