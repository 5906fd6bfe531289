/**
 * Converts a pruned program to an ONNX graph with the same input names. Shapes come from two runs
 * of the reference interpreter with different batch sizes: sizes that differ depend on the batch,
 * others are fixed.
 */
import { requireDefined } from '../../../lib/core/errors.ts';
import { refuseModel } from '../cut/refusals.ts';
import { RandomNumbers } from '../cut/verification.ts';
import { ARITHMETIC_CONVERTERS } from './convert-arithmetic.ts';
import { LAYOUT_CONVERTERS } from './convert-layout.ts';
import { REDUCTION_CONVERTERS } from './convert-reduction.ts';
import { PaddleInputSampler } from './input-sampler.ts';
import { Interpreter } from './interpreter.ts';
import {
  type Conversion,
  type Converter,
  conversionError,
  ONNX_TYPES,
  OnnxGraphBuilder,
  type OnnxPort,
  type VariableShape,
} from './onnx-graph-builder.ts';
import { findChangingAttribute, findUnreadParameter } from './op-attributes.ts';
import { ParameterValues } from './parameter-values.ts';
import type { Op, Variable } from './program.ts';
import type { PaddleCut } from './program-cutter.ts';
import type { SequenceLengths } from './sequence-lengths.ts';
import type { Tensor } from './tensor.ts';

const CONVERTERS: Readonly<Record<string, Converter>> = {
  ...ARITHMETIC_CONVERTERS,
  ...LAYOUT_CONVERTERS,
  ...REDUCTION_CONVERTERS,
};

/** Batch sizes of the two runs. */
const BATCH_SIZES = [2, 3] as const;

export interface ConvertedProgram {
  readonly bytes: Uint8Array;
}

/** @throws CubeError UNSUPPORTED naming the operator that cannot be converted */
export function convertProgram(
  pieces: PaddleCut & { readonly lengths: SequenceLengths },
): ConvertedProgram {
  for (const op of pieces.cut.ops) {
    if (!Object.hasOwn(CONVERTERS, op.type))
      throw conversionError(
        op,
        'this operator is not supported; leave out --to to keep the Paddle program',
      );
    const computed = findUnreadParameter(op);
    if (computed !== undefined)
      throw conversionError(op, `its ${computed} is computed, which is not supported`);
    const changed = findChangingAttribute(op);
    if (changed !== undefined)
      throw conversionError(op, `its attribute ${changed} is not supported`);
  }
  return new ProgramConverter(pieces).convert();
}

class ProgramConverter {
  readonly #pieces: PaddleCut & { readonly lengths: SequenceLengths };
  readonly #values: ParameterValues;
  readonly #graph: OnnxGraphBuilder;
  readonly #shapes: ReadonlyMap<string, VariableShape & { readonly length: number | undefined }>;
  /** The current name of each variable in the graph. */
  readonly #names = new Map<string, string>();

  constructor(pieces: PaddleCut & { readonly lengths: SequenceLengths }) {
    this.#pieces = pieces;
    this.#graph = new OnnxGraphBuilder(pieces.graph.program.main.vars.map(({ name }) => name));
    const random = new RandomNumbers(1);
    const inputs = new PaddleInputSampler(pieces, random, (name) => pieces.lengths.get(name));
    this.#values = new ParameterValues(pieces, inputs.rows);
    const run = (batch: number): Map<string, Tensor> => {
      const seen = new Map<string, Tensor>();
      const interpreter = new Interpreter(pieces.graph, this.#values);
      interpreter.run(inputs.draw(batch), (name, tensor) => seen.set(name, tensor));
      return seen;
    };
    this.#shapes = compareShapes(run(BATCH_SIZES[0]), run(BATCH_SIZES[1]));
  }

  convert(): ConvertedProgram {
    const { cut, graph } = this.#pieces;
    const inputs = cut.inputs.map((input) => this.#claimInput(input));
    for (const input of cut.inputs) this.#openInput(input);
    for (const op of cut.ops) requireDefined(CONVERTERS[op.type], op.type)(this.#conversion(op));
    const outputs = graph.outputs.map(({ name }): OnnxPort => {
      const { dims, dtype } = this.#getShape(name);
      if (this.#getName(name) !== name) {
        refuseModel(
          `its output ${JSON.stringify(name)} is an input or is computed twice; --to onnx ` +
            'cannot keep its name',
        );
      }
      return { name, elemType: ONNX_TYPES[dtype], dims };
    });
    return { bytes: this.#graph.encode(inputs, outputs) };
  }

  #getShape(name: string): VariableShape & { readonly length: number | undefined } {
    const known = this.#shapes.get(name);
    if (known !== undefined) return known;
    const { dims, dtype } = this.#values.parameter(name);
    return { dims, dtype, length: undefined };
  }

  /** Sequences of more than one id get an axis of their own. */
  #claimInput({ name }: Variable): OnnxPort {
    this.#graph.claimVariable(name);
    const { dims, dtype } = this.#getShape(name);
    const length = this.#getSequenceLength(name);
    const tail = dims.slice(1);
    const isScalarRow = !this.#isCut(name) && tail.length === 1 && tail[0] === 1;
    const shape = length > 1 ? [-1, length, ...(isScalarRow ? [] : tail)] : [...dims];
    return { name, elemType: ONNX_TYPES[dtype], dims: shape };
  }

  #isCut(name: string): boolean {
    return this.#pieces.lookups.some(({ output }) => output.name === name);
  }

  /** Ids per row, also for a lookup that sums their rows. */
  #getSequenceLength(name: string): number {
    const lookup = this.#pieces.lookups.find(({ output }) => output.name === name);
    const input = lookup?.ids.input ?? this.#pieces.graph.getVariable(name);
    return input.lodLevel > 0 ? this.#pieces.lengths.get(input.name) : 1;
  }

