/**
 * Traces the ids of a lookup back to the columns of an input, through operators that only move ids.
 * Operators that compute with ids are refused by name.
 */

import { requireDefined } from '../../../lib/core/errors.ts';
import { refuseModel } from '../cut/refusals.ts';
import { countElements } from '../cut/table.ts';
import {
  computeSliceRange,
  computeSplitSizes,
  getInputName,
  getNumber,
  getNumbers,
} from './op-attributes.ts';
import {
  getElementTypeName,
  getInputNames,
  type Op,
  refuseOperator,
  TYPE_INT32,
  TYPE_INT64,
  type Variable,
} from './program.ts';
import type { ProgramGraph } from './program-graph.ts';

/** The ids of a row: columns of an input, in the order of the lookup. */
export interface InputColumns {
  readonly input: Variable;
  readonly columns: readonly number[];
}

/** Operators that keep the order of elements. */
const ORDER_PRESERVING_OPERATORS = new Set([
  'reshape',
  'reshape2',
  'squeeze',
  'squeeze2',
  'unsqueeze',
  'unsqueeze2',
  'flatten',
  'flatten2',
  'flatten_contiguous_range',
]);

/** Operators whose result does not depend on the values of their inputs. */
const VALUE_INDEPENDENT_OPERATORS = new Set([
  'shape',
  'size',
  'fill_any_like',
  'fill_constant_batch_size_like',
]);

const DEPTH_MAX = 500;
const COLUMNS_MAX = 100_000;

export class PaddleIdsTracer {
  readonly #graph: ProgramGraph;
  readonly #inputs: ReadonlySet<string>;
  readonly #traced = new Map<string, InputColumns | undefined>();

  constructor(graph: ProgramGraph) {
    this.#graph = graph;
    this.#inputs = new Set(graph.inputs.map(({ name }) => name));
  }

  /**
   * @returns undefined when the ids are constant. @throws CubeError UNSUPPORTED naming the operator
   */
  trace(name: string, depth = 0): InputColumns | undefined {
    if (this.#traced.has(name)) return this.#traced.get(name);
    if (depth > DEPTH_MAX) refuseModel(`ids pass through more than ${DEPTH_MAX} operators`);
    const path = this.#find(name, depth);
    this.#traced.set(name, path);
    return path;
  }

  #find(name: string, depth: number): InputColumns | undefined {
    const makers = this.#graph.findProducers(name);
    const [op] = makers;
    if (this.#inputs.has(name)) {
      if (op !== undefined) {
        refuseOperator(op, `it overwrites the input ${JSON.stringify(name)}`);
      }
      return this.#fromInput(this.#graph.getVariable(name));
    }
    if (op === undefined) return undefined;
    if (makers.length > 1) refuseOperator(op, `the ids ${JSON.stringify(name)} are computed twice`);
    if (VALUE_INDEPENDENT_OPERATORS.has(op.type)) return undefined;
    if (ORDER_PRESERVING_OPERATORS.has(op.type) || op.type === 'assign')
      return this.#moved(op, name, depth);
    if (op.type === 'cast') return this.#cast(op, name, depth);
    if (op.type === 'split') return this.#split(op, name, depth);
    if (op.type === 'slice') return this.#slice(op, depth);
    if (op.type === 'concat') return this.#concat(op, depth);
    const sources = op.blocks.length > 0 ? [] : getInputNames(op);
    const dependsOnInputs = sources.some((source) => this.trace(source, depth + 1) !== undefined);
    if (!dependsOnInputs && op.blocks.length === 0) return undefined;
    refuseOperator(
      op,
      'it computes the ids of a lookup, which is not supported; compute the ids before the ' +
        'model and feed the result',
    );
  }

