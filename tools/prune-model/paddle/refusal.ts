/** Refusals: a program that is valid but holds something that is not understood is left alone, and the reason names it. */
import { CubeError } from '../../../lib/core/errors.ts';
import { describeOp, type Op } from './program.ts';

/** @param why continues a sentence about the operator */
export function refuse(op: Op, why: string): never {
  throw new CubeError('UNSUPPORTED', `cannot prune ${describeOp(op)}: ${why}`);
}

export function refuseProgram(why: string): never {
  throw new CubeError('UNSUPPORTED', `cannot prune this program: ${why}`);
}
