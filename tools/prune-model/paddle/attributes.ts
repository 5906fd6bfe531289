/** Attributes of operators, with the defaults of Paddle's operator definitions. */
import { CubeError } from '../../../lib/core/errors.ts';
import { type Attribute, describeOp, type Op } from './program.ts';

/** @throws CubeError UNSUPPORTED when its value is a variable: the default would be taken for it */
function attributeOf(op: Op, name: string): Attribute | undefined {
  const attribute = op.attrs.get(name);
  if (attribute?.isOther !== true) return attribute;
  throw new CubeError(
    'UNSUPPORTED',
    `cannot prune ${describeOp(op)}: its attribute ${name} is not a plain value`,
  );
}

export function numberOf(op: Op, name: string, otherwise: number): number {
  return attributeOf(op, name)?.numbers[0] ?? otherwise;
}

export function numbersOf(op: Op, name: string): readonly number[] {
  return attributeOf(op, name)?.numbers ?? [];
}

export function isSet(op: Op, name: string, otherwise = false): boolean {
  return numberOf(op, name, Number(otherwise)) !== 0;
}

export function textOf(op: Op, name: string, otherwise: string): string {
  return attributeOf(op, name)?.texts[0] ?? otherwise;
}

/** The one variable of a parameter; undefined when it is left out. */
export function inputOf({ inputs }: Op, parameter: string): string | undefined {
  return inputs.get(parameter)?.[0];
}

/** What the known operators read; of some it changes nothing when a model answers. */
const READ_PARAMETERS = new Set([
  ...['X', 'Y', 'Input', 'W', 'Bias', 'Scale', 'Mean', 'Variance'],
  ...['Seed', 'MomentumTensor'],
]);

/** A parameter that stands in the place of an attribute (`ShapeTensor`, `ScaleTensor`, `Min`, ...): none of them is understood. */
export function unreadParameter({ inputs }: Op): string | undefined {
  return [...inputs].find(([name, { length }]) => length > 0 && !READ_PARAMETERS.has(name))?.[0];
}

/** Attributes that put a second operator into one, or another number of heads; what they say is not computed. */
const CHANGING = new Set([
  ...['fuse_with_relu', 'fuse_relu', 'with_relu', 'trainable_statistics', 'padding_weights'],
  ...['fused_reshape_X', 'fused_reshape_Y', 'fused_reshape_Out', 'fused_transpose_X'],
  ...['fused_transpose_Y', 'fused_transpose_Out', 'fuse_activation', 'fused_activation'],
]);

/** An attribute that makes more of an operator than its name says. */
export function changingAttribute({ attrs }: Op): string | undefined {
  for (const [name, { numbers, texts }] of attrs) {
    const isSet = numbers.some((value) => value !== 0) || texts.some((text) => text !== '');
    if (CHANGING.has(name) && isSet) return name;
    if (name === 'head_number' && (numbers[0] ?? 1) > 1) return name;
  }
  return undefined;
}

/** Counted from the end when negative. @throws CubeError CORRUPT when a tensor of so many axes has no such one */
export function axisOf(axis: number, rank: number): number {
  const from = axis < 0 ? axis + rank : axis;
  if (from >= 0 && from < rank) return from;
  throw new CubeError(
    'CORRUPT',
    `the program cannot run: axis ${axis} of a tensor of ${rank} axes`,
  );
}

/** Sizes of the parts of a split. @returns undefined when they do not fill the axis */
export function splitSizes(op: Op, size: number, parts: number): number[] | undefined {
  const sections = numbersOf(op, 'sections');
  const given = numberOf(op, 'num', 0);
  if (given > 0 || sections.length === 0) {
    const num = given || parts;
    return num === parts && size % num === 0 ? new Array<number>(num).fill(size / num) : undefined;
  }
  const known = sections.reduce((sum, section) => sum + Math.max(section, 0), 0);
  const sizes = sections.map((section) => (section === -1 ? size - known : section));
  const isWhole = sizes.reduce((sum, part) => sum + part, 0) === size;
  return isWhole && sizes.length === parts && sizes.every((part) => part >= 0) ? sizes : undefined;
}

/** From where to where a slice goes along an axis. */
export function sliceRange(start: number, end: number, size: number): [number, number] {
  const clamp = (at: number): number => Math.min(Math.max(at < 0 ? at + size : at, 0), size);
  const from = clamp(start);
  return [from, Math.max(from, clamp(end))];
}