  #fromInput(input: Variable): InputColumns {
    if (input.elementType !== TYPE_INT64 && input.elementType !== TYPE_INT32) {
      refuseModel(
        `the ids input ${JSON.stringify(input.name)} is of ` +
          `${getElementTypeName(input.elementType)}; it must be int64 or int32`,
      );
    }
    const [, ...tail] = input.dims;
    const count = countElements(tail);
    if (tail.some((dim) => dim <= 0) || input.dims.length === 0 || count > COLUMNS_MAX) {
      refuseModel(
        `the ids input ${JSON.stringify(input.name)} is [${input.dims.join(', ')}]: only its ` +
          'first axis may be open; ' +
          'declare the others with fixed sizes',
      );
    }
    return { input, columns: Array.from({ length: count }, (_, column) => column) };
  }

  #source(op: Op, depth: number): InputColumns | undefined {
    const name = getInputName(op, 'X') ?? getInputName(op, 'Input');
    if (name === undefined) refuseOperator(op, 'it has no input');
    for (const [parameter, names] of op.inputs) {
      if (!['X', 'Input'].includes(parameter) && names.length > 0) {
        refuseOperator(op, `its ${parameter} is computed; only constant attributes are supported`);
      }
    }
    return this.trace(name, depth + 1);
  }

  #moved(op: Op, name: string, depth: number): InputColumns | undefined {
    const path = this.#source(op, depth);
    if (path === undefined) return undefined;
    const [first, ...tail] = this.#graph.getVariable(name).dims;
    const count = countElements(tail);
    const keepsBatch = first !== undefined && (first === -1 || first === path.input.dims[0]);
    if (!keepsBatch || count !== path.columns.length) {
      refuseOperator(
        op,
        'it moves ids from one row of the batch to another, which is not supported',
      );
    }
    return path;
  }

  #cast(op: Op, name: string, depth: number): InputColumns | undefined {
    const path = this.#source(op, depth);
    const { elementType } = this.#graph.getVariable(name);
    if (path !== undefined && elementType !== TYPE_INT64 && elementType !== TYPE_INT32) {
      refuseOperator(
        op,
        `it casts ids to ${getElementTypeName(elementType)}; they must stay int64 or int32`,
      );
    }
    return path;
  }

  #split(op: Op, name: string, depth: number): InputColumns | undefined {
    const path = this.#source(op, depth);
    if (path === undefined) return undefined;
    const outputs = op.outputs.get('Out') ?? [];
    this.#checkColumns(op, path, getNumber(op, 'axis', 0));
    const sizes = computeSplitSizes(op, path.columns.length, outputs.length);
    if (sizes === undefined) refuseOperator(op, 'the sizes of its parts do not add up');
    const part = outputs.indexOf(name);
    const from = sizes.slice(0, part).reduce((sum, size) => sum + size, 0);
    return { ...path, columns: path.columns.slice(from, from + (sizes[part] ?? 0)) };
  }

  #slice(op: Op, depth: number): InputColumns | undefined {
    const path = this.#source(op, depth);
    if (path === undefined) return undefined;
    const [axis, ...more] = getNumbers(op, 'axes');
    if (axis === undefined || more.length > 0)
      refuseOperator(op, 'it slices ids along several axes; only the columns are supported');
    this.#checkColumns(op, path, axis);
    const starts = getNumbers(op, 'starts')[0] ?? 0;
    const ends = getNumbers(op, 'ends')[0] ?? 0;
    const [from, to] = computeSliceRange(starts, ends, path.columns.length);
    return { ...path, columns: path.columns.slice(from, to) };
  }

  #concat(op: Op, depth: number): InputColumns | undefined {
    if ((op.inputs.get('AxisTensor') ?? []).length > 0)
      refuseOperator(op, 'its AxisTensor is computed; only a constant axis is supported');
    const paths = (op.inputs.get('X') ?? []).map((name) => this.trace(name, depth + 1));
    const traced = paths.filter((path) => path !== undefined);
    const [first] = traced;
    if (first === undefined) return undefined;
    if (traced.length < paths.length || traced.some(({ input }) => input !== first.input)) {
      refuseOperator(
        op,
        'it joins ids of several inputs, which is not supported; look up each input',
      );
    }
    for (const path of traced) this.#checkColumns(op, path, getNumber(op, 'axis', 0));
    const columns = traced.flatMap((path) => [...path.columns]);
    if (columns.length > COLUMNS_MAX)
      refuseOperator(op, `it joins ${columns.length} ids per row; the maximum is ${COLUMNS_MAX}`);
    return { ...first, columns };
  }

  /** Checks that the axis is the columns of [batch, n]. */
  #checkColumns(op: Op, path: InputColumns, axis: number): void {
    const [source] = op.inputs.get('X') ?? op.inputs.get('Input') ?? [];
    const { dims } = this.#graph.getVariable(requireDefined(source, 'the input of an operator'));
    const isLast = axis === 1 || axis === -1;
    if (dims.length !== 2 || !isLast || path.input.lodLevel > 0) {
      refuseOperator(
        op,
        `it divides or joins ids of [${dims.join(', ')}] along axis ${axis}; only the columns of ` +
          '[batch, n] are supported',
      );
    }
  }
}
