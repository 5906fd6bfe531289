/**
 * Triton's classification extension: instead of the values of an output, the highest of them as
 * strings `value:index` or `value:index:label`.
 */
import { CubeError } from '../../lib/core/errors.ts';
import {
  countElements,
  type ElementArray,
  type NamedTensor,
  viewElements,
} from '../../lib/core/tensor.ts';

/** The values of one row are ranked; further ones would make answers of megabytes. */
const CLASSES_MAX = 10_000;

/**
 * @param count the number of classes of each row
 * @param isBatched the first dimension is the batch; otherwise all values are one row
 * @throws CubeError INVALID_ARGUMENT for an output whose values have no order
 */
export function toClasses(
  tensor: NamedTensor,
  count: number,
  isBatched: boolean,
  labels: readonly string[] | undefined,
): NamedTensor {
  const { name, shape } = tensor;
  const values = readNumbers(tensor);
  const isFloat = tensor.dataType.startsWith('FP');
  const rows = isBatched ? (shape[0] ?? 1) : 1;
  const width = countElements(isBatched ? shape.slice(1) : shape);
  const kept = Math.min(count, width, CLASSES_MAX);
  const data: string[] = [];
  for (let row = 0; row < rows; row++) {
    const first = row * width;
    const order = Array.from({ length: width }, (_, i) => i).sort((a, b) => {
      return compare(values[first + b] ?? 0, values[first + a] ?? 0) || a - b;
    });
    for (const index of order.slice(0, kept)) {
      const label = labels?.[index];
      const value = values[first + index] ?? 0;
      const text = `${isFloat ? Number(value).toFixed(6) : String(value)}:${index}`;
      data.push(label === undefined ? text : `${text}:${label}`);
    }
  }
  return { name, dataType: 'BYTES', shape: isBatched ? [rows, kept] : [kept], data };
}

/** NaN ranks last. */
function compare(a: number | bigint, b: number | bigint): number {
  if (Number.isNaN(a)) return Number.isNaN(b) ? 0 : -1;
  if (Number.isNaN(b)) return 1;
  return a < b ? -1 : a > b ? 1 : 0;
}

function readNumbers({ name, dataType, data }: NamedTensor): ElementArray {
  const isNumber = /^(U?INT|FP(32|64))/.test(dataType);
  if (isNumber && dataType !== 'BYTES' && data instanceof Uint8Array) {
    return viewElements(dataType, data);
  }
  throw new CubeError(
    'INVALID_ARGUMENT',
    `output ${JSON.stringify(name)} is ${dataType}, which has no classes; leave classification out`,
  );
}
