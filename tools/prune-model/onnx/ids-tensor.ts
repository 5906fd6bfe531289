/**
 * A tensor of ids as it is known before a run: which axes have a known size, and how each element
 * of one row is computed. Axes of unknown size (the batch, the length of a sequence) are the same
 * for every element and only keep their position.
 */

import { requireDefined } from '../../../lib/core/errors.ts';
import type { KeyDtype, KeyExpression, KeyOperator } from '../../../lib/core/key-expression.ts';
import { evaluateOperator } from '../../../lib/core/key-transform.ts';
import type { Axis, Dim } from '../cut/cut-model.ts';

export type { Axis };

/** An unknown size as a value: an element of the output of Shape. */
export interface DimExpression {
  readonly op: 'dim';
  readonly axis: string;
}

export type IdsElement = KeyExpression | DimExpression;
export type IdsDtype = KeyDtype | 'float32' | 'float64';

export interface IdsTensor {
  readonly dtype: IdsDtype;
  readonly axes: readonly Axis[];
  /** Row-major over the axes of known size. */
  readonly elements: readonly IdsElement[];
}

/** The result of an operator cannot be known; the message is a clause about the ids. */
export class UnsupportedIdsError extends Error {}

/** Limits on the elements of one tensor and of all tensors of a model. */
const ELEMENT_COUNT_MAX = 100_000;
const ELEMENT_TOTAL_MAX = 10_000_000;
/** Limits on one expression, written out: slots.json repeats shared parts. */
const EXPRESSION_SIZE_MAX = 10_000;
const EXPRESSION_DEPTH_MAX = 400;
/** Limit on all expressions of a model. */
const EXPRESSION_TOTAL_MAX = 500_000;

/** The batch of inputs whose first axis has neither size nor name. */
export const UNNAMED_BATCH = '\0batch';

/** The name of a batch axis of fixed size. It never equals the name of an input. */
export function nameFixedBatch(size: number | ''): string {
  return `${UNNAMED_BATCH}\0${size}`;
}

/** The axes of an input. The first one is the batch, also when the model fixes its size. */
export function getInputAxes(name: string, shape: readonly Dim[]): Axis[] {
  return shape.map((dim, i) => {
    if (i === 0) return typeof dim === 'number' ? nameFixedBatch(dim) : (dim ?? UNNAMED_BATCH);
    const isOther = typeof dim === 'string' && shape.indexOf(dim) === i;
    return typeof dim === 'number' || isOther ? dim : `${name}\0${i}`;
  });
}

/** The size that nameFixedBatch put into a name; undefined for other axes. */
export function getFixedBatchSize(axis: string): number | undefined {
  const size = axis.startsWith(nameFixedBatch(''))
    ? axis.slice(nameFixedBatch('').length)
    : undefined;
  return size === undefined ? undefined : Number(size);
}

function getKnownSize(axis: Axis): number {
  return typeof axis === 'number' ? axis : 1;
}

export function countKnownElements(axes: readonly Axis[]): number {
  return axes.reduce<number>((product, axis) => product * getKnownSize(axis), 1);
}

export function describeAxes(axes: readonly Axis[]): string {
  const text = axes.map((axis) => (typeof axis === 'number' ? axis : axis.replace(/^.*\0/, '')));
  return `[${text.join(', ')}]`;
}

/** Builds expressions: equal ones are one object, constants are folded, work is bounded. */
export class IdsBuilder {
  readonly #shared = new Map<string, IdsElement>();
  readonly #numbers = new Map<IdsElement, number>();
  readonly #sizes = new Map<IdsElement, { readonly size: number; readonly depth: number }>();
  #elementCount = 0;
  #operations = 0;

  tensor(dtype: IdsDtype, axes: readonly Axis[], at: (i: number) => IdsElement): IdsTensor {
    const count = countKnownElements(axes);
    this.#elementCount += count;
    if (count > ELEMENT_COUNT_MAX || this.#elementCount > ELEMENT_TOTAL_MAX) {
      throw new UnsupportedIdsError(`a row has more than ${ELEMENT_COUNT_MAX} ids`);
    }
    return { dtype, axes, elements: Array.from({ length: count }, (_, i) => at(i)) };
  }

  int(value: bigint): IdsElement {
    return this.#share(`int ${value}`, { op: 'int', value });
  }

  column(input: string, column: number): IdsElement {
    return this.#share(`column ${column} ${input}`, { op: 'column', input, column });
  }

  dim(axis: Axis): IdsElement {
    if (typeof axis === 'number') return this.int(BigInt(axis));
    return this.#share(`dim ${axis}`, { op: 'dim', axis });
  }

  map(map: string, index: IdsElement): IdsElement {
    const of: [KeyExpression] = [requireKeyExpression(index)];
    return this.#share(`map ${this.#getNumber(index)} ${map}`, { op: 'map', map, of });
  }

