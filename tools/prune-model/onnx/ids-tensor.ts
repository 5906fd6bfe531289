/**
 * A tensor of ids as far as it is known before a run: which axes have a known size, and for each element of one row how it is
 * computed. Axes of unknown size (the batch, the length of a sequence) are the same for every element and only keep their place.
 */
import type { KeyDtype, KeyExpression, KeyOperator } from '../../../lib/core/key-expression.ts';
import { evaluateOperator } from '../../../lib/core/key-transform.ts';
import type { Dim } from '../cut-model.ts';

/** A known size, or the name of an unknown one: equal names are equal sizes. */
export type Axis = number | string;

/** A size of unknown value: an element of what Shape gives. */
export interface DimExpression {
  readonly op: 'dim';
  readonly axis: string;
}

export type Element = KeyExpression | DimExpression;
export type IdsDtype = KeyDtype | 'float32' | 'float64';

export interface IdsTensor {
  readonly dtype: IdsDtype;
  readonly axes: readonly Axis[];
  /** Row-major over the axes of known size. */
  readonly elements: readonly Element[];
}

/** What an operator says when its result cannot be known; continues "on the way of ids …, ". */
export class NotUnderstood extends Error {}

/** Elements of one tensor, and of all tensors of a model together. */
const ELEMENT_COUNT_MAX = 100_000;
const ELEMENT_TOTAL_MAX = 10_000_000;
/** Of one expression, written out: slots.json repeats what is shared. */
const EXPRESSION_SIZE_MAX = 10_000;
const EXPRESSION_DEPTH_MAX = 400;
/** Of all expressions of a model. */
const EXPRESSION_TOTAL_MAX = 500_000;

/** Inputs whose first axis has neither size nor name have the same batch. */
export const UNNAMED_BATCH = '\0batch';

/** The name of an axis that is a batch of fixed size. No input is called like it. */
export function fixedAxis(size: number | ''): string {
  return `${UNNAMED_BATCH}\0${size}`;
}

/** The axes of an input: the first is the batch, also where the model fixes its size. */
export function inputAxes(name: string, shape: readonly Dim[]): Axis[] {
  return shape.map((dim, i) => {
    if (i === 0) return typeof dim === 'number' ? fixedAxis(dim) : (dim ?? UNNAMED_BATCH);
    const isOther = typeof dim === 'string' && shape.indexOf(dim) === i;
    return typeof dim === 'number' || isOther ? dim : `${name}\0${i}`;
  });
}

/** The size in the name of a fixed batch; undefined for other axes. */
export function fixedSize(axis: string): number | undefined {
  const size = axis.startsWith(fixedAxis('')) ? axis.slice(fixedAxis('').length) : undefined;
  return size === undefined ? undefined : Number(size);
}

function sizeOf(axis: Axis): number {
  return typeof axis === 'number' ? axis : 1;
}

export function productOf(axes: readonly Axis[]): number {
  return axes.reduce<number>((product, axis) => product * sizeOf(axis), 1);
}

export function describeAxes(axes: readonly Axis[]): string {
  const text = axes.map((axis) => (typeof axis === 'number' ? axis : axis.replace(/^.*\0/, '')));
  return `[${text.join(', ')}]`;
}

/** Makes expressions and tensors: equal expressions are one object, constants are folded, and the work is bounded. */
export class IdsBuilder {
  readonly #known = new Map<string, Element>();
  readonly #numbers = new Map<Element, number>();
  readonly #sizes = new Map<Element, { readonly size: number; readonly depth: number }>();
  #elements = 0;
  #written = 0;

  tensor(dtype: IdsDtype, axes: readonly Axis[], at: (i: number) => Element): IdsTensor {
    const count = productOf(axes);
    this.#elements += count;
    if (count > ELEMENT_COUNT_MAX || this.#elements > ELEMENT_TOTAL_MAX) {
      throw new NotUnderstood(`there are more than ${ELEMENT_COUNT_MAX} of them in a row`);
    }
    return { dtype, axes, elements: Array.from({ length: count }, (_, i) => at(i)) };
  }

  int(value: bigint): Element {
    return this.#shared(`int ${value}`, { op: 'int', value });
  }

