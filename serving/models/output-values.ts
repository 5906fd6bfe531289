/**
 * The outputs of two answers to the same tensors, as numbers to compare: elements as they are, and
 * for texts 0 and, where they differ, 1.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { bf16ToNumber, f16ToNumber } from '../../lib/core/half-floats.ts';
import { type NamedTensor, viewElements } from '../../lib/core/tensor.ts';

/** An output of an answer; 64-bit integers are rounded. */
export interface OutputValues {
  readonly name: string;
  readonly values: ArrayLike<number> | readonly string[];
}

/** Values of one answer that are compared: a report needs no more. */
const VALUES_MAX = 65_536;

export function toOutputValues({ name, dataType, data }: NamedTensor): OutputValues {
  if (dataType === 'BYTES' || !(data instanceof Uint8Array)) {
    return { name, values: data as readonly string[] };
  }
  const elements = viewElements(dataType, data);
  if (dataType === 'FP16' || dataType === 'BF16') {
    const toNumber = dataType === 'FP16' ? f16ToNumber : bf16ToNumber;
    return { name, values: Float64Array.from(elements as Uint16Array, toNumber) };
  }
  const isWide = elements instanceof BigInt64Array || elements instanceof BigUint64Array;
  return { name, values: isWide ? Float64Array.from(elements, Number) : elements };
}

/**
 * Pairs the values of the outputs by name, at most VALUES_MAX.
 * @returns the values of both answers, equal in number
 * @throws CubeError UNSUPPORTED when the second answer lacks an output or has another number of
 *   elements
 */
export function pairOutputs(
  first: readonly OutputValues[],
  second: readonly OutputValues[],
): readonly [Float64Array, Float64Array] {
  const total = first.reduce((sum, { values }) => sum + values.length, 0);
  const count = Math.min(total, VALUES_MAX);
  const pair = [new Float64Array(count), new Float64Array(count)] as const;
  let at = 0;
  for (const { name, values } of first) {
    const other = second.find((output) => output.name === name)?.values;
    if (other?.length !== values.length) {
      const got = other === undefined ? 'does not have it' : `has ${other.length}`;
      throw new CubeError(
        'UNSUPPORTED',
        `output ${name} has ${values.length} elements, and the shadow ${got}`,
      );
    }
    for (let i = 0; i < values.length && at < count; i++, at++) {
      const [one, two] = [values[i], other[i]];
      const isText = typeof one === 'string' || typeof two === 'string';
      pair[0][at] = isText ? 0 : Number(one);
      pair[1][at] = isText ? Number(one !== two) : Number(two);
    }
  }
  return pair;
}
