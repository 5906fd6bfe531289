/**
 * A reference interpreter of Paddle programs, to compare a full program with its pruned form. It
 * supports exactly the operators that `--to onnx` converts. It is written to be right, not fast.
 */

import { CubeError } from '../../../lib/core/errors.ts';
import { notVerifiedError } from '../cut/refusals.ts';
import { ARITHMETIC_KERNELS } from './kernels-arithmetic.ts';
import { LAYOUT_KERNELS } from './kernels-layout.ts';
import { REDUCTION_KERNELS } from './kernels-reduction.ts';
import { findChangingAttribute, findUnreadParameter } from './op-attributes.ts';
import { describeOp, type Op } from './program.ts';
import type { ProgramGraph } from './program-graph.ts';
import type { Kernel, KernelCall, Tensor } from './tensor.ts';

const KERNELS: Readonly<Record<string, Kernel>> = {
  ...ARITHMETIC_KERNELS,
  ...LAYOUT_KERNELS,
  ...REDUCTION_KERNELS,
};

/** Values that come from the files of the model. */
export interface InterpreterValues {
  parameter(name: string): Tensor;
  /** Rows for a lookup operator; undefined for other operators. */
  lookUp(op: Op, position: number, ids: Tensor): Tensor | undefined;
}

const OPERATIONS_MAX = 2e10;

export class Interpreter {
  readonly #graph: ProgramGraph;
  readonly #values: InterpreterValues;
  #operations = 0;

  constructor(graph: ProgramGraph, values: InterpreterValues) {
    this.#graph = graph;
    this.#values = values;
  }

  /**
   * @param onValue called with every variable that is computed
   * @returns the outputs. @throws CubeError UNSUPPORTED for unsupported operators, CORRUPT when
   *   shapes do not fit
   */
  run(
    feeds: ReadonlyMap<string, Tensor>,
    onValue: (name: string, tensor: Tensor) => void = () => undefined,
  ): Map<string, Tensor> {
    const values = new Map(feeds);
    for (const [name, tensor] of feeds) onValue(name, tensor);
    for (const op of this.#graph.ops) this.#execute(op, values, onValue);
    return new Map(
      this.#graph.outputs.map(({ name }) => [name, this.#value(name, values)] as const),
    );
  }

  #value(name: string, values: ReadonlyMap<string, Tensor>): Tensor {
    const tensor = values.get(name);
    if (tensor !== undefined) return tensor;
    if (this.#graph.isParameter(name)) return this.#values.parameter(name);
    throw new CubeError('CORRUPT', `nothing computes the variable ${JSON.stringify(name)}`);
  }

  #execute(
    op: Op,
    values: Map<string, Tensor>,
    onValue: (name: string, tensor: Tensor) => void,
  ): void {
    const error = (reason: string): CubeError =>
      new CubeError('CORRUPT', `the program cannot run: ${describeOp(op)}: ${reason}`);
    const inputs = (parameter: string): Tensor[] =>
      (op.inputs.get(parameter) ?? []).map((name) => this.#value(name, values));
    const set = (parameter: string, tensor: Tensor, position = 0): void => {
      const name = op.outputs.get(parameter)?.[position];
      if (name === undefined) return;
      values.set(name, tensor);
      onValue(name, tensor);
    };
    if (this.#lookUp(op, inputs('Ids'), set)) return;
    const kernel = Object.hasOwn(KERNELS, op.type) ? KERNELS[op.type] : undefined;
    if (kernel === undefined) throw notVerifiedError(`the operator ${op.type} is not supported`);
    const unsupported = (reason: string): CubeError =>
      notVerifiedError(`${describeOp(op)}: ${reason}`);
    const computed = findUnreadParameter(op);
    if (computed !== undefined)
      throw unsupported(`its ${computed} is computed, which is not supported`);
    const changed = findChangingAttribute(op);
    if (changed !== undefined) throw unsupported(`its attribute ${changed} is not supported`);
    kernel({
      op,
      inputs,
      setOutput: set,
      error,
      unsupported,
      optionalInput: (parameter) => inputs(parameter)[0],
      input: (parameter) => {
        const [tensor] = inputs(parameter);
        if (tensor === undefined) throw error(`it has no ${parameter}`);
        return tensor;
      },
      declaredRank: (parameter) => this.#getDeclaredRank(op, parameter),
      countOperations: (operations) => this.#countOperations(operations),
    });
  }

  #lookUp(op: Op, ids: readonly Tensor[], set: KernelCall['setOutput']): boolean {
    if (ids.length === 0) return false;
    const parameter = op.outputs.has('Outputs') ? 'Outputs' : 'Out';
    const rows = ids.map((tensor, position) => this.#values.lookUp(op, position, tensor));
    const found = rows.filter((tensor) => tensor !== undefined);
    if (found.length < rows.length) return false;
    found.forEach((tensor, position) => {
      set(parameter, tensor, position);
    });
    return true;
  }

  #getDeclaredRank(op: Op, parameter: string): number {
    const name = op.outputs.get(parameter)?.[0];
    return name === undefined ? 0 : this.#graph.getVariable(name).dims.length;
  }

  #countOperations(operations: number): void {
    this.#operations += operations;
    if (this.#operations > OPERATIONS_MAX) {
      throw notVerifiedError('it takes too many multiplications; a smaller --verify may help');
    }
  }
}
