/**
 * Rows as the tensors that serving takes: `categorical` or `keys`, and unscaled `dense`; one tensor
 * for each slot where slots are pooled, since rows may then have different numbers of values
 * (docs/wire/serving.md).
 */

import { CubeError, requireDefined } from '../../../lib/core/errors.ts';
import type { FeatureSpec } from '../../../lib/core/slots.ts';
import type { FileColumns } from '../rows/row-columns.ts';

export interface FeatureTensor {
  readonly name: string;
  readonly shape: readonly number[];
  /** Strings, keys, or raw dense values; NaN is a missing value. */
  readonly values: readonly string[] | BigUint64Array | Float64Array;
}

export class FeatureTensors {
  readonly #file: FileColumns;
  readonly #spec: FeatureSpec;

  /** @throws CubeError UNSUPPORTED for rows that tensors cannot carry */
  constructor(file: FileColumns, spec: FeatureSpec) {
    if ('keys' in file.columns && (file.denseNum > 0 || file.columns.ends !== undefined)) {
      throw new CubeError(
        'UNSUPPORTED',
        'rows of keys with scaled dense features or several keys in a slot ' +
          'need --protocol ctr, ctr-grpc or paddle',
      );
    }
    this.#file = file;
    this.#spec = spec;
  }

  /** The tensors of rows start … end. */
  sliceRows(start: number, end: number): FeatureTensor[] {
    const { columns, slotNum, denseNum } = this.#file;
    const shape = [end - start, slotNum];
    if ('keys' in columns) {
      const words = columns.keys.slice(2 * start * slotNum, 2 * end * slotNum);
      return [{ name: 'keys', shape, values: new BigUint64Array(words.buffer) }];
    }
    const dense = requireDefined(columns.rawDense, 'unscaled dense values').slice(
      start * denseNum,
      end * denseNum,
    );
    const denseTensor = { name: 'dense', shape: [end - start, denseNum], values: dense };
    const slots =
      columns.ends === undefined
        ? [
            {
              name: 'categorical',
              shape,
              values: columns.features.slice(start * slotNum, end * slotNum),
            },
          ]
        : buildSlotTensors(columns.features, columns.ends, this.#spec, start, end);
    return denseNum === 0 ? slots : [...slots, denseTensor];
  }
}

/** A tensor for each slot, padded with empty strings to the longest row. */
function buildSlotTensors(
  features: readonly string[],
  ends: Uint32Array,
  spec: FeatureSpec,
  start: number,
  end: number,
): FeatureTensor[] {
  const { slots } = spec;
  return slots.map(({ name }, slot) => {
    const bags = Array.from({ length: end - start }, (_, i) =>
      sliceBag(features, ends, (start + i) * slots.length + slot),
    );
    const width = Math.max(1, ...bags.map((bag) => bag.length));
    const values = bags.flatMap((bag) => [
      ...bag,
      ...new Array<string>(width - bag.length).fill(''),
    ]);
    return { name, shape: [end - start, width], values };
  });
}

function sliceBag(features: readonly string[], ends: Uint32Array, i: number): readonly string[] {
  return features.slice(i === 0 ? 0 : ends[i - 1], ends[i]);
}
