/**
 * What a format (onnx/, paddle/) hands to the steps that all formats share: the lookups that were cut, the tables, and how to
 * write and to prove the graph that is left. Nothing here knows how a model file looks.
 */
import type { KeyExpression, KeyMap } from '../../lib/core/key-expression.ts';
import type { BagSpec } from '../../lib/core/slots.ts';
import type { StagedOutput } from './output-folder.ts';
import type { ProofRequest, ProofResult } from './proof.ts';
import type { Table } from './table.ts';

/** A dim is a number, a symbol, or undefined when the model does not say. */
export type Dim = number | string | undefined;

/** An input or output of a graph. */
export interface Port {
  readonly name: string;
  /** As NumPy calls it: float32, int64, ...; what the format says for types that NumPy lacks. */
  readonly dtype: string;
  /** Undefined: not even the rank is known. */
  readonly shape: readonly Dim[] | undefined;
}

/** A lookup after the cut. */
export interface CutLookup {
  /** The node of the full model, as messages name it. */
  readonly node: string;
  /** The new input of the pruned graph. */
  readonly input: string;
  /** Of the new input: the shape of the indices, then the dim. */
  readonly shape: readonly Dim[];
  /** `source` of its table. */
  readonly table: string;
  /** The ids inputs of the full model that it reads, at least one. */
  readonly ids: readonly Port[];
  /** How each index of a row is computed from them, in the order of the lookup's rows. */
  readonly keys: readonly KeyExpression[];
  /** Set when the new input takes one row for each bag of ids. */
  readonly bags?: BagSpec;
  /** A key whose row is zeros, or does not count in a bag. */
  readonly paddingId?: number;
  /** 1: the new input takes a row for each id of sequences of any length. */
  readonly lodLevel?: number;
}

/** The columns of the one ids input that the keys are, when they are nothing but columns. */
export function plainColumns({ ids, keys }: Pick<CutLookup, 'ids' | 'keys'>): number[] | undefined {
  const columns: number[] = [];
  for (const key of keys) {
    if (key.op !== 'column' || key.input !== ids[0]!.name) return undefined;
    columns.push(key.column);
  }
  return columns;
}

/** Elements in a row of an ids input: axes of unknown size count once. */
export function rowElements({ shape }: Port): number {
  const [, ...rest] = shape ?? [];
  return rest.reduce<number>((product, dim) => product * (typeof dim === 'number' ? dim : 1), 1);
}

/** An input of the full graph that the pruned one still has. */
export interface KeptInput extends Port {
  /** Operators of the pruned graph that read it. */
  readonly readers: readonly string[];
}

/** A model whose lookups were found and can be cut; nothing is written yet. */
export interface CutModel {
  readonly lookups: readonly CutLookup[];
  readonly tables: readonly Table[];
  /** Integer constants that keys go through. */
  readonly maps: readonly KeyMap[];
  /** What a caller of the full model feeds, and gets. */
  readonly inputs: readonly Port[];
  readonly outputs: readonly Port[];
  readonly keptInputs: readonly KeptInput[];
  readonly nodes: { readonly before: number; readonly after: number };
  readonly bytes: { readonly before: number; readonly after: number };
  /** Names of the files that the graph is written to, where they are not the same for every model. */
  readonly files?: readonly string[];
  /** What a person should know about the cut. */
  readonly warnings: readonly string[];
  /** Writes the pruned graph and what belongs to it. */
  writeGraph(output: StagedOutput): void;
  /** Compares what was written with the full model. @throws CubeError when they disagree or cannot be compared */
  prove(request: ProofRequest): Promise<ProofResult>;
  /** Closes what is open. */
  close(): void;
}
