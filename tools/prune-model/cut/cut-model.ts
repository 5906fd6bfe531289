/**
 * What a format (onnx/, paddle/) hands to the steps that both formats share: the cut lookups, the
 * tables, and how to write and verify the pruned graph. Nothing here depends on the format of the
 * model file.
 */

import type { KeyExpression, KeyMap } from '../../../lib/core/key-expression.ts';
import type { BagSpec } from '../../../lib/core/slots.ts';
import type { StagedOutput } from './output-folder.ts';
import type { Table } from './table.ts';
import type { VerificationRequest, VerificationResult } from './verification.ts';

/** A number, a symbol, or undefined when the model does not declare it. */
export type Dim = number | string | undefined;

/** An input or output of a graph. */
export interface TensorInfo {
  readonly name: string;
  /** NumPy's name (float32, int64, ...), or the format's own name for types that NumPy lacks. */
  readonly dtype: string;
  /** Undefined when not even the rank is known. */
  readonly shape: readonly Dim[] | undefined;
}

/** A lookup after the cut. */
export interface CutLookup {
  /** Description of the node in the full model, for messages and the report. */
  readonly node: string;
  /** The new input of the pruned graph. */
  readonly input: string;
  /** Shape of the new input: the axes of the indices, then the dim. */
  readonly shape: readonly Dim[];
  /** `source` of its table. */
  readonly table: string;
  /** Ids inputs of the full model that the lookup reads; at least one. */
  readonly ids: readonly TensorInfo[];
  /** How each index of a row is computed from the ids, in the order of the lookup's rows. */
  readonly keys: readonly KeyExpression[];
  /** Set when the new input takes one row for each bag of ids. */
  readonly bags?: BagSpec;
  /** A key whose row is zeros or, in a bag, is not pooled. */
  readonly paddingId?: number;
  /** 1 when the new input takes a row for each id of sequences of any length. */
  readonly lodLevel?: number;
  /** The axes of the indices, and those of each of `ids`, if the format knows them. */
  readonly axes?: readonly Axis[];
  readonly idsAxes?: readonly (readonly Axis[])[];
}

/** A known size or the name of an unknown one; equal names mean equal sizes. */
export type Axis = number | string;

/** @returns the columns when every key is a column of one ids input; undefined otherwise */
export function findPlainColumns({
  ids,
  keys,
}: Pick<CutLookup, 'ids' | 'keys'>): number[] | undefined {
  const [first] = ids;
  const columns: number[] = [];
  for (const key of keys) {
    if (key.op !== 'column' || key.input !== first?.name) return undefined;
    columns.push(key.column);
  }
  return columns;
}

/** Elements in a row of an ids input; axes of unknown size count once. */
export function countRowElements({ shape }: TensorInfo): number {
  const [, ...rest] = shape ?? [];
  return rest.reduce<number>((product, dim) => product * (typeof dim === 'number' ? dim : 1), 1);
}

/** An input of the full graph that the pruned graph keeps. */
export interface KeptInput extends TensorInfo {
  /** Operators of the pruned graph that read it. */
  readonly readers: readonly string[];
}

/** A model whose lookups were found and can be cut; nothing is written yet. */
export interface CutModel {
  readonly lookups: readonly CutLookup[];
  readonly tables: readonly Table[];
  /** Integer constants that keys are mapped through. */
  readonly maps: readonly KeyMap[];
  /** Inputs and outputs of the full model. */
  readonly inputs: readonly TensorInfo[];
  readonly outputs: readonly TensorInfo[];
  readonly keptInputs: readonly KeptInput[];
  readonly nodes: { readonly before: number; readonly after: number };
  readonly bytes: { readonly before: number; readonly after: number };
  /** Names of the files with the pruned graph, when it is not model.onnx alone. */
  readonly files?: readonly string[];
  /** Notes about the cut for the report. */
  readonly warnings: readonly string[];
  /** Writes the pruned graph and its data. */
  writeGraph(output: StagedOutput): void;
  /** Compares the written with the full model. @throws CubeError when they differ */
  verify(request: VerificationRequest): Promise<VerificationResult>;
  /** Closes open files. */
  close(): void;
}

/** Each expression that computes the keys once, in the order of first use. */
export function* walkExpressions(keys: readonly KeyExpression[]): Generator<KeyExpression> {
  const seen = new Set<KeyExpression>();
  const stack = [...keys].reverse();
  for (let key = stack.pop(); key !== undefined; key = stack.pop()) {
    if (seen.has(key)) continue;
    seen.add(key);
    yield key;
    if ('of' in key) stack.push(...[...key.of].reverse());
  }
}
