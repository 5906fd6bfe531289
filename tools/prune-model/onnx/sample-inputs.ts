/** Sampled inputs of a model, the same for the same seed: ids that the lookups take, bags of them, normal dense values. */
import { CubeError } from '../../../lib/core/errors.ts';
import type { SlotSpec } from '../../../lib/core/slots.ts';
import type { OnnxTensor } from '../../../lib/platform/onnx.ts';
import { KeySamples } from '../key-samples.ts';
import type { RandomNumbers } from '../proof.ts';
import { fixedSize, UNNAMED_BATCH } from './ids-tensor.ts';
import type { CutLookup } from './lookup-finder.ts';
import { elemName, type OnnxValue } from './onnx-model.ts';
import { formulasOf, type SampledInputs } from './sampled-rows.ts';

/** Elements of one tensor; a model that needs more for a handful of rows cannot be proved here. */
const ELEMENT_COUNT_MAX = 2 ** 27;
/** Of an axis of unknown size that is not the batch. */
const OTHER_SIZE = 3;

export class InputSampler {
  readonly #inputs: readonly OnnxValue[];
  readonly #spec: SlotSpec;
  readonly #random: RandomNumbers;
  readonly #samples: KeySamples;
  /** Inputs that list the ids of bags, and those that say where bags begin. */
  readonly #bagIds = new Set<string>();
  readonly #offsets = new Map<string, { ids: string; includesLast: boolean }>();
  readonly #coins = new Map<string, number>();
  /** The batch that the model is fixed to, if it is. */
  readonly fixedBatch: number | undefined;

  constructor(
    inputs: readonly OnnxValue[],
    lookups: readonly CutLookup[],
    spec: SlotSpec,
    random: RandomNumbers,
  ) {
    this.#inputs = inputs;
    this.#spec = spec;
    this.#random = random;
    for (const { bags, ids } of lookups) {
      if (bags === undefined) continue;
      const [input] = ids.inputs;
      this.#bagIds.add(input!.name);
      this.#offsets.set(bags.offsets, { ids: input!.name, includesLast: bags.includesLast });
    }
    const fixed = lookups.flatMap(({ ids }) => ids.inputs.map(({ shape }) => shape?.[0]));
    this.fixedBatch = fixed.find((dim) => typeof dim === 'number');
    const { formulas, inputs: ids } = formulasOf(spec);
    this.#samples = new KeySamples(ids, spec.maps ?? [], formulas, random);
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
    const sizeOf = (axis: string): number => {
      if (axis === UNNAMED_BATCH) return this.#bagIds.size > 0 ? length : batch;
      // An axis without a name of its own is called after its input and its place there.
      const [, input = '', place = ''] = /^(.*)\0(\d+)$/s.exec(axis) ?? [];
      return fixedSize(axis) ?? sizes.get(axis) ?? dims.get(input)?.[Number(place)] ?? OTHER_SIZE;
    };
    for (const input of this.#inputs) {
      dims.set(input.name, this.#dims(input, batch, length, sizeOf));
    }
    const ids = this.#drawIds(dims);
    const tensors = this.#inputs.map((input): [string, OnnxTensor] => {
      const shape = dims.get(input.name)!;
      return [input.name, this.#tensor(input, shape, ids.get(input.name), length)];
    });
    return { tensors: new Map(tensors), sizeOf };
  }

  #dims(
    { name, shape }: OnnxValue,
    batch: number,
    length: number,
    sizeOf: (axis: string) => number,
  ): number[] {
    if (shape === undefined) throw unprovable(name, 'its shape is unknown');
    const offsets = this.#offsets.get(name);
    const dims = shape.map((dim, i) => {
      if (typeof dim === 'number') return dim;
      if (i === 0 && this.#bagIds.has(name)) return length;
      if (i === shape.length - 1 && offsets !== undefined) {
        return batch + Number(offsets.includesLast);
      }
      if (i === 0) return batch;
      return dim === undefined ? OTHER_SIZE : sizeOf(dim);
    });
    const count = dims.reduce((product, dim) => product * dim, 1);
    if (count > ELEMENT_COUNT_MAX) throw unprovable(name, `it takes ${count} elements`);
    return dims;
  }

  /** Ids of all inputs are drawn together, as many rows as the longest of them has. */
  #drawIds(dims: ReadonlyMap<string, readonly number[]>): Map<string, Float64Array> {
    const specs = this.#spec.ids ?? [];
    const counts = specs.map(({ input, columns }) =>
      Math.ceil(dims.get(input)!.reduce((product, dim) => product * dim, 1) / columns),
    );
    const drawn = this.#samples.draw(Math.max(0, ...counts));
    return new Map(specs.map(({ input }, i) => [input, drawn[i]!]));
  }

  #tensor(
    { name, elemType }: OnnxValue,
    dims: readonly number[],
    ids: Float64Array | undefined,
    length: number,
  ): OnnxTensor {
    const count = dims.reduce((product, dim) => product * dim, 1);
    const type = elemName(elemType);
    const values = ids?.subarray(0, count) ?? this.#offsetsOf(name, dims, length);
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
    throw unprovable(name, `its type is ${type}`);
  }

  /** 0 and 1 in turn, beginning with either. */
  #flip(name: string): number {
    const coin = 1 - (this.#coins.get(name) ?? Number(this.#random.next() < 0.5));
    this.#coins.set(name, coin);
    return coin;
  }

  /** Where the bags of each list begin: in order, the first at 0; about a third of them are empty. */
  #offsetsOf(name: string, dims: readonly number[], length: number): Float64Array | undefined {
    const offsets = this.#offsets.get(name);
    if (offsets === undefined) return undefined;
    const [lists, count] = dims.length === 1 ? [1, dims[0]!] : [dims[0]!, dims[1]!];
    const all = new Float64Array(lists * count);
    for (let list = 0; list < lists; list++) {
      const begins = all.subarray(list * count, (list + 1) * count);
      for (let i = 0; i < count; i++) begins[i] = Math.floor(this.#random.next() * (length + 1));
      for (let i = 2; i < count; i += 3) begins[i] = begins[i - 1]!;
      begins.sort();
      begins[0] = 0;
      if (offsets.includesLast) begins[count - 1] = length;
    }
    return all;
  }
}

function unprovable(name: string, why: string): CubeError {
  return new CubeError(
    'UNSUPPORTED',
    `not proved: no samples for input ${JSON.stringify(name)}: ${why}; --verify 0 accepts the model without proof`,
  );
}
