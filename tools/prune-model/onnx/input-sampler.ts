/** Samples inputs of an ONNX model from a seed: valid ids, bags, dense values. */

import { type CubeError, requireDefined } from '../../../lib/core/errors.ts';
import type { SlotSpec } from '../../../lib/core/slots.ts';
import type { OnnxTensor } from '../../../lib/platform/onnx.ts';
import { IdsSampler } from '../cut/ids-sampler.ts';
import { notVerifiedError } from '../cut/refusals.ts';
import { countElements } from '../cut/table.ts';
import type { RandomNumbers } from '../cut/verification.ts';
import { buildKeyFormulas, type SampledInputs } from './embedding-rows.ts';
import { getFixedBatchSize, UNNAMED_BATCH } from './ids-tensor.ts';
import type { OnnxCutLookup } from './lookup-finder.ts';
import { getElementTypeName, type ValueInfo } from './onnx-model.ts';

/** Maximum elements of one tensor; a model that needs more for a few rows cannot be verified. */
const ELEMENT_COUNT_MAX = 2 ** 27;
/** Size given to an axis of unknown size that is not the batch. */
const OTHER_SIZE = 3;

export class OnnxInputSampler {
  readonly #inputs: readonly ValueInfo[];
  readonly #spec: SlotSpec;
  readonly #random: RandomNumbers;
  readonly #samples: IdsSampler;
  /** Inputs with the ids of bags, and inputs with the offsets of bags. */
  readonly #bagIds = new Set<string>();
  readonly #offsets = new Map<string, { ids: string; includesLast: boolean }>();
  readonly #coins = new Map<string, number>();
  /** The batch size that the model is fixed to; undefined when it accepts any. */
  readonly fixedBatch: number | undefined;

  constructor(
    inputs: readonly ValueInfo[],
    lookups: readonly OnnxCutLookup[],
    spec: SlotSpec,
    random: RandomNumbers,
  ) {
    this.#inputs = inputs;
    this.#spec = spec;
    this.#random = random;
    for (const { bags, ids } of lookups) {
      if (bags === undefined) continue;
      const input = requireDefined(ids.inputs[0], 'the ids of a lookup');
      this.#bagIds.add(input.name);
      this.#offsets.set(bags.offsets, { ids: input.name, includesLast: bags.includesLast });
    }
    const fixed = lookups.flatMap(({ ids }) => ids.inputs.map(({ shape }) => shape?.[0]));
    this.fixedBatch = fixed.find((dim) => typeof dim === 'number');
    const { formulas, inputs: ids } = buildKeyFormulas(spec);
    this.#samples = new IdsSampler(ids, spec.maps ?? [], formulas, random);
  }

  /** A tensor for each input. */
  draw(batch: number): SampledInputs {
    const length = 2 * batch + OTHER_SIZE;
    const sizes = new Map<string, number>();
    for (const { name, shape } of this.#inputs) {
      const [first] = shape ?? [];
      const size = this.#bagIds.has(name) ? length : batch;
      if (typeof first === 'string' && !(sizes.get(first) === length)) sizes.set(first, size);
    }
    const dims = new Map<string, readonly number[]>();
    const getAxisSize = (axis: string): number => {
      if (axis === UNNAMED_BATCH) return this.#bagIds.size > 0 ? length : batch;
      // An unnamed axis is called after its input and its position there.
      const [, input = '', position = ''] = /^(.*)\0(\d+)$/s.exec(axis) ?? [];
      return (
        getFixedBatchSize(axis) ??
        sizes.get(axis) ??
        dims.get(input)?.[Number(position)] ??
        OTHER_SIZE
      );
    };
    for (const input of this.#inputs) {
      dims.set(input.name, this.#dims(input, batch, length, getAxisSize));
    }
    const ids = this.#drawIds(dims);
    const tensors = this.#inputs.map((input): [string, OnnxTensor] => {
      const shape = requireDefined(dims.get(input.name), 'the shape of an input');
      return [input.name, this.#tensor(input, shape, ids.get(input.name), length)];
    });
    return { tensors: new Map(tensors), getAxisSize };
  }

