/**
 * The plan of one graph: how the rows of a request become its inputs. It is computed once from the
 * slot spec and the manifest, checked against the graph, and passed to the workers as plain data.
 * No other file knows anything about a particular model.
 */
import { CubeError, requireDefined } from '../core/errors.ts';
import { getTable, type Manifest } from '../core/manifest.ts';
import type {
  DenseInput,
  EmbeddingInput,
  EmptyBag,
  FeatureSpec,
  Pooling,
  SlotSpec,
} from '../core/slots.ts';
import type { OnnxValueInfo } from '../platform/onnx.ts';
import type { ComputedKeys } from './computed-keys.ts';
import { findBagOfIds } from './feature-checks.ts';

/** A graph that was exported for a larger fixed batch would mostly run on padding rows. */
const FIXED_BATCH_MAX = 1024;

/**
 * Types of the inputs for rows and dense values. Doubles are not supported, because rows have
 * single precision.
 */
const FLOAT_DTYPE = /^float(32|16)$/;

/** One table of the graph, and the keys of a row that are looked up in it. */
interface TablePlan {
  readonly name: string;
  readonly dim: number;
  /** Positions in a row's keys; each once, even when several graph inputs take it. */
  readonly columns: Int32Array;
  /** Rows of the table when negative ids count from its end; 0 when keys are used unchanged. */
  readonly wrapRows: number;
  /** Used for an empty bag when its slot says so. */
  readonly defaultRow: readonly number[];
}

/** How the rows of a bag's values are pooled to one. */
export interface ColumnPooling {
  readonly pooling: Pooling;
  readonly emptyBag: EmptyBag;
}

/** One graph input of embeddings. */
export interface EmbeddingPlan {
  readonly input: string;
  /** Index in `tables`. */
  readonly table: number;
  /** Positions in the columns of that table. */
  readonly columns: Int32Array;
  /** The tensor's dims after the batch. */
  readonly shape: readonly number[];
  /**
   * Present when some columns have bags: the pooling of each column, undefined for a single value.
   */
  readonly poolings?: readonly (ColumnPooling | undefined)[];
  /** Whether it has a row for each user of the batch, not for each row (split-users.ts). */
  readonly isUser?: boolean;
}

/** How a graph takes the users of a batch. */
export interface UsersPlan {
  /** Input of int64 [rows] that takes the user of each row. */
  readonly input: string;
  /** Positions of the user-side keys in a row's keys. */
  readonly positions: Int32Array;
}

/** One graph input of dense features. */
export interface DensePlan {
  readonly input: string;
  /** Positions in a row's dense features. */
  readonly columns: Int32Array;
}

/** A float output of the graph. */
export interface OutputShape {
  readonly name: string;
  /** Values in a row. */
  readonly width: number;
}

export interface GraphPlan {
  /** Names the model in errors. */
  readonly source: string;
  readonly slotNum: number;
  /** Keys in a row: those of the slots, then the computed ones. */
  readonly keyNum: number;
  /** Graph inputs that take the ids themselves, with the slot of each column. */
  readonly ids: readonly { readonly input: string; readonly slots: Int32Array }[];
  readonly tables: readonly TablePlan[];
  readonly embeddings: readonly EmbeddingPlan[];
  readonly dense: readonly DensePlan[];
  readonly denseNum: number;
  /** Rows of a batch when the graph was exported for a fixed number; 0 for any number. */
  readonly fixedBatch: number;
  /** Whether some slots have any number of values. */
  readonly hasBags: boolean;
  readonly clickOutput: string;
  readonly clickColumn: number;
  /** Present when the graph computes its user side once for each user of a batch. */
  readonly users?: UsersPlan;
}

/**
 * @throws CubeError INVALID_ARGUMENT or UNSUPPORTED when slot spec and manifest do not fit, or
 *   cannot be served
 */
export function planGraph(spec: SlotSpec, manifest: Manifest, keys: ComputedKeys): GraphPlan {
  const source = `${manifest.bundle} ${manifest.version}`;
  const features = requireFeatures(spec, source);
  const tableColumns = collectTableColumns(spec, keys);
  const names = [...tableColumns.keys()];
  return {
    source,
    slotNum: features.slots.length,
    keyNum: keys.keyNum,
    ids: planIds(spec, features, source),
    tables: Array.from(tableColumns, ([name, columns]) =>
      planTable(spec, manifest, keys, { name, columns }),
    ),
    embeddings: spec.embeddings.map((embedding) =>
      planEmbedding(embedding, {
        source,
        features,
        table: names.indexOf(embedding.table),
        positions: keys.getPositions(embedding),
        columns: tableColumns.get(embedding.table) ?? [],
      }),
    ),
    dense: planDense(features.dense),
    denseNum: features.dense?.features.length ?? 0,
    fixedBatch: readFixedBatch(spec, source),
    hasBags: features.slots.some(({ pooling }) => pooling !== undefined),
    clickOutput: features.click.output,
    clickColumn: features.click.column,
  };
}

/** The positions of the keys that are looked up in each table. */
function collectTableColumns(spec: SlotSpec, keys: ComputedKeys): Map<string, number[]> {
  const columnsByName = new Map<string, number[]>();
  for (const embedding of spec.embeddings) {
    const columns = columnsByName.get(embedding.table) ?? [];
    columnsByName.set(embedding.table, columns);
    for (const position of keys.getPositions(embedding)) {
      if (!columns.includes(position)) columns.push(position);
    }
  }
  return columnsByName;
}

