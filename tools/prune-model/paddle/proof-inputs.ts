/** Sampled inputs of a program: ids of the rows that were drawn, sequences of them, normal dense values. */
import type { RandomNumbers } from '../proof.ts';
import type { CutPieces } from './cut-pieces.ts';
import type { TableSource } from './lookups.ts';
import { inputNames, type Op, type Variable } from './program.ts';
import { SampledRows } from './table-rows.ts';
import { countOf, dtypeOf, makeTensor, type Tensor, unproved } from './tensor.ts';

/** Of an axis of unknown size that is not the batch. */
const OTHER_SIZE = 3;
/** Ids of one row, where a row has any number. */
const SEQUENCE_MAX = 3;

/** Operators that keep the rows of sequences where they are. */
const ROW_WISE = new Set([
  ...['lookup_table', 'lookup_table_v2', 'distributed_lookup_table', 'pull_sparse'],
  ...['pull_sparse_v2', 'pull_box_sparse', 'pull_gpups_sparse', 'cast', 'assign', 'scale', 'relu'],
  ...['sigmoid', 'tanh', 'leaky_relu', 'clip', 'dropout', 'mul', 'fc'],
]);
const POOLING = new Set(['sequence_pool', 'fused_embedding_seq_pool']);

export class ProofInputs {
  readonly rows: ReadonlyMap<TableSource, SampledRows>;
  readonly #pieces: CutPieces;
  readonly #random: RandomNumbers;
  readonly #lengthOf: (input: string) => number | undefined;

  /** @param lengthOf the number of ids of a row, where it is fixed */
  constructor(
    pieces: CutPieces,
    random: RandomNumbers,
    lengthOf: (input: string) => number | undefined,
  ) {
    this.#pieces = pieces;
    this.#random = random;
    this.#lengthOf = lengthOf;
    const sources = [...new Set(pieces.lookups.map(({ table }) => table))];
    this.rows = new Map(sources.map((source) => [source, new SampledRows(source, random)]));
  }

  /** A tensor for each input of the full program. */
  draw(batch: number): Map<string, Tensor> {
    const { graph } = this.#pieces;
    return new Map(graph.inputs.map((input) => [input.name, this.#tensor(input, batch)]));
  }

  #tensor(input: Variable, batch: number): Tensor {
    const { name, dims, lodLevel, elementType } = input;
    if (lodLevel > 1) throw unproved(`input ${JSON.stringify(name)} has sequences of sequences`);
    if (dims.length === 0) throw unproved(`input ${JSON.stringify(name)} has no axis`);
    const [first = -1, ...tail] = dims.map((dim, i) => (dim === -1 && i > 0 ? OTHER_SIZE : dim));
    const lod = lodLevel === 1 ? this.#sequences(name, batch) : undefined;
    const size = lod?.at(-1) ?? (first === -1 ? batch : first);
    const tensor = makeTensor(dtypeOf(elementType), [size, ...tail], lod);
    const keys = this.#keysOf(input);
    const width = countOf(tail);
    for (let i = 0; i < tensor.data.length; i++) {
      if (keys !== undefined) tensor.data[i] = this.#key(keys, Math.floor(i / width));
      else if (tensor.dtype.startsWith('float')) tensor.data[i] = this.#random.normal();
      else tensor.data[i] = Number(this.#random.next() < 0.5);
    }
    return tensor;
  }

  /** The first rows of a batch take the edges of a table. */
  #key(keys: readonly number[], row: number): number {
    return row < 3
      ? keys[row % keys.length]!
      : keys[Math.floor(this.#random.next() * keys.length)]!;
  }

  #sequences(name: string, batch: number): number[] {
    const fixed = this.#lengthOf(name) ?? (this.#isPooled(name) ? undefined : 1);
    const lod = [0];
    for (let row = 0; row < batch; row++) {
      const length = fixed ?? Math.floor(this.#random.next() * (SEQUENCE_MAX + 1));
      lod.push(lod[row]! + length);
    }
    return lod;
  }

  /** Whether everything that reads the sequences goes to a pool, so that their lengths may differ. */
  #isPooled(name: string): boolean {
    const { graph } = this.#pieces;
    const queue = [name];
    const seen = new Set<string>();
    for (let next = queue.pop(); next !== undefined; next = queue.pop()) {
      if (seen.has(next)) continue;
      seen.add(next);
      if (graph.outputs.some((output) => output.name === next)) return false;
      for (const op of graph.readers(next)) {
        if (POOLING.has(op.type)) continue;
        if (!ROW_WISE.has(op.type)) return false;
        queue.push(...behind(op, next));
      }
    }
    return true;
  }

  /** Keys that every lookup of an input takes. */
  #keysOf(input: Variable): readonly number[] | undefined {
    const sampled = this.#pieces.lookups
      .filter(({ ids }) => ids.input === input)
      .map(({ table }) => this.rows.get(table)!);
    const [first, ...others] = [...new Set(sampled)];
    if (first === undefined) return undefined;
    const all = [...new Set([first, ...others].flatMap(({ keys }) => [...keys]))];
    const shared = all.filter((key) =>
      [first, ...others].every((table) => table.positionOf(key) !== undefined),
    );
    if (shared.length > 0) return shared;
    throw unproved(`the tables that ${JSON.stringify(input.name)} looks up share no key`);
  }
}

/** What an operator makes of one of its inputs, where it makes one thing of each. */
function behind(op: Op, name: string): string[] {
  const outputs = [...op.outputs.values()].flat();
  const position = op.inputs.get('Ids')?.indexOf(name) ?? -1;
  if (position >= 0 && outputs.length === op.inputs.get('Ids')!.length) return [outputs[position]!];
  return inputNames(op).includes(name) ? outputs : [];
}
