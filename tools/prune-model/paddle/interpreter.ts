/**
 * A reference interpreter of Paddle programs: exactly the operators that `--to onnx` converts, one after another in plain code, to
 * compare a full program with what it was cut to. It is made to be right, not to be fast.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { changingAttribute, unreadParameter } from './attributes.ts';
import type { Kernel, Step } from './kernel.ts';
import { ARITHMETIC } from './kernels-arithmetic.ts';
import { LAYOUT } from './kernels-layout.ts';
import { REDUCTION } from './kernels-reduction.ts';
import { describeOp, type Op } from './program.ts';
import type { ProgramGraph } from './program-graph.ts';
import { type Tensor, unproved } from './tensor.ts';

const KERNELS: Readonly<Record<string, Kernel>> = { ...ARITHMETIC, ...LAYOUT, ...REDUCTION };

/** What the interpreter cannot compute itself. */
export interface Values {
  parameter(name: string): Tensor;
  /** Rows for an operator that looks rows up. */
  lookUp(op: Op, position: number, ids: Tensor): Tensor | undefined;
}

const OPERATIONS_MAX = 2e10;

export class Interpreter {
  readonly #graph: ProgramGraph;
  readonly #values: Values;
  #operations = 0;

  constructor(graph: ProgramGraph, values: Values) {
    this.#graph = graph;
    this.#values = values;
  }

  /**
   * @param onValue told of every variable that is made
   * @returns the outputs. @throws CubeError UNSUPPORTED for operators that it does not know, CORRUPT when shapes do not fit
   */
  run(
    feeds: ReadonlyMap<string, Tensor>,
    onValue: (name: string, tensor: Tensor) => void = () => undefined,
  ): Map<string, Tensor> {
    const made = new Map(feeds);
    for (const [name, tensor] of feeds) onValue(name, tensor);
    for (const op of this.#graph.ops) this.#execute(op, made, onValue);
    return new Map(this.#graph.outputs.map(({ name }) => [name, this.#value(name, made)] as const));
  }

  #value(name: string, made: ReadonlyMap<string, Tensor>): Tensor {
    const tensor = made.get(name);
    if (tensor !== undefined) return tensor;
    if (this.#graph.isParameter(name)) return this.#values.parameter(name);
    throw new CubeError('CORRUPT', `nothing gives the variable ${JSON.stringify(name)} a value`);
  }

  #execute(
    op: Op,
    made: Map<string, Tensor>,
    onValue: (name: string, tensor: Tensor) => void,
  ): void {
    const error = (why: string): CubeError =>
      new CubeError('CORRUPT', `the program cannot run: ${describeOp(op)}: ${why}`);
    const inputs = (parameter: string): Tensor[] =>
      (op.inputs.get(parameter) ?? []).map((name) => this.#value(name, made));
    const set = (parameter: string, tensor: Tensor, position = 0): void => {
      const name = op.outputs.get(parameter)?.[position];
      if (name === undefined) return;
      made.set(name, tensor);
      onValue(name, tensor);
    };
    if (this.#lookUp(op, inputs('Ids'), set)) return;
    const kernel = Object.hasOwn(KERNELS, op.type) ? KERNELS[op.type] : undefined;
    if (kernel === undefined) throw unproved(`the operator ${op.type} is not known here`);
    const unknown = (why: string): CubeError => unproved(`${describeOp(op)}: ${why}`);
    const computed = unreadParameter(op);
    if (computed !== undefined) throw unknown(`its ${computed} is computed`);
    const changed = changingAttribute(op);
    if (changed !== undefined) throw unknown(`its attribute ${changed} is set`);
    kernel({
      ...{ op, inputs, set, error, unknown },
      optional: (parameter) => inputs(parameter)[0],
      input: (parameter) => {
        const [tensor] = inputs(parameter);
        if (tensor === undefined) throw error(`it has no ${parameter}`);
        return tensor;
      },
      declaredRank: (parameter) => this.#rankOf(op, parameter),
      spend: (operations) => this.#spend(operations),
    });
  }

  #lookUp(op: Op, ids: readonly Tensor[], set: Step['set']): boolean {
    if (ids.length === 0) return false;
    const parameter = op.outputs.has('Outputs') ? 'Outputs' : 'Out';
    const rows = ids.map((tensor, position) => this.#values.lookUp(op, position, tensor));
    if (rows.some((tensor) => tensor === undefined)) return false;
    rows.forEach((tensor, position) => {
      set(parameter, tensor!, position);
    });
    return true;
  }

  #rankOf(op: Op, parameter: string): number {
    const name = op.outputs.get(parameter)?.[0];
    return name === undefined ? 0 : this.#graph.variable(name).dims.length;
  }

  #spend(operations: number): void {
    this.#operations += operations;
    if (this.#operations > OPERATIONS_MAX) {
      throw unproved('it takes too many multiplications; try a smaller --verify');
    }
  }
}
