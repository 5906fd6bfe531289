/**
 * Which operators compute and read each variable of a program, from its outputs backwards.
 * Operators that no output needs are dropped: labels, readers, losses and optimizers when --fetch
 * names a prediction.
 */

import { CubeError, requireDefined } from '../../../lib/core/errors.ts';
import {
  type Block,
  describeOp,
  getInputNames,
  getOutputNames,
  isParameter,
  type Op,
  type Program,
  type Variable,
} from './program.ts';

/** Operators that bring inputs in or hand outputs out. */
const FEED = 'feed';
const FETCH = 'fetch';
const READ = 'read';

export class ProgramGraph {
  readonly program: Program;
  /** Variables that a caller feeds, in the order of their columns. */
  readonly inputs: readonly Variable[];
  readonly outputs: readonly Variable[];
  /** Operators that compute the outputs, in order; without feed and fetch. */
  readonly ops: readonly Op[];
  readonly #variables: ReadonlyMap<string, Variable>;
  readonly #makers = new Map<string, Op[]>();
  readonly #readers = new Map<string, Op[]>();

  /** @param fetch names of outputs; empty takes those of the fetch operators */
  constructor(program: Program, fetch: readonly string[]) {
    this.program = program;
    const { main } = program;
    this.#variables = new Map(main.vars.map((variable) => [variable.name, variable]));
    const sources = main.ops.filter(({ type }) => type === FEED || type === READ);
    this.outputs = this.#findOutputs(fetch);
    const outputNames = new Set(this.outputs.map(({ name }) => name));
    this.ops = findNeededOps(program, outputNames, new Set());
    for (const op of this.ops) {
      for (const name of new Set(collectWrittenNames(program, op)))
        appendOp(this.#makers, name, op);
      for (const name of new Set(collectReadNames(program, op))) appendOp(this.#readers, name, op);
    }
    this.inputs = this.#findInputs(sources, outputNames);
    this.#checkOrder();
  }

  /** @throws CubeError CORRUPT when the program does not declare the variable */
  getVariable(name: string): Variable {
    const variable = this.#variables.get(name);
    if (variable !== undefined) return variable;
    throw invalidProgram(`nothing declares the variable ${JSON.stringify(name)}`);
  }

  /** Every variable that is read to compute the outputs. */
  collectNeededNames(): Set<string> {
    return new Set([...this.#readers.keys(), ...this.outputs.map(({ name }) => name)]);
  }

  /**
   * True also for a parameter that an operator lists as output, as batch_norm does with its mean.
   */
  isParameter(name: string): boolean {
    return isParameter(this.getVariable(name));
  }

  findProducers(name: string): readonly Op[] {
    return this.#makers.get(name) ?? [];
  }

  findReaders(name: string): readonly Op[] {
    return this.#readers.get(name) ?? [];
  }

  #findOutputs(fetch: readonly string[]): Variable[] {
    const fetched = findColumnOps(this.program, FETCH).map(({ name }) => name);
    const names = fetch.length > 0 ? [...new Set(fetch)] : fetched;
    if (names.length === 0) {
      throw new CubeError(
        'UNSUPPORTED',
        'cannot prune this model: it has no fetch operator; name its outputs with --fetch',
      );
    }
    return names.map((name) => {
      if (fetch.length === 0 || this.#variables.has(name)) return this.getVariable(name);
      const outputs = fetched.map((output) => JSON.stringify(output)).join(', ') || 'not named';
      throw new CubeError(
        'INVALID_ARGUMENT',
        `--fetch ${name}: the program has no such variable; its outputs are ${outputs}`,
      );
    });
  }

  /** Variables of feed operators, then of readers, then those that no operator computes. */
  #findInputs(sources: readonly Op[], outputNames: ReadonlySet<string>): Variable[] {
    const fed = findColumnOps(this.program, FEED).map(({ name }) => name);
    const read = sources.filter(({ type }) => type === READ).flatMap(getOutputNames);
    const used = new Set([...this.#readers.keys(), ...outputNames]);
    const declared = [...this.#variables.values()].filter((v) => !isParameter(v));
    const names = new Set([...fed, ...read]);
    if (fed.length === 0) {
      for (const { name } of declared) if (this.findProducers(name).length === 0) names.add(name);
    }
    return [...names].filter((name) => used.has(name)).map((name) => this.getVariable(name));
  }

  #checkOrder(): void {
    const defined = new Set(this.inputs.map(({ name }) => name));
    const isDefined = (name: string): boolean =>
      defined.has(name) || isParameter(this.getVariable(name));
    for (const op of this.ops) {
      for (const name of collectReadNames(this.program, op)) {
        if (isDefined(name)) continue;
        throw invalidProgram(
          `${describeOp(op)} reads ${JSON.stringify(name)} before anything computes it`,
        );
      }
      for (const name of collectWrittenNames(this.program, op)) defined.add(name);
    }
    for (const { name } of this.outputs) {
      if (!isDefined(name))
        throw invalidProgram(`nothing computes its output ${JSON.stringify(name)}`);
    }
  }
}

/** Variables of feed or fetch operators by column. @throws CubeError CORRUPT on duplicates */
export function findColumnOps(
  { main }: Program,
  type: 'feed' | 'fetch',
): { readonly op: Op; readonly name: string; readonly column: number }[] {
  const columns = new Set<number>();
  const names = new Set<string>();
  const found = main.ops
    .filter((op) => op.type === type)
    .map((op) => {
      const [name] = (type === FEED ? op.outputs.get('Out') : op.inputs.get('X')) ?? [];
      const column = op.attrs.get('col')?.numbers[0] ?? -1;
      if (name === undefined || column < 0)
        throw invalidProgram(`a ${type} operator has no variable or no column`);
      if (columns.has(column)) throw invalidProgram(`two ${type} operators have column ${column}`);
      if (type === FEED && names.has(name))
        throw invalidProgram(`${JSON.stringify(name)} is fed twice`);
      columns.add(column);
      names.add(name);
      return { op, name, column };
    });
  return found.sort((a, b) => a.column - b.column);
}

/**
 * The operators that the named variables need, in order.
 * @param sources variables that come from outside
 */
export function findNeededOps(
  program: Program,
  outputNames: ReadonlySet<string>,
  sources: ReadonlySet<string>,
): Op[] {
  const needed = new Set([...outputNames].filter((name) => !sources.has(name)));
  const kept: Op[] = [];
  for (const op of [...program.main.ops].reverse()) {
    if (op.type === FEED || op.type === FETCH || op.type === READ) continue;
    if (!collectWrittenNames(program, op).some((name) => needed.has(name))) continue;
    kept.push(op);
    for (const name of collectReadNames(program, op)) if (!sources.has(name)) needed.add(name);
  }
  return kept.reverse();
}

/** Names that an operator reads itself or in its blocks. */
export function collectReadNames(program: Program, op: Op): string[] {
  return op.blocks.length === 0
    ? getInputNames(op)
    : [...getInputNames(op), ...collectOuterNames(program, op, getInputNames)];
}

export function collectWrittenNames(program: Program, op: Op): string[] {
  return op.blocks.length === 0
    ? getOutputNames(op)
    : [...getOutputNames(op), ...collectOuterNames(program, op, getOutputNames)];
}

function getBlock({ blocks }: Program, index: number): Block {
  return requireDefined(blocks[index], 'a block');
}

/** Outer variables that the blocks of an operator name. A block runs only later blocks. */
function collectOuterNames(program: Program, op: Op, getNames: (op: Op) => string[]): string[] {
  const blocks = new Set(op.blocks);
  for (const index of blocks) {
    for (const inner of getBlock(program, index).ops) for (const b of inner.blocks) blocks.add(b);
  }
  const local = new Set<string>();
  const used: string[] = [];
  for (const index of blocks) {
    const { vars, ops } = getBlock(program, index);
    for (const { name } of vars) local.add(name);
    for (const inner of ops) used.push(...getNames(inner));
  }
  const outer = new Set(program.main.vars.map(({ name }) => name));
  return used.filter((name) => outer.has(name) && !local.has(name));
}

function appendOp(map: Map<string, Op[]>, name: string, op: Op): void {
  const list = map.get(name);
  if (list === undefined) map.set(name, [op]);
  else list.push(op);
}

function invalidProgram(reason: string): CubeError {
  return new CubeError('CORRUPT', `not a valid Paddle program: ${reason}`);
}
