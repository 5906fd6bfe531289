/**
 * How a request becomes the inputs of one graph: computed once from the slot spec and the manifest, checked against the
 * graph itself, and handed to the workers as plain data. Nothing about a model is known anywhere else.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { type Manifest, tableOf } from '../../lib/core/manifest.ts';
import type {
  DenseInput,
  EmbeddingInput,
  EmptyBag,
  FeatureSpec,
  Pooling,
  SlotSpec,
} from '../../lib/core/slots.ts';
import type { OnnxPort } from '../../lib/platform/onnx.ts';
import type { ComputedKeys } from './computed-keys.ts';

/** A graph that was exported for more rows than this would mostly run on filler. */
const FIXED_BATCH_MAX = 1024;

/** What rows and dense values may be to a graph; doubles are not served: rows are of single precision. */
const FLOATS = /^float(32|16)$/;

/** One table that the graph needs, and which features of a row are looked up in it. */
interface TablePlan {
  readonly name: string;
  readonly dim: number;
  /** Positions among a row's keys; each once, even when several inputs of the graph take it. */
  readonly columns: Int32Array;
  /** Rows of the table in the graph, where ids below zero count from its end; 0: keys are taken as they are. */
  readonly wrapRows: number;
  /** What a bag without values gives, where its slot says so. */
  readonly defaultRow: readonly number[];
}

/** How the rows of one column's values become one. */
export interface ColumnPooling {
  readonly pooling: Pooling;
  readonly emptyBag: EmptyBag;
}

/** One embedding input of the graph. */
export interface EmbeddingPlan {
  readonly input: string;
  /** Index in `tables`. */
  readonly table: number;
  /** Positions in that table's columns. */
  readonly columns: Int32Array;
  /** The tensor's dims behind the batch. */
  readonly shape: readonly number[];
  /** Set when some of its columns pool: how each does, undefined for one value. */
  readonly poolings?: readonly (ColumnPooling | undefined)[];
}

/** One input of dense features. */
export interface DensePlan {
  readonly input: string;
  /** Positions among a row's dense features. */
  readonly columns: Int32Array;
}

export interface GraphPlan {
  /** What to call the model in errors. */
  readonly source: string;
  readonly slotNum: number;
  /** Keys in a row: the slots', then the computed ones. */
  readonly keyNum: number;
  /** Inputs of the graph that take the ids themselves: the slot of each column. */
  readonly ids: readonly { readonly input: string; readonly slots: Int32Array }[];
  readonly tables: readonly TablePlan[];
  readonly embeddings: readonly EmbeddingPlan[];
  readonly dense: readonly DensePlan[];
  readonly denseNum: number;
  /** Rows that the graph takes at once, when it was exported for a number of them; 0: any. */
  readonly batch: number;
  /** Some slots have any number of values. */
  readonly hasBags: boolean;
  readonly clickOutput: string;
  readonly clickColumn: number;
}

/** @throws CubeError INVALID_ARGUMENT or UNSUPPORTED when slot spec and manifest do not make a model that can answer */
export function planGraph(spec: SlotSpec, manifest: Manifest, keys: ComputedKeys): GraphPlan {
  const source = `${manifest.bundle} ${manifest.version}`;
  const features = requireFeatures(spec, source);
  const columnsOf = tableColumns(spec, keys);
  const names = [...columnsOf.keys()];
  return {
    source,
    slotNum: features.slots.length,
    keyNum: keys.keyNum,
    ids: planIds(spec, features, source),
    tables: names.map((name) =>
      planTable(spec, manifest, keys, { name, columns: columnsOf.get(name)! }),
    ),
    embeddings: spec.embeddings.map((embedding) =>
      planEmbedding(embedding, {
        source,
        features,
        table: names.indexOf(embedding.table),
        positions: keys.positionsOf(embedding),
        columns: columnsOf.get(embedding.table)!,
      }),
    ),
    dense: planDense(features.dense),
    denseNum: features.dense?.features.length ?? 0,
    batch: batchOf(spec, source),
    hasBags: features.slots.some(({ pooling }) => pooling !== undefined),
    clickOutput: features.click.output,
    clickColumn: features.click.column,
  };
}

/** Which keys of a row are looked up in each table. */
function tableColumns(spec: SlotSpec, keys: ComputedKeys): Map<string, number[]> {
  const columnsOf = new Map<string, number[]>();
  for (const embedding of spec.embeddings) {
    const columns = columnsOf.get(embedding.table) ?? [];
    columnsOf.set(embedding.table, columns);
    for (const position of keys.positionsOf(embedding)) {
      if (!columns.includes(position)) columns.push(position);
    }
  }
  return columnsOf;
}

function planIds(spec: SlotSpec, { slots, dense }: FeatureSpec, source: string): GraphPlan['ids'] {
  const positions = new Map(slots.map(({ name }, i) => [name, i]));
  const kept = (spec.ids ?? []).filter((ids) => ids.kept && ids.input !== dense?.input);
  return kept.map(({ input, slots: names }) => {
    const columns = Int32Array.from(names, (slot) => positions.get(slot)!);
    if (columns.some((column) => slots[column]!.pooling !== undefined)) {
      throw new CubeError(
        'UNSUPPORTED',
        `${source}: the graph takes the ids ${input} themselves, so their slots have one value each, not a bag`,
      );
    }
    return { input, slots: columns };
  });
}

