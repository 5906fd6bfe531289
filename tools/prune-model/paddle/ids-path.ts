/**
 * From the ids of a lookup back to an input of the program, through operators that only move them: which columns of that input
 * they are. What computes with ids is refused by name.
 */
import { inputOf, numberOf, numbersOf, sliceRange, splitSizes } from './attributes.ts';
import {
  elementName,
  inputNames,
  type Op,
  TYPE_INT32,
  TYPE_INT64,
  type Variable,
} from './program.ts';
import type { ProgramGraph } from './program-graph.ts';
import { refuse, refuseProgram } from './refusal.ts';

/** Ids of a row: the columns of an input, in the order of the lookup. */
export interface IdsPath {
  readonly input: Variable;
  readonly columns: readonly number[];
}

/** Operators that keep the order of elements. */
const LAYOUT = new Set([
  ...['reshape', 'reshape2', 'squeeze', 'squeeze2', 'unsqueeze', 'unsqueeze2'],
  ...['flatten', 'flatten2', 'flatten_contiguous_range'],
]);

/** Whose result does not depend on the values of what they read. */
const VALUE_BLIND = new Set(['shape', 'size', 'fill_any_like', 'fill_constant_batch_size_like']);

const DEPTH_MAX = 500;
const COLUMNS_MAX = 100_000;

export class IdsTracer {
  readonly #graph: ProgramGraph;
  readonly #inputs: ReadonlySet<string>;
  readonly #seen = new Map<string, IdsPath | undefined>();

  constructor(graph: ProgramGraph) {
    this.#graph = graph;
    this.#inputs = new Set(graph.inputs.map(({ name }) => name));
  }

  /** @returns undefined when the ids are constant. @throws CubeError UNSUPPORTED naming what is not understood */
  trace(name: string, depth = 0): IdsPath | undefined {
    if (this.#seen.has(name)) return this.#seen.get(name);
    if (depth > DEPTH_MAX) refuseProgram(`ids go through more than ${DEPTH_MAX} operators`);
    const path = this.#find(name, depth);
    this.#seen.set(name, path);
    return path;
  }

  #find(name: string, depth: number): IdsPath | undefined {
    const makers = this.#graph.makers(name);
    if (this.#inputs.has(name)) {
      if (makers.length > 0) refuse(makers[0]!, `it writes over the input ${JSON.stringify(name)}`);
      return this.#fromInput(this.#graph.variable(name));
    }
    const [op] = makers;
    if (op === undefined) return undefined;
    if (makers.length > 1) refuse(op, `${JSON.stringify(name)}, an ids tensor, is made twice`);
    if (VALUE_BLIND.has(op.type)) return undefined;
    if (LAYOUT.has(op.type) || op.type === 'assign') return this.#moved(op, name, depth);
    if (op.type === 'cast') return this.#cast(op, name, depth);
    if (op.type === 'split') return this.#split(op, name, depth);
    if (op.type === 'slice') return this.#slice(op, depth);
    if (op.type === 'concat') return this.#concat(op, depth);
    const sources = op.blocks.length > 0 ? [] : inputNames(op);
    const isLive = sources.some((source) => this.trace(source, depth + 1) !== undefined);
    if (!isLive && op.blocks.length === 0) return undefined;
    refuse(op, 'ids are computed with on their way to a lookup; look up what is fed instead');
  }

