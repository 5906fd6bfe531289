/** Attributes of operators, with the defaults of Paddle's operator definitions. */
import { CubeError } from '../../../lib/core/errors.ts';
import type { Op } from './program.ts';

export function numberOf({ attrs }: Op, name: string, otherwise: number): number {
  return attrs.get(name)?.numbers[0] ?? otherwise;
}

export function numbersOf({ attrs }: Op, name: string): readonly number[] {
  return attrs.get(name)?.numbers ?? [];
}

export function isSet(op: Op, name: string, otherwise = false): boolean {
  return numberOf(op, name, Number(otherwise)) !== 0;
}

export function textOf({ attrs }: Op, name: string, otherwise: string): string {
  return attrs.get(name)?.texts[0] ?? otherwise;
}

/** The one variable of a parameter; undefined when it is left out. */
export function inputOf({ inputs }: Op, parameter: string): string | undefined {
  return inputs.get(parameter)?.[0];
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
  if (sections.length === 0) {
    const num = numberOf(op, 'num', 0) || parts;
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