function planEmbedding(
  embedding: EmbeddingInput,
  model: {
    source: string;
    features: FeatureSpec;
    table: number;
    positions: readonly number[];
    columns: readonly number[];
  },
): EmbeddingPlan {
  const { source, features, table, positions, columns } = model;
  // Computed keys, behind the slots', have no bags.
  const poolings = positions.map((position): ColumnPooling | undefined => {
    const { pooling, emptyBag = 'zeros' } = features.slots[position] ?? {};
    return pooling && { pooling, emptyBag };
  });
  return {
    input: embedding.input,
    table,
    columns: Int32Array.from(positions, (position) => columns.indexOf(position)),
    shape: checkShape(embedding, positions.length, source),
    ...(poolings.some((pooling) => pooling !== undefined) ? { poolings } : {}),
  };
}

/** The features of each input of dense features, in its order. */
function planDense(dense: DenseInput | undefined): DensePlan[] {
  const columnsOf = new Map<string, number[]>();
  dense?.features.forEach(({ input = dense.input }, i) => {
    columnsOf.set(input, [...(columnsOf.get(input) ?? []), i]);
  });
  return Array.from(columnsOf, ([input, columns]) => ({
    input,
    columns: Int32Array.from(columns),
  }));
}

/** The number of rows that the graph was exported for: one for all inputs. */
function batchOf({ embeddings }: SlotSpec, source: string): number {
  const batches = new Set(embeddings.map(({ shape }) => Math.max(shape[0]!, 0)));
  const [batch = 0] = batches;
  if (batches.size <= 1 && batch <= FIXED_BATCH_MAX) return batch;
  throw new CubeError(
    'UNSUPPORTED',
    `${source}: the graph takes ${[...batches].join(' and ')} rows at once (one number of at most ` +
      `${FIXED_BATCH_MAX} can be served); export it with a dynamic batch`,
  );
}

function requireFeatures(spec: SlotSpec, source: string): FeatureSpec {
  if (spec.features !== undefined) return spec.features;
  throw new CubeError(
    'UNSUPPORTED',
    `${source}: slots.json has no features, so rows cannot become keys; prune the model with --features features.json`,
  );
}

function planTable(
  spec: SlotSpec,
  manifest: Manifest,
  keys: ComputedKeys,
  { name, columns }: { name: string; columns: readonly number[] },
): TablePlan {
  const pruned = spec.tables.find((candidate) => candidate.name === name)!;
  const { dim, defaultRow } = tableOf(manifest, name);
  for (const embedding of spec.embeddings) {
    if (embedding.table === name && embedding.dim !== dim) refuseDim(embedding.dim);
  }
  if (pruned.dim !== dim) refuseDim(pruned.dim);
  const wrapRows = keys.wrapsIds(name) ? pruned.rows : 0;
  return { name, dim, columns: Int32Array.from(columns), wrapRows, defaultRow };

  function refuseDim(other: number): never {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${manifest.bundle} ${manifest.version}: table ${name} has dim ${dim} in manifest.json and ${other} in slots.json`,
    );
  }
}

function checkShape(embedding: EmbeddingInput, keyNum: number, source: string): number[] {
  const { input, shape, dim } = embedding;
  const [batch = 0, ...rest] = shape;
  if (rest.includes(-1) || embedding.lodLevel === 1) {
    throw new CubeError(
      'UNSUPPORTED',
      `${source}: input ${input} of shape [${shape.join(', ')}] takes sequences of any length, which would be padded ` +
        'in a batch; export the model for a fixed length, or pool in it',
    );
  }
  const elements = rest.reduce((product, size) => product * size, 1);
  if (batch === 0 || elements !== keyNum * dim || keyNum === 0) {
    throw new CubeError(
      'UNSUPPORTED',
      `${source}: input ${input} of shape [${shape.join(', ')}] does not take the rows of ${keyNum} keys ` +
        `of dim ${dim}, batch (-1) first`,
    );
  }
  return rest;
}

/** @throws CubeError INVALID_ARGUMENT when the graph has inputs that nothing fills, or lacks what the plan names */
export function checkGraph(
  plan: GraphPlan,
  inputs: readonly OnnxPort[],
  outputs: readonly OnnxPort[],
): void {
  const filled = new Set(plan.embeddings.map(({ input }) => input));
  for (const { input } of plan.dense) filled.add(input);
  const ids = new Set(plan.ids.map(({ input }) => input));
  for (const { name, dtype } of inputs) {
    if (ids.delete(name)) {
      if (/^int(32|64)$/.test(dtype)) continue;
      refuseGraph(plan, `the graph takes the ids ${name} as ${dtype}, not as integers`);
    }
    if (!filled.delete(name)) {
      refuseGraph(plan, `the graph's input ${name} is not in slots.json: nothing would fill it`);
    }
    if (!FLOATS.test(dtype)) {
      refuseGraph(plan, `the graph's input ${name} is ${dtype}, not float32 or float16`);
    }
  }
  for (const name of [...filled, ...ids]) {
    const known = inputs.map((port) => port.name).join(', ');
    refuseGraph(plan, `slots.json names the input ${name}, the graph has only: ${known}`);
  }
  const click = outputs.find(({ name }) => name === plan.clickOutput);
  if (click === undefined) {
    const known = outputs.map((port) => port.name).join(', ');
    refuseGraph(plan, `slots.json names the output ${plan.clickOutput}, the graph has: ${known}`);
  }
  if (!FLOATS.test(click.dtype)) {
    refuseGraph(plan, `the graph's output ${click.name} is ${click.dtype}, not float32 or float16`);
  }
}

export function refuseGraph(plan: GraphPlan, what: string): never {
  throw new CubeError('INVALID_ARGUMENT', `${plan.source}: ${what}`);
}