  #fromInput(input: Variable): IdsPath {
    if (input.elementType !== TYPE_INT64 && input.elementType !== TYPE_INT32) {
      refuseProgram(
        `the ids input ${JSON.stringify(input.name)} is of ${elementName(input.elementType)}`,
      );
    }
    const [, ...tail] = input.dims;
    const count = tail.reduce((product, dim) => product * dim, 1);
    if (tail.some((dim) => dim <= 0) || input.dims.length === 0 || count > COLUMNS_MAX) {
      refuseProgram(
        `the ids input ${JSON.stringify(input.name)} is [${input.dims.join(', ')}]: only its first axis may be open`,
      );
    }
    return { input, columns: Array.from({ length: count }, (_, column) => column) };
  }

  #source(op: Op, depth: number): IdsPath | undefined {
    const name = inputOf(op, 'X') ?? inputOf(op, 'Input');
    if (name === undefined) refuse(op, 'it has no input');
    for (const [parameter, names] of op.inputs) {
      if (!['X', 'Input'].includes(parameter) && names.length > 0) {
        refuse(op, `its ${parameter} is computed`);
      }
    }
    return this.trace(name, depth + 1);
  }

  #moved(op: Op, name: string, depth: number): IdsPath | undefined {
    const path = this.#source(op, depth);
    if (path === undefined) return undefined;
    const [first, ...tail] = this.#graph.variable(name).dims;
    const count = tail.reduce((product, dim) => product * dim, 1);
    const keepsBatch = first !== undefined && (first === -1 || first === path.input.dims[0]);
    if (!keepsBatch || count !== path.columns.length) {
      refuse(op, 'it moves ids from one row of the batch to another');
    }
    return path;
  }

  #cast(op: Op, name: string, depth: number): IdsPath | undefined {
    const path = this.#source(op, depth);
    const { elementType } = this.#graph.variable(name);
    if (path !== undefined && elementType !== TYPE_INT64 && elementType !== TYPE_INT32) {
      refuse(op, `it makes ids ${elementName(elementType)}`);
    }
    return path;
  }

  #split(op: Op, name: string, depth: number): IdsPath | undefined {
    const path = this.#source(op, depth);
    if (path === undefined) return undefined;
    const outputs = op.outputs.get('Out') ?? [];
    this.#checkColumns(op, path, numberOf(op, 'axis', 0));
    const sizes = splitSizes(op, path.columns.length, outputs.length);
    if (sizes === undefined) refuse(op, 'its parts are not its whole');
    const part = outputs.indexOf(name);
    const from = sizes.slice(0, part).reduce((sum, size) => sum + size, 0);
    return { ...path, columns: path.columns.slice(from, from + sizes[part]!) };
  }

  #slice(op: Op, depth: number): IdsPath | undefined {
    const path = this.#source(op, depth);
    if (path === undefined) return undefined;
    const [axis, ...more] = numbersOf(op, 'axes');
    if (axis === undefined || more.length > 0) refuse(op, 'it slices ids along several axes');
    this.#checkColumns(op, path, axis);
    const starts = numbersOf(op, 'starts')[0] ?? 0;
    const ends = numbersOf(op, 'ends')[0] ?? 0;
    const [from, to] = sliceRange(starts, ends, path.columns.length);
    return { ...path, columns: path.columns.slice(from, to) };
  }

  #concat(op: Op, depth: number): IdsPath | undefined {
    if ((op.inputs.get('AxisTensor') ?? []).length > 0) refuse(op, 'its AxisTensor is computed');
    const paths = (op.inputs.get('X') ?? []).map((name) => this.trace(name, depth + 1));
    const live = paths.filter((path) => path !== undefined);
    const [first] = live;
    if (first === undefined) return undefined;
    if (live.length < paths.length || live.some(({ input }) => input !== first.input)) {
      refuse(op, 'it puts ids of several inputs together');
    }
    for (const path of live) this.#checkColumns(op, path, numberOf(op, 'axis', 0));
    const columns = live.flatMap((path) => [...path.columns]);
    if (columns.length > COLUMNS_MAX) refuse(op, `it makes ${columns.length} ids of a row`);
    return { ...first, columns };
  }

  /** The axis must be that of the columns of [batch, n]. */
  #checkColumns(op: Op, path: IdsPath, axis: number): void {
    const [source] = op.inputs.get('X') ?? op.inputs.get('Input') ?? [];
    const { dims } = this.#graph.variable(source!);
    const isLast = axis === 1 || axis === -1;
    if (dims.length !== 2 || !isLast || path.input.lodLevel > 0) {
      refuse(op, `it cuts ids of [${dims.join(', ')}] along axis ${axis}`);
    }
  }
}
