/**
 * Converts what is left of a program to an ONNX graph with the same input names. Shapes are taken from two runs of the reference
 * interpreter with batches of different size: what differs is the batch, what does not is fixed.
 */
import { RandomNumbers } from '../proof.ts';
import { changingAttribute, unreadParameter } from './attributes.ts';
import { type Conversion, type Converter, cannotConvert, type KnownShape } from './conversion.ts';
import { ARITHMETIC } from './convert-arithmetic.ts';
import { LAYOUT } from './convert-layout.ts';
import { REDUCTION } from './convert-reduction.ts';
import type { CutPieces } from './cut-pieces.ts';
import { Interpreter } from './interpreter.ts';
import { ONNX_TYPES, OnnxGraph, type OnnxValue } from './onnx-graph.ts';
import { ParameterValues } from './parameter-values.ts';
import type { Op, Variable } from './program.ts';
import { ProofInputs } from './proof-inputs.ts';
import { refuseProgram } from './refusal.ts';
import type { SequenceLengths } from './sequence-lengths.ts';
import type { Tensor } from './tensor.ts';

const CONVERTERS: Readonly<Record<string, Converter>> = { ...ARITHMETIC, ...LAYOUT, ...REDUCTION };

/** Batches of the two runs. */
const RUNS = [2, 3];

export interface ConvertedProgram {
  readonly bytes: Uint8Array;
}

/** @throws CubeError UNSUPPORTED naming the operator that cannot be converted */
export function convertProgram(
  pieces: CutPieces & { readonly lengths: SequenceLengths },
): ConvertedProgram {
  for (const op of pieces.cut.ops) {
    if (!Object.hasOwn(CONVERTERS, op.type)) throw cannotConvert(op, 'this operator is not known');
    const computed = unreadParameter(op);
    if (computed !== undefined) throw cannotConvert(op, `its ${computed} is computed`);
    const changed = changingAttribute(op);
    if (changed !== undefined) throw cannotConvert(op, `its attribute ${changed} is set`);
  }
  return new ProgramConverter(pieces).convert();
}

class ProgramConverter {
  readonly #pieces: CutPieces & { readonly lengths: SequenceLengths };
  readonly #values: ParameterValues;
  readonly #graph: OnnxGraph;
  readonly #shapes: ReadonlyMap<string, KnownShape & { readonly length: number | undefined }>;
  /** What a variable is called in the graph by now. */
  readonly #names = new Map<string, string>();

  constructor(pieces: CutPieces & { readonly lengths: SequenceLengths }) {
    this.#pieces = pieces;
    this.#graph = new OnnxGraph(pieces.graph.program.blocks[0]!.vars.map(({ name }) => name));
    const random = new RandomNumbers(1);
    const inputs = new ProofInputs(pieces, random, (name) => pieces.lengths.of(name));
    this.#values = new ParameterValues(pieces, inputs.rows);
    const runs = RUNS.map((batch) => {
      const seen = new Map<string, Tensor>();
      const interpreter = new Interpreter(pieces.graph, this.#values);
      interpreter.run(inputs.draw(batch), (name, tensor) => seen.set(name, tensor));
      return seen;
    });
    this.#shapes = compare(runs[0]!, runs[1]!);
  }

  convert(): ConvertedProgram {
    const { cut, graph } = this.#pieces;
    const inputs = cut.inputs.map((input) => this.#claimInput(input));
    for (const input of cut.inputs) this.#openInput(input);
    // Outputs keep their names, whatever is made on the way.
    for (const op of cut.ops) CONVERTERS[op.type]!(this.#conversion(op));
    const outputs = graph.outputs.map(({ name }): OnnxValue => {
      const { dims, dtype } = this.#known(name);
      if (this.#nameOf(name) !== name) {
        refuseProgram(
          `its output ${JSON.stringify(name)} is an input or is made twice; --to onnx cannot keep its name`,
        );
      }
      return { name, elemType: ONNX_TYPES[dtype], dims };
    });
    return { bytes: this.#graph.encode(inputs, outputs) };
  }

  #known(name: string): KnownShape & { readonly length: number | undefined } {
    const known = this.#shapes.get(name);
    if (known !== undefined) return known;
    const { dims, dtype } = this.#values.parameter(name);
    return { dims, dtype, length: undefined };
  }

  /** What a caller feeds: sequences of more than one id have an axis of their own. */
  #claimInput({ name }: Variable): OnnxValue {
    this.#graph.claimVariable(name);
    const { dims, dtype } = this.#known(name);
    const length = this.#sequenceOf(name);
    const [first, ...tail] = dims;
    const isScalarRow = !this.#isCut(name) && tail.length === 1 && tail[0] === 1;
    const shape = length > 1 ? [-1, length, ...(isScalarRow ? [] : tail)] : [first!, ...tail];
    return { name, elemType: ONNX_TYPES[dtype], dims: shape };
  }

  #isCut(name: string): boolean {
    return this.#pieces.lookups.some(({ output }) => output.name === name);
  }

  /** Ids of a row, also where the lookup sums their rows. */
  #sequenceOf(name: string): number {
    const lookup = this.#pieces.lookups.find(({ output }) => output.name === name);
    const input = lookup?.ids.input ?? this.#pieces.graph.variable(name);
    return input.lodLevel > 0 ? this.#pieces.lengths.of(input.name) : 1;
  }