  #dims(
    { name, shape }: ValueInfo,
    batch: number,
    length: number,
    getAxisSize: (axis: string) => number,
  ): number[] {
    if (shape === undefined) throw noSamplesError(name, 'its shape is unknown');
    const offsets = this.#offsets.get(name);
    const dims = shape.map((dim, i) => {
      if (typeof dim === 'number') return dim;
      if (i === 0 && this.#bagIds.has(name)) return length;
      if (i === shape.length - 1 && offsets !== undefined) {
        return batch + Number(offsets.includesLast);
      }
      if (i === 0) return batch;
      return dim === undefined ? OTHER_SIZE : getAxisSize(dim);
    });
    const count = countElements(dims);
    if (count > ELEMENT_COUNT_MAX)
      throw noSamplesError(name, `it takes ${count} elements; the maximum is ${ELEMENT_COUNT_MAX}`);
    return dims;
  }

  /** Draws the ids of all inputs together, as many rows as the longest input has. */
  #drawIds(dims: ReadonlyMap<string, readonly number[]>): Map<string, Float64Array> {
    const specs = this.#spec.ids ?? [];
    const counts = specs.map(({ input, columns }) =>
      Math.ceil(countElements(requireDefined(dims.get(input), 'the shape of ids')) / columns),
    );
    const drawn = this.#samples.draw(Math.max(0, ...counts));
    return new Map(
      specs.map(({ input }, i) => [input, requireDefined(drawn[i], 'the ids of an input')]),
    );
  }

  #tensor(
    { name, elemType }: ValueInfo,
    dims: readonly number[],
    ids: Float64Array | undefined,
    length: number,
  ): OnnxTensor {
    const count = countElements(dims);
    const type = getElementTypeName(elemType);
    const values = ids?.subarray(0, count) ?? this.#drawOffsets(name, dims, length);
    if (type === 'int64') {
      const data =
        values === undefined ? new BigInt64Array(count) : BigInt64Array.from(values, BigInt);
      return { dtype: type, data, dims };
    }
    if (type === 'int32') {
      return { dtype: type, data: Int32Array.from(values ?? new Array(count).fill(0)), dims };
    }
    if (type === 'float32' || type === 'float64') {
      const normal = values ?? Float64Array.from({ length: count }, () => this.#random.normal());
      return {
        dtype: type,
        data: type === 'float64' ? Float64Array.from(normal) : Float32Array.from(normal),
        dims,
      };
    }
    if (type === 'bool') {
      // A condition is true in one run and false in the next, so that both branches are compared.
      if (count === 1) return { dtype: type, data: Uint8Array.of(this.#flip(name)), dims };
      const coins = Uint8Array.from({ length: count }, () => Number(this.#random.next() < 0.5));
      return { dtype: type, data: coins, dims };
    }
    throw noSamplesError(name, `its type is ${type}`);
  }

  /** Alternates between 0 and 1; the first value is random. */
  #flip(name: string): number {
    const coin = 1 - (this.#coins.get(name) ?? Number(this.#random.next() < 0.5));
    this.#coins.set(name, coin);
    return coin;
  }

  /**
   * Offsets of the bags of each list: ascending, the first 0; about a third of the bags are empty.
   */
  #drawOffsets(name: string, dims: readonly number[], length: number): Float64Array | undefined {
    const offsets = this.#offsets.get(name);
    if (offsets === undefined) return undefined;
    const [first = 0, second] = dims;
    const [lists, count] = second === undefined ? [1, first] : [first, second];
    const all = new Float64Array(lists * count);
    for (let list = 0; list < lists; list++) {
      const begins = all.subarray(list * count, (list + 1) * count);
      for (let i = 0; i < count; i++) begins[i] = Math.floor(this.#random.next() * (length + 1));
      for (let i = 2; i < count; i += 3) begins[i] = begins[i - 1] ?? 0;
      begins.sort();
      begins[0] = 0;
      if (offsets.includesLast) begins[count - 1] = length;
    }
    return all;
  }
}

function noSamplesError(input: string, reason: string): CubeError {
  return notVerifiedError(`no samples for input ${JSON.stringify(input)}: ${reason}`);
}
