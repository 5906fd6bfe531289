/** How the reference interpreter calls what computes one operator. */
import type { CubeError } from '../../../lib/core/errors.ts';
import type { Op } from './program.ts';
import type { Tensor } from './tensor.ts';

/** One run of an operator. */
export interface Step {
  readonly op: Op;
  /** The one variable of a parameter. */
  input(parameter: string): Tensor;
  optional(parameter: string): Tensor | undefined;
  inputs(parameter: string): readonly Tensor[];
  /** Axes that the program declares for an output. */
  declaredRank(parameter: string): number;
  set(parameter: string, tensor: Tensor, position?: number): void;
  /** Counts multiplications, so that hostile sizes end. */
  spend(operations: number): void;
  /** What does not fit. @param why continues "the X operator that makes Y: " */
  error(why: string): CubeError;
  /** What may be right but is not computed here. @param why as above */
  unknown(why: string): CubeError;
}

export type Kernel = (step: Step) => void;
