/**
 * Who makes and who reads what in a program, from its outputs backwards: what no output needs is not there. Labels, readers, losses
 * and optimizers go this way when --fetch names a prediction.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import {
  describeOp,
  inputNames,
  isParameter,
  type Op,
  outputNames,
  type Program,
  type Variable,
} from './program.ts';

/** Operators that only bring in what a caller or a reader gives, or hand out what a caller wants. */
const FEED = 'feed';
const FETCH = 'fetch';
const READ = 'read';

export class ProgramGraph {
  readonly program: Program;
  /** What a caller feeds, in the order of their columns. */
  readonly inputs: readonly Variable[];
  readonly outputs: readonly Variable[];
  /** What computes the outputs, in order; neither feed nor fetch. */
  readonly ops: readonly Op[];
  readonly #variables: ReadonlyMap<string, Variable>;
  readonly #makers = new Map<string, Op[]>();
  readonly #readers = new Map<string, Op[]>();

  /** @param fetch names of outputs; those of the fetch operators when there are none */
  constructor(program: Program, fetch: readonly string[]) {
    this.program = program;
    const [main] = program.blocks;
    this.#variables = new Map(main!.vars.map((variable) => [variable.name, variable]));
    const given = main!.ops.filter(({ type }) => type === FEED || type === READ);
    this.outputs = this.#outputsOf(fetch);
    const wanted = new Set(this.outputs.map(({ name }) => name));
    this.ops = sliceOps(program, wanted, new Set());
    for (const op of this.ops) {
      for (const name of new Set(writtenNames(program, op))) append(this.#makers, name, op);
      for (const name of new Set(readNames(program, op))) append(this.#readers, name, op);
    }
    this.inputs = this.#inputsOf(given, wanted);
    this.#checkOrder();
  }

  /** @throws CubeError CORRUPT when the program does not declare it */
  variable(name: string): Variable {
    const variable = this.#variables.get(name);
    if (variable !== undefined) return variable;
    throw invalid(`nothing declares the variable ${JSON.stringify(name)}`);
  }

  /** Every variable that is read on the way to the outputs. */
  neededNames(): Set<string> {
    return new Set([...this.#readers.keys(), ...this.outputs.map(({ name }) => name)]);
  }

  /** Also of one that an operator writes back, as batch_norm in its inference form seems to write its mean. */
  isParameter(name: string): boolean {
    return isParameter(this.variable(name));
  }

  makers(name: string): readonly Op[] {
    return this.#makers.get(name) ?? [];
  }

  readers(name: string): readonly Op[] {
    return this.#readers.get(name) ?? [];
  }

  #outputsOf(fetch: readonly string[]): Variable[] {
    const fetched = columnsOf(this.program, FETCH).map(({ name }) => name);
    const names = fetch.length > 0 ? [...new Set(fetch)] : fetched;
    if (names.length === 0) {
      throw new CubeError(
        'UNSUPPORTED',
        'cannot prune this program: it has no fetch operator; name its outputs with --fetch',
      );
    }
    return names.map((name) => {
      if (fetch.length === 0 || this.#variables.has(name)) return this.variable(name);
      throw new CubeError(
        'INVALID_ARGUMENT',
        `--fetch ${name}: the program has no such variable (its outputs are ${fetched.map((n) => JSON.stringify(n)).join(', ') || 'not named'})`,
      );
    });
  }

  /** Of feed operators, then of readers, then what nothing makes. */
  #inputsOf(given: readonly Op[], wanted: ReadonlySet<string>): Variable[] {
    const fed = columnsOf(this.program, FEED).map(({ name }) => name);
    const read = given.filter(({ type }) => type === READ).flatMap(outputNames);
    const used = new Set([...this.#readers.keys(), ...wanted]);
    const declared = [...this.#variables.values()].filter((v) => !isParameter(v));
    const names = new Set([...fed, ...read]);
    if (fed.length === 0) {
      for (const { name } of declared) if (this.makers(name).length === 0) names.add(name);
    }
    return [...names].filter((name) => used.has(name)).map((name) => this.variable(name));
  }

  #checkOrder(): void {
    const made = new Set(this.inputs.map(({ name }) => name));
    const isThere = (name: string): boolean => made.has(name) || isParameter(this.variable(name));
    for (const op of this.ops) {
      for (const name of readNames(this.program, op)) {
        if (isThere(name)) continue;
        throw invalid(`${describeOp(op)} reads ${JSON.stringify(name)} before anything makes it`);
      }
      for (const name of writtenNames(this.program, op)) made.add(name);
    }
    for (const { name } of this.outputs) {
      if (!isThere(name)) throw invalid(`nothing makes its output ${JSON.stringify(name)}`);
    }
  }
}

/** Variables of the feed or fetch operators by column. @throws CubeError CORRUPT when two have one column */
export function columnsOf(
  { blocks }: Program,
  type: 'feed' | 'fetch',
): { readonly op: Op; readonly name: string; readonly column: number }[] {
  const columns = new Set<number>();
  const names = new Set<string>();
  const found = blocks[0]!.ops
    .filter((op) => op.type === type)
    .map((op) => {
      const [name] = (type === FEED ? op.outputs.get('Out') : op.inputs.get('X')) ?? [];
      const column = op.attrs.get('col')?.numbers[0] ?? -1;
      if (name === undefined || column < 0) throw invalid(`a ${type} operator says not what`);
      if (columns.has(column)) throw invalid(`two ${type} operators have column ${column}`);
      if (type === FEED && names.has(name)) throw invalid(`${JSON.stringify(name)} is fed twice`);
      columns.add(column);
      names.add(name);
      return { op, name, column };
    });
  return found.sort((a, b) => a.column - b.column);
}

/**
 * The operators that the wanted variables need, in order, going backwards.
 * @param given variables that come from somewhere else
 */
export function sliceOps(
  program: Program,
  wanted: ReadonlySet<string>,
  given: ReadonlySet<string>,
): Op[] {
  const needed = new Set([...wanted].filter((name) => !given.has(name)));
  const kept: Op[] = [];
  for (const op of [...program.blocks[0]!.ops].reverse()) {
    if (op.type === FEED || op.type === FETCH || op.type === READ) continue;
    if (!writtenNames(program, op).some((name) => needed.has(name))) continue;
    kept.push(op);
    for (const name of readNames(program, op)) if (!given.has(name)) needed.add(name);
  }
  return kept.reverse();
}

/** What an operator reads; its blocks read for it. */
export function readNames(program: Program, op: Op): string[] {
  return op.blocks.length === 0
    ? inputNames(op)
    : [...inputNames(op), ...outerNames(program, op, inputNames)];
}

export function writtenNames(program: Program, op: Op): string[] {
  return op.blocks.length === 0
    ? outputNames(op)
    : [...outputNames(op), ...outerNames(program, op, outputNames)];
}

/** Names in an operator's blocks that mean variables outside of them. A block runs only blocks behind it. */
function outerNames(program: Program, op: Op, namesOf: (op: Op) => string[]): string[] {
  const blocks = new Set(op.blocks);
  for (const index of blocks) {
    for (const inner of program.blocks[index]!.ops) for (const b of inner.blocks) blocks.add(b);
  }
  const local = new Set<string>();
  const used: string[] = [];
  for (const index of blocks) {
    const { vars, ops } = program.blocks[index]!;
    for (const { name } of vars) local.add(name);
    for (const inner of ops) used.push(...namesOf(inner));
  }
  const outer = new Set(program.blocks[0]!.vars.map(({ name }) => name));
  return used.filter((name) => outer.has(name) && !local.has(name));
}

function append(map: Map<string, Op[]>, name: string, op: Op): void {
  const list = map.get(name);
  if (list === undefined) map.set(name, [op]);
  else list.push(op);
}

function invalid(why: string): CubeError {
  return new CubeError('CORRUPT', `not a valid Paddle program: ${why}`);
}