  operate(op: KeyOperator, dtype: KeyDtype, operands: readonly IdsElement[]): IdsElement {
    const of = operands.map(requireKeyExpression);
    if (of.every((operand) => operand.op === 'int')) {
      const value = evaluateOperator(
        op,
        dtype,
        of.map((operand) => operand.value),
      );
      if (value !== undefined) return this.int(value);
    }
    const numbers = of.map((operand) => this.#getNumber(operand));
    return this.#share(`${op} ${dtype} ${numbers.join(' ')}`, { op, dtype, of });
  }

  /** Counts the operations of keys. @throws UnsupportedIdsError above the limit */
  countOperations(keys: readonly IdsElement[]): void {
    for (const key of keys) this.#operations += (this.#sizes.get(key)?.size ?? 1) - 1;
    if (this.#operations > EXPRESSION_TOTAL_MAX) {
      throw new UnsupportedIdsError(
        `the ids of the model take more than ${EXPRESSION_TOTAL_MAX} operations to compute`,
      );
    }
  }

  #measure(element: IdsElement, of: readonly IdsElement[]): void {
    const parts = of.map((part) => this.#sizes.get(part) ?? { size: 1, depth: 0 });
    const size = parts.reduce((sum, part) => sum + part.size, 1);
    const depth = 1 + Math.max(...parts.map((part) => part.depth));
    if (size > EXPRESSION_SIZE_MAX || depth > EXPRESSION_DEPTH_MAX) {
      throw new UnsupportedIdsError(
        `one id takes ${size} operations, nested ${depth} deep; ` +
          `the limits are ${EXPRESSION_SIZE_MAX} and ${EXPRESSION_DEPTH_MAX}`,
      );
    }
    this.#sizes.set(element, { size, depth });
  }

  #getNumber(element: IdsElement): number {
    return requireDefined(this.#numbers.get(element), 'the number of an element');
  }

  #share(key: string, element: IdsElement): IdsElement {
    const same = this.#shared.get(key);
    if (same !== undefined) return same;
    if ('of' in element) this.#measure(element, element.of);
    this.#shared.set(key, element);
    this.#numbers.set(element, this.#numbers.size);
    return element;
  }
}

/** An element that can be computed from ids. */
export function requireKeyExpression(element: IdsElement): KeyExpression {
  if (element.op !== 'dim') return element;
  throw new UnsupportedIdsError(
    'the ids are computed from the size of a tensor, which is not supported',
  );
}

/** The values of a tensor whose elements are all constant. */
export function getConstantValues(tensor: IdsTensor | undefined): bigint[] | undefined {
  const values: bigint[] = [];
  for (const element of tensor?.elements ?? []) {
    if (element.op !== 'int') return undefined;
    values.push(element.value);
  }
  const isStatic = tensor?.axes.every((axis) => typeof axis === 'number');
  return isStatic === true ? values : undefined;
}

/**
 * The tensor with other axes: its element at `coordinates` is the old one at `from(coordinates)`.
 */
export function rearrange(
  builder: IdsBuilder,
  tensor: IdsTensor,
  axes: readonly Axis[],
  from: (coordinates: readonly number[]) => readonly number[],
): IdsTensor {
  const coordinates = new Array<number>(axes.length).fill(0);
  return builder.tensor(tensor.dtype, axes, (i) => {
    let rest = i;
    for (let axis = axes.length - 1; axis >= 0; axis--) {
      const size = getKnownSize(axes[axis]!);
      coordinates[axis] = rest % size;
      rest = Math.floor(rest / size);
    }
    let at = 0;
    from(coordinates).forEach((coordinate, axis) => {
      at = at * getKnownSize(tensor.axes[axis]!) + coordinate;
    });
    return tensor.elements[at]!;
  });
}

/** The common shape of tensors, by NumPy's broadcasting rules. */
export function broadcastAxes(shapes: readonly (readonly Axis[])[]): Axis[] {
  const rank = Math.max(...shapes.map((axes) => axes.length));
  return Array.from({ length: rank }, (_, i) => {
    let result: Axis = 1;
    for (const axes of shapes) {
      const axis = axes[i - rank + axes.length] ?? 1;
      if (axis === 1 || axis === result) continue;
      if (result !== 1) {
        throw new UnsupportedIdsError(
          `it combines tensors of ${shapes.map(describeAxes).join(' and ')}, whose sizes may ` +
            'differ',
        );
      }
      result = axis;
    }
    return result;
  });
}

export function broadcastTo(
  builder: IdsBuilder,
  tensor: IdsTensor,
  axes: readonly Axis[],
): IdsTensor {
  const skipped = axes.length - tensor.axes.length;
  return rearrange(builder, tensor, axes, (coordinates) =>
    tensor.axes.map((axis, i) => (axis === 1 ? 0 : coordinates[i + skipped]!)),
  );
}
