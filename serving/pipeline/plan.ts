/** Checks the graph of a pipeline and orders it into stages. Pure: no clock, no I/O. */
import { CubeError } from '../../lib/core/errors.ts';
import {
  type AnyOp,
  type AnyRequestOp,
  type AnyResponseOp,
  Op,
  RequestOp,
  type StepOp,
} from './op.ts';

/** An op of a plan with its edges as indices into `PipelinePlan.steps`. */
export interface PlanStep {
  readonly op: StepOp;
  /** Positions of the predecessors; -1 is the request op. */
  readonly predecessors: readonly number[];
  readonly successors: readonly number[];
  /** Length of the longest path from the request op, which is stage 0. */
  readonly stage: number;
}

export interface PipelinePlan {
  readonly request: AnyRequestOp;
  /** All ops between request and response; predecessors come before their successors. */
  readonly steps: readonly PlanStep[];
  /** Positions of the ops that read the request op. */
  readonly firsts: readonly number[];
  /** Position of the response op's only predecessor. */
  readonly last: number;
  readonly response: AnyResponseOp;
}

/**
 * Checks ops and edges.
 * @param ops every op between request and response, to find those that do not reach the response
 * @throws CubeError INVALID_ARGUMENT that names the op or the edge
 */
export function planPipeline(ops: readonly StepOp[], response: AnyResponseOp): PipelinePlan {
  checkNames(ops);
  const last = response.inputs[0];
  if (response.inputs.length !== 1 || !(last instanceof Op)) {
    throw invalid(`the response op needs exactly one predecessor, an op; combine outputs in an op`);
  }
  const known = new Set<AnyOp>(ops);
  const requests = new Set<AnyRequestOp>();
  for (const op of [...ops, response]) {
    if (op.inputs.length === 0) throw invalid(`op ${op.name} has no predecessor; give it inputs`);
    for (const input of op.inputs) {
      if (input instanceof RequestOp) requests.add(input);
      else if (!known.has(input)) {
        throw invalid(`op ${op.name} reads ${input.name}, which is not in the pipeline; add it`);
      }
    }
    if (new Set(op.inputs).size !== op.inputs.length) {
      throw invalid(`op ${op.name} names the same predecessor twice; name it once`);
    }
  }
  const [request] = requests;
  if (request === undefined || requests.size !== 1) {
    throw invalid(`the pipeline has ${requests.size} request ops; it needs exactly one`);
  }
  const order = sortByEdges(ops);
  const steps = numberSteps(order);
  checkReach(steps, order.indexOf(last));
  const firsts = steps.flatMap(({ predecessors }, at) => (predecessors.includes(-1) ? [at] : []));
  return { request, steps, firsts, last: order.indexOf(last), response };
}

function invalid(message: string): CubeError {
  return new CubeError('INVALID_ARGUMENT', message);
}

function checkNames(ops: readonly StepOp[]): void {
  const names = new Set<string>([RequestOp.requestName, '@ResponseOp']);
  for (const { name } of ops) {
    if (name === '') throw invalid('an op has an empty name; name it');
    if (names.has(name)) throw invalid(`two ops are named ${name}; names must be unique`);
    names.add(name);
  }
}

/** Kahn's algorithm: stable in the order of `ops`. */
function sortByEdges(ops: readonly StepOp[]): StepOp[] {
  const missing = new Map<StepOp, number>();
  const readers = new Map<AnyOp, StepOp[]>();
  for (const op of ops) {
    missing.set(op, op.inputs.filter((input) => !(input instanceof RequestOp)).length);
    for (const input of op.inputs) {
      const list = readers.get(input);
      if (list === undefined) readers.set(input, [op]);
      else list.push(op);
    }
  }
  const order = ops.filter((op) => missing.get(op) === 0);
  for (const op of order) {
    for (const reader of readers.get(op) ?? []) {
      const left = (missing.get(reader) ?? 0) - 1;
      missing.set(reader, left);
      if (left === 0) order.push(reader);
    }
  }
  if (order.length === ops.length) return order;
  const sorted = new Set(order);
  const inCycle = ops.filter((op) => !sorted.has(op)).map((op) => op.name);
  throw invalid(`the edges of these ops contain a cycle: ${inCycle.join(', ')}; remove an edge`);
}

function numberSteps(order: readonly StepOp[]): PlanStep[] {
  const positions = new Map<AnyOp, number>(order.map((op, index) => [op, index]));
  const successors = order.map((): number[] => []);
  const stages: number[] = [];
  return order.map((op, index) => {
    const predecessors = op.inputs.map((input) => positions.get(input) ?? -1);
    for (const from of predecessors) successors[from]?.push(index);
    const stage = 1 + Math.max(...predecessors.map((from) => stages[from] ?? 0));
    stages.push(stage);
    return { op, predecessors, successors: successors[index] ?? [], stage };
  });
}

function checkReach(steps: readonly PlanStep[], last: number): void {
  for (const [index, { op, successors }] of steps.entries()) {
    if (index !== last && successors.length === 0) {
      throw invalid(`op ${op.name} does not reach the response; read its output or remove it`);
    }
    if (index === last && successors.length > 0) {
      throw invalid(`op ${op.name} is the response's predecessor, so no other op may read it`);
    }
  }
}