function planIds(spec: SlotSpec, { slots, dense }: FeatureSpec, source: string): GraphPlan['ids'] {
  const positions = new Map(slots.map(({ name }, i) => [name, i]));
  const kept = (spec.ids ?? []).filter((ids) => ids.kept && ids.input !== dense?.input);
  const problem = findBagOfIds({ slots, dense }, spec.ids);
  if (problem !== undefined) throw new CubeError('UNSUPPORTED', `${source}: ${problem}`);
  return kept.map(({ input, slots: names }) => {
    const columns = Int32Array.from(names, (slot) =>
      requireDefined(positions.get(slot), `slot ${slot}`),
    );
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

/** The positions of the features of each dense input, in their order. */
function planDense(dense: DenseInput | undefined): DensePlan[] {
  const columnsByName = new Map<string, number[]>();
  dense?.features.forEach(({ input = dense.input }, i) => {
    columnsByName.set(input, [...(columnsByName.get(input) ?? []), i]);
  });
  return Array.from(columnsByName, ([input, columns]) => ({
    input,
    columns: Int32Array.from(columns),
  }));
}

/**
 * The fixed batch that the graph was exported for, the same for all inputs; 0 for any number of
 * rows.
 */
function readFixedBatch({ embeddings }: SlotSpec, source: string): number {
  const batches = new Set(embeddings.map(({ shape }) => Math.max(shape[0] ?? 0, 0)));
  const [batch = 0] = batches;
  if (batches.size <= 1 && batch <= FIXED_BATCH_MAX) return batch;
  throw new CubeError(
    'UNSUPPORTED',
    `${source}: the graph takes a fixed batch of ${[...batches].join(' and ')} rows; ` +
      `only one fixed ` +
      `batch of at most ${FIXED_BATCH_MAX} rows is supported. Export it with a dynamic batch`,
  );
}

function requireFeatures(spec: SlotSpec, source: string): FeatureSpec {
  if (spec.features !== undefined) return spec.features;
  throw new CubeError(
    'UNSUPPORTED',
    `${source}: slots.json has no features, so keys cannot be computed; prune the model with ` +
      '--features features.json',
  );
}

function planTable(
  spec: SlotSpec,
  manifest: Manifest,
  keys: ComputedKeys,
  { name, columns }: { name: string; columns: readonly number[] },
): TablePlan {
  const pruned = spec.tables.find((candidate) => candidate.name === name);
  const { dim, defaultRow } = getTable(manifest, name);
  for (const embedding of spec.embeddings) {
    if (embedding.table === name && embedding.dim !== dim) rejectDim(embedding.dim);
  }
  if (pruned === undefined || pruned.dim !== dim) rejectDim(pruned?.dim ?? 0);
  const wrapRows = keys.wrapsNegativeIds(name) ? pruned.rows : 0;
  return { name, dim, columns: Int32Array.from(columns), wrapRows, defaultRow };

  function rejectDim(other: number): never {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${manifest.bundle} ${manifest.version}: table ${name} has dim ${dim} in manifest.json and ` +
        `${other} in slots.json; build the version again`,
    );
  }
}

function checkShape(embedding: EmbeddingInput, keyNum: number, source: string): number[] {
  const { input, shape, dim } = embedding;
  const [batch = 0, ...rest] = shape;
  if (rest.includes(-1) || embedding.lodLevel === 1) {
    throw new CubeError(
      'UNSUPPORTED',
      `${source}: input ${input} of shape [${shape.join(', ')}] ` +
        `takes sequences of any length, which ` +
        'batches do not support; export the model for a fixed length, or pool inside the graph',
    );
  }
  const elements = rest.reduce((product, size) => product * size, 1);
  if (batch === 0 || elements !== keyNum * dim || keyNum === 0) {
    throw new CubeError(
      'UNSUPPORTED',
      `${source}: input ${input} has the shape [${shape.join(', ')}], ` +
        `expected a batch (-1) of rows of ` +
        `${keyNum} keys of dim ${dim}`,
    );
  }
  return rest;
}

/**
 * @throws CubeError INVALID_ARGUMENT when the graph has inputs that the plan does not fill, or
 *   lacks inputs or outputs of the plan
 */
export function checkGraph(
  plan: GraphPlan,
  inputs: readonly OnnxValueInfo[],
  outputs: readonly OnnxValueInfo[],
): void {
  const filled = new Set(plan.embeddings.map(({ input }) => input));
  for (const { input } of plan.dense) filled.add(input);
  const ids = new Set(plan.ids.map(({ input }) => input));
  if (plan.users !== undefined) ids.add(plan.users.input);
  for (const { name, dtype } of inputs) {
    if (ids.delete(name)) {
      if (/^int(32|64)$/.test(dtype)) continue;
      rejectGraph(plan, `the graph's input ${name} takes ids as ${dtype}, expected int32 or int64`);
    }
    if (!filled.delete(name)) {
      rejectGraph(plan, `the graph's input ${name} is not in slots.json, so it has no values`);
    }
    if (!FLOAT_DTYPE.test(dtype)) {
      rejectGraph(plan, `the graph's input ${name} is ${dtype}, expected float32 or float16`);
    }
  }
  for (const name of [...filled, ...ids]) {
    const known = inputs.map((port) => port.name).join(', ');
    rejectGraph(plan, `slots.json names the input ${name}, but the graph has only: ${known}`);
  }
  const click = outputs.find(({ name }) => name === plan.clickOutput);
  if (click === undefined) {
    const known = outputs.map((port) => port.name).join(', ');
    rejectGraph(
      plan,
      `slots.json names the output ${plan.clickOutput}, but the graph has: ${known}`,
    );
  }
  if (!FLOAT_DTYPE.test(click.dtype)) {
    rejectGraph(
      plan,
      `the graph's output ${click.name} is ${click.dtype}, expected float32 or float16`,
    );
  }
}

export function rejectGraph(plan: GraphPlan, problem: string): never {
  throw new CubeError('INVALID_ARGUMENT', `${plan.source}: ${problem}`);
}
