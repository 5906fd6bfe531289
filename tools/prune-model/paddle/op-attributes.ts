/** Attributes of operators, with the defaults of Paddle's operator definitions. */
import { CubeError } from '../../../lib/core/errors.ts';
import { type Attribute, type Op, refuseOperator } from './program.ts';

/**
 * @throws CubeError UNSUPPORTED when the value is a variable, for which the default would be wrong
 */
function getAttribute(op: Op, name: string): Attribute | undefined {
  const attribute = op.attrs.get(name);
  if (attribute?.isOther !== true) return attribute;
  refuseOperator(op, `its attribute ${name} is a variable; only plain values are supported`);
}

export function getNumber(op: Op, name: string, defaultValue: number): number {
  return getAttribute(op, name)?.numbers[0] ?? defaultValue;
}

export function getNumbers(op: Op, name: string): readonly number[] {
  return getAttribute(op, name)?.numbers ?? [];
}

export function isAttributeSet(op: Op, name: string, defaultValue = false): boolean {
  return getNumber(op, name, Number(defaultValue)) !== 0;
}

export function getText(op: Op, name: string, defaultValue: string): string {
  return getAttribute(op, name)?.texts[0] ?? defaultValue;
}

/** The first variable of a parameter; undefined when the parameter is absent. */
export function getInputName({ inputs }: Op, parameter: string): string | undefined {
  return inputs.get(parameter)?.[0];
}

/** Parameters that the supported operators read, or that change nothing in inference. */
const READ_PARAMETERS = new Set([
  'X',
  'Y',
  'Input',
  'W',
  'Bias',
  'Scale',
  'Mean',
  'Variance',
  'Seed',
  'MomentumTensor',
]);

/** A parameter that replaces an attribute (`ShapeTensor`, `Min`, ...); none is supported. */
export function findUnreadParameter({ inputs }: Op): string | undefined {
  return [...inputs].find(([name, { length }]) => length > 0 && !READ_PARAMETERS.has(name))?.[0];
}

/** Attributes that fuse a second operator into one; none is supported. */
const CHANGING_ATTRIBUTES = new Set([
  'fuse_with_relu',
  'fuse_relu',
  'with_relu',
  'trainable_statistics',
  'padding_weights',
  'fused_reshape_X',
  'fused_reshape_Y',
  'fused_reshape_Out',
  'fused_transpose_X',
  'fused_transpose_Y',
  'fused_transpose_Out',
  'fuse_activation',
  'fused_activation',
]);

/** A set attribute that changes what the operator computes. */
export function findChangingAttribute({ attrs }: Op): string | undefined {
  for (const [name, { numbers, texts }] of attrs) {
    const isSet = numbers.some((value) => value !== 0) || texts.some((text) => text !== '');
    if (CHANGING_ATTRIBUTES.has(name) && isSet) return name;
    if (name === 'head_number' && (numbers[0] ?? 1) > 1) return name;
  }
  return undefined;
}

/**
 * Counts a negative axis from the end. @throws CubeError CORRUPT when the tensor has no such axis
 */
export function normalizeAxis(axis: number, rank: number): number {
  const from = axis < 0 ? axis + rank : axis;
  if (from >= 0 && from < rank) return from;
  throw new CubeError(
    'CORRUPT',
    `the program cannot run: a tensor of ${rank} axes has no axis ${axis}`,
  );
}

/** Sizes of the parts of a split. @returns undefined when they do not fill the axis */
export function computeSplitSizes(op: Op, size: number, parts: number): number[] | undefined {
  const sections = getNumbers(op, 'sections');
  const given = getNumber(op, 'num', 0);
  if (given > 0 || sections.length === 0) {
    const num = given || parts;
    return num === parts && size % num === 0 ? new Array<number>(num).fill(size / num) : undefined;
  }
  const known = sections.reduce((sum, section) => sum + Math.max(section, 0), 0);
  const sizes = sections.map((section) => (section === -1 ? size - known : section));
  const isWhole = sizes.reduce((sum, part) => sum + part, 0) === size;
  return isWhole && sizes.length === parts && sizes.every((part) => part >= 0) ? sizes : undefined;
}

/** @returns start and end of a slice along an axis */
export function computeSliceRange(start: number, end: number, size: number): [number, number] {
  const clamp = (at: number): number => Math.min(Math.max(at < 0 ? at + size : at, 0), size);
  const from = clamp(start);
  return [from, Math.max(from, clamp(end))];
}