  column(input: string, column: number): Element {
    return this.#shared(`column ${column} ${input}`, { op: 'column', input, column });
  }

  dim(axis: Axis): Element {
    if (typeof axis === 'number') return this.int(BigInt(axis));
    return this.#shared(`dim ${axis}`, { op: 'dim', axis });
  }

  map(map: string, index: Element): Element {
    const of: [KeyExpression] = [known(index)];
    return this.#shared(`map ${this.#number(index)} ${map}`, { op: 'map', map, of });
  }

  operate(op: KeyOperator, dtype: KeyDtype, operands: readonly Element[]): Element {
    const of = operands.map(known);
    if (of.every((operand) => operand.op === 'int')) {
      const value = evaluateOperator(
        op,
        dtype,
        of.map((operand) => operand.value),
      );
      if (value !== undefined) return this.int(value);
    }
    const numbers = of.map((operand) => this.#number(operand));
    return this.#shared(`${op} ${dtype} ${numbers.join(' ')}`, { op, dtype, of });
  }

  /** Counts the keys of a lookup that are more than columns. @throws NotUnderstood when a model has too many */
  write(keys: readonly Element[]): void {
    for (const key of keys) this.#written += (this.#sizes.get(key)?.size ?? 1) - 1;
    if (this.#written > EXPRESSION_TOTAL_MAX) {
      throw new NotUnderstood(`they take more than ${EXPRESSION_TOTAL_MAX} operations to compute`);
    }
  }

  #measure(element: Element, of: readonly Element[]): void {
    const parts = of.map((part) => this.#sizes.get(part) ?? { size: 1, depth: 0 });
    const size = parts.reduce((sum, part) => sum + part.size, 1);
    const depth = 1 + Math.max(...parts.map((part) => part.depth));
    if (size > EXPRESSION_SIZE_MAX || depth > EXPRESSION_DEPTH_MAX) {
      throw new NotUnderstood(`one of them takes ${size} operations, ${depth} after each other`);
    }
    this.#sizes.set(element, { size, depth });
  }

  #number(element: Element): number {
    return this.#numbers.get(element)!;
  }

  #shared(key: string, element: Element): Element {
    const same = this.#known.get(key);
    if (same !== undefined) return same;
    if ('of' in element) this.#measure(element, element.of);
    this.#known.set(key, element);
    this.#numbers.set(element, this.#numbers.size);
    return element;
  }
}

/** An element that can be computed from ids. */
export function known(element: Element): KeyExpression {
  if (element.op !== 'dim') return element;
  throw new NotUnderstood('they are computed from the size of a tensor');
}

/** Its values when all are constants. */
export function constantValues(tensor: IdsTensor | undefined): bigint[] | undefined {
  const values: bigint[] = [];
  for (const element of tensor?.elements ?? []) {
    if (element.op !== 'int') return undefined;
    values.push(element.value);
  }
  const isStatic = tensor?.axes.every((axis) => typeof axis === 'number');
  return isStatic === true ? values : undefined;
}

/** The tensor with other axes, in which the element at `coordinates` is that of `from(coordinates)`. */
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
      const size = sizeOf(axes[axis]!);
      coordinates[axis] = rest % size;
      rest = Math.floor(rest / size);
    }
    let at = 0;
    from(coordinates).forEach((coordinate, axis) => {
      at = at * sizeOf(tensor.axes[axis]!) + coordinate;
    });
    return tensor.elements[at]!;
  });
}

/** The shape that tensors of these shapes have together, as NumPy broadcasts. */
export function broadcastAxes(shapes: readonly (readonly Axis[])[]): Axis[] {
  const rank = Math.max(...shapes.map((axes) => axes.length));
  return Array.from({ length: rank }, (_, i) => {
    let result: Axis = 1;
    for (const axes of shapes) {
      const axis = axes[i - rank + axes.length] ?? 1;
      if (axis === 1 || axis === result) continue;
      if (result !== 1) {
        throw new NotUnderstood(
          `tensors of ${shapes.map(describeAxes).join(' and ')} meet, whose sizes may differ`,
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