  /** Inside the graph rows of sequences lie one after another, as in the program. */
  #openInput({ name }: Variable): void {
    const length = this.#sequenceOf(name);
    if (length === 1) {
      this.#names.set(name, name);
      return;
    }
    const [, ...tail] = this.#known(name).dims;
    const lookup = this.#pieces.lookups.find(({ output }) => output.name === name);
    if (lookup?.isPooled === true) {
      const axes = this.#graph.integers(this.#graph.claim(`${name}/axes`), [1]);
      const pooled = this.#graph.claim(`${name}/pooled`);
      this.#names.set(name, this.#graph.node('ReduceSum', [name, axes], pooled, { keepdims: 0 }));
      return;
    }
    const shape = this.#graph.integers(this.#graph.claim(`${name}/shape`), [-1, ...tail]);
    const rows = this.#graph.claim(`${name}/rows`);
    this.#names.set(name, this.#graph.node('Reshape', [name, shape], rows));
  }

  /** Parameters become constants when they are first read. */
  #nameOf(variable: string): string {
    const known = this.#names.get(variable);
    if (known !== undefined) return known;
    const { dims, dtype, data } = this.#values.parameter(variable);
    const name = this.#graph.constant(this.#graph.claimVariable(variable), dtype, dims, data);
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
        return name === undefined ? '' : this.#nameOf(name);
      },
      inputs: (parameter) => names(parameter).map((name) => this.#nameOf(name)),
      shape: (parameter, position = 0) => this.#known(names(parameter)[position] ?? ''),
      outputShape: (parameter) => this.#known(op.outputs.get(parameter)?.[0] ?? ''),
      output: (parameter, position = 0) => {
        const variable = op.outputs.get(parameter)?.[position];
        if (variable === undefined) throw cannotConvert(op, `it has no output ${parameter}`);
        const name = this.#graph.claimVariable(variable);
        this.#names.set(variable, name);
        return name;
      },
      between: (what) => this.#graph.claim(`${first}/${what}`),
      sequenceLength: (parameter) => this.#known(names(parameter)[0] ?? '').length,
    };
  }
}

/** What two runs have in common. */
function compare(
  one: ReadonlyMap<string, Tensor>,
  other: ReadonlyMap<string, Tensor>,
): Map<string, KnownShape & { length: number | undefined }> {
  const shapes = new Map<string, KnownShape & { length: number | undefined }>();
  for (const [name, { dims, dtype, lod }] of one) {
    const second = other.get(name)!;
    const open = dims.map((dim, axis) => (dim === second.dims[axis] ? dim : -1));
    const length = lod === undefined || lod.length < 2 ? undefined : lod[1]! - lod[0]!;
    shapes.set(name, { dims: open, dtype, length });
  }
  return shapes;
}
