/**
 * Rows as the tensors that a model as presented takes: `categorical` or `keys`, and `dense`, unscaled; slots by their names where one
 * of them pools, since only then rows may have different numbers of values (docs/wire/serving.md).
 */
import { CubeError } from '../../../lib/core/errors.ts';
import type { RowColumns } from '../../../lib/core/features.ts';
import type { FeatureSpec } from '../../../lib/core/slots.ts';
import type { FileColumns } from '../rows/row-columns.ts';

export interface FeatureTensor {
  readonly name: string;
  readonly shape: readonly number[];
  /** Strings, keys, or raw dense values of which NaN is a missing one. */
  readonly values: readonly string[] | BigUint64Array | Float64Array;
}

export class FeatureTensors {
  readonly #file: FileColumns;
  readonly #spec: FeatureSpec | undefined;

  /** @throws CubeError UNSUPPORTED for rows that tensors cannot carry */
  constructor(file: FileColumns, spec: FeatureSpec | undefined) {
    if ('keys' in file.columns && (file.denseNum > 0 || file.columns.ends !== undefined)) {
      const what = 'rows of keys have scaled dense features, or several keys a slot';
      throw new CubeError('UNSUPPORTED', `${what}: only ctr, ctr-grpc and paddle take them`);
    }
    this.#file = file;
    this.#spec = spec;
  }

  /** The tensors of rows start … end. */
  of(start: number, end: number): FeatureTensor[] {
    const { columns, slotNum, denseNum } = this.#file;
    const shape = [end - start, slotNum];
    if ('keys' in columns) {
      const words = columns.keys.slice(2 * start * slotNum, 2 * end * slotNum);
      return [{ name: 'keys', shape, values: new BigUint64Array(words.buffer) }];
    }
    const dense = columns.rawDense!.slice(start * denseNum, end * denseNum);
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
        : slotTensors(columns, this.#spec!, start, end);
    return denseNum === 0 ? slots : [...slots, denseTensor];
  }
}

/** A tensor for each slot, as wide as the most values of a row; empty strings fill up. */
function slotTensors(
  columns: RowColumns,
  { slots }: FeatureSpec,
  start: number,
  end: number,
): FeatureTensor[] {
  return slots.map(({ name }, slot) => {
    const bags = Array.from({ length: end - start }, (_, i) =>
      bagOf(columns, (start + i) * slots.length + slot),
    );
    const width = Math.max(1, ...bags.map((bag) => bag.length));
    const values = bags.flatMap((bag) => [
      ...bag,
      ...new Array<string>(width - bag.length).fill(''),
    ]);
    return { name, shape: [end - start, width], values };
  });
}

function bagOf({ features, ends }: RowColumns, i: number): readonly string[] {
  return features.slice(i === 0 ? 0 : ends![i - 1], ends![i]);
}
