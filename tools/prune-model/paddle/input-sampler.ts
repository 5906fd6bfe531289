/** Samples inputs of a program: ids of drawn rows, sequences of them, normal dense values. */

import { requireDefined } from '../../../lib/core/errors.ts';
import { notVerifiedError } from '../cut/refusals.ts';
import { countElements } from '../cut/table.ts';
import type { RandomNumbers } from '../cut/verification.ts';
import type { PaddleTable } from './lookup-finder.ts';
import { getInputNames, type Op, type Variable } from './program.ts';
import type { PaddleCut } from './program-cutter.ts';
import { SampledTableRows } from './table-rows.ts';
import { createTensor, getTensorDtype, type Tensor } from './tensor.ts';

/** Size given to an axis of unknown size that is not the batch. */
const OTHER_SIZE = 3;
/** Maximum ids of a row with a variable number of ids. */
const SEQUENCE_MAX = 3;

/** Operators that keep the rows of sequences in place. */
const ROW_WISE_OPERATORS = new Set([
  'lookup_table',
  'lookup_table_v2',
  'distributed_lookup_table',
  'pull_sparse',
  'pull_sparse_v2',
  'pull_box_sparse',
  'pull_gpups_sparse',
  'cast',
  'assign',
  'scale',
  'relu',
  'sigmoid',
  'tanh',
  'leaky_relu',
  'clip',
  'dropout',
  'mul',
  'fc',
]);
const POOLING_OPERATORS = new Set(['sequence_pool', 'fused_embedding_seq_pool']);

export class PaddleInputSampler {
  readonly rows: ReadonlyMap<PaddleTable, SampledTableRows>;
  readonly #pieces: PaddleCut;
  readonly #random: RandomNumbers;
  readonly #getLength: (input: string) => number | undefined;

  /** @param getLength returns the number of ids per row where it is fixed */
  constructor(
    pieces: PaddleCut,
    random: RandomNumbers,
    getLength: (input: string) => number | undefined,
  ) {
    this.#pieces = pieces;
    this.#random = random;
    this.#getLength = getLength;
    const sources = [...new Set(pieces.lookups.map(({ table }) => table))];
    this.rows = new Map(sources.map((source) => [source, new SampledTableRows(source, random)]));
  }

  /** A tensor for each input of the full program. */
  draw(batch: number): Map<string, Tensor> {
    const { graph } = this.#pieces;
    return new Map(graph.inputs.map((input) => [input.name, this.#tensor(input, batch)]));
  }

  #tensor(input: Variable, batch: number): Tensor {
    const { name, dims, lodLevel, elementType } = input;
    if (lodLevel > 1)
      throw notVerifiedError(
        `input ${JSON.stringify(name)} has nested sequences, which is not supported`,
      );
    if (dims.length === 0) throw notVerifiedError(`input ${JSON.stringify(name)} has no axis`);
    const [first = -1, ...tail] = dims.map((dim, i) => (dim === -1 && i > 0 ? OTHER_SIZE : dim));
    const lod = lodLevel === 1 ? this.#sequences(name, batch) : undefined;
    const size = lod?.at(-1) ?? (first === -1 ? batch : first);
    const tensor = createTensor(getTensorDtype(elementType), [size, ...tail], lod);
    const keys = this.#findKeys(input);
    const width = countElements(tail);
    for (let i = 0; i < tensor.data.length; i++) {
      if (keys !== undefined) tensor.data[i] = this.#key(keys, Math.floor(i / width));
      else if (tensor.dtype.startsWith('float')) tensor.data[i] = this.#random.normal();
      else tensor.data[i] = Number(this.#random.next() < 0.5);
    }
    return tensor;
  }

  /** The first rows of a batch take the first keys, which include the edges of the table. */
  #key(keys: readonly number[], row: number): number {
    const at = row < 3 ? row % keys.length : Math.floor(this.#random.next() * keys.length);
    return requireDefined(keys[at], 'the keys of a table');
  }

  #sequences(name: string, batch: number): number[] {
    const fixed = this.#getLength(name) ?? (this.#isPooled(name) ? undefined : 1);
    let end = 0;
    const lod = [end];
    for (let row = 0; row < batch; row++) {
      end += fixed ?? Math.floor(this.#random.next() * (SEQUENCE_MAX + 1));
      lod.push(end);
    }
    return lod;
  }

  /** Whether all readers of the sequences pool them, so that their lengths may differ. */
  #isPooled(name: string): boolean {
    const { graph } = this.#pieces;
    const queue = [name];
    const seen = new Set<string>();
    for (let next = queue.pop(); next !== undefined; next = queue.pop()) {
      if (seen.has(next)) continue;
      seen.add(next);
      if (graph.outputs.some((output) => output.name === next)) return false;
      for (const op of graph.findReaders(next)) {
        if (POOLING_OPERATORS.has(op.type)) continue;
        if (!ROW_WISE_OPERATORS.has(op.type)) return false;
        queue.push(...findDerivedNames(op, next));
      }
    }
    return true;
  }

  /** Keys that every lookup of an input accepts. */
  #findKeys(input: Variable): readonly number[] | undefined {
    const sampled = this.#pieces.lookups
      .filter(({ ids }) => ids.input === input)
      .map(({ table }) => requireDefined(this.rows.get(table), 'the rows of a table'));
    const [first, ...others] = [...new Set(sampled)];
    if (first === undefined) return undefined;
    const all = [...new Set([first, ...others].flatMap(({ keys }) => [...keys]))];
    const shared = all.filter((key) =>
      [first, ...others].every((table) => table.findPosition(key) !== undefined),
    );
    if (shared.length > 0) return shared;
    throw notVerifiedError(
      `the tables that input ${JSON.stringify(input.name)} looks up have no key in common`,
    );
  }
}

/** The outputs that an operator computes from one of its inputs. */
function findDerivedNames(op: Op, name: string): string[] {
  const outputs = [...op.outputs.values()].flat();
  const ids = op.inputs.get('Ids') ?? [];
  const output = outputs[ids.indexOf(name)];
  if (output !== undefined && outputs.length === ids.length) return [output];
  return getInputNames(op).includes(name) ? outputs : [];
}