  /** Inside the graph, rows of sequences are adjacent, as in the program. */
  #openInput({ name }: Variable): void {
    const length = this.#getSequenceLength(name);
    if (length === 1) {
      this.#names.set(name, name);
      return;
    }
    const [, ...tail] = this.#getShape(name).dims;
    const lookup = this.#pieces.lookups.find(({ output }) => output.name === name);
    if (lookup?.isPooled === true) {
      const axes = this.#graph.addIntegers(this.#graph.claimName(`${name}/axes`), [1]);
      const pooled = this.#graph.claimName(`${name}/pooled`);
      this.#names.set(
        name,
        this.#graph.addNode('ReduceSum', [name, axes], pooled, { keepdims: 0 }),
      );
      return;
    }
    const shape = this.#graph.addIntegers(this.#graph.claimName(`${name}/shape`), [-1, ...tail]);
    const rows = this.#graph.claimName(`${name}/rows`);
    this.#names.set(name, this.#graph.addNode('Reshape', [name, shape], rows));
  }

  /** Adds a parameter as a constant when it is first read. */
  #getName(variable: string): string {
    const known = this.#names.get(variable);
    if (known !== undefined) return known;
    const { dims, dtype, data } = this.#values.parameter(variable);
    const name = this.#graph.addConstant(this.#graph.claimVariable(variable), dtype, dims, data);
    this.#names.set(variable, name);
    return name;
  }

  #conversion(op: Op): Conversion {
    const names = (parameter: string): readonly string[] => op.inputs.get(parameter) ?? [];
    const first = [...op.outputs.values()].flat()[0] ?? op.type;
    return {
      op,
      graph: this.#graph,
      input: (parameter) => {
        const [name] = names(parameter);
        return name === undefined ? '' : this.#getName(name);
      },
      inputs: (parameter) => names(parameter).map((name) => this.#getName(name)),
      shape: (parameter, position = 0) => this.#getShape(names(parameter)[position] ?? ''),
      outputShape: (parameter) => this.#getShape(op.outputs.get(parameter)?.[0] ?? ''),
      claimOutput: (parameter, position = 0) => {
        const variable = op.outputs.get(parameter)?.[position];
        if (variable === undefined) throw conversionError(op, `it has no output ${parameter}`);
        const name = this.#graph.claimVariable(variable);
        this.#names.set(variable, name);
        return name;
      },
      claimName: (what) => this.#graph.claimName(`${first}/${what}`),
      sequenceLength: (parameter) => this.#getShape(names(parameter)[0] ?? '').length,
    };
  }
}

/** Combines the shapes of two runs. */
function compareShapes(
  first: ReadonlyMap<string, Tensor>,
  second: ReadonlyMap<string, Tensor>,
): Map<string, VariableShape & { length: number | undefined }> {
  const shapes = new Map<string, VariableShape & { length: number | undefined }>();
  for (const [name, { dims, dtype, lod }] of first) {
    const later = requireDefined(second.get(name), 'the tensor of the second run');
    const open = dims.map((dim, axis) => (dim === later.dims[axis] ? dim : -1));
    const [start = 0, end] = lod ?? [];
    const length = end === undefined ? undefined : end - start;
    shapes.set(name, { dims: open, dtype, length });
  }
  return shapes;
}
