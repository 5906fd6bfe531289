/**
 * How a request becomes the inputs of one graph: computed once from the slot spec and the manifest, checked against the
 * graph itself, and handed to the workers as plain data. Nothing about a model is known anywhere else.
 */
import { CubeError } from '../lib/core/errors.ts';
import { type Manifest, tableOf } from '../lib/core/manifest.ts';
import type { EmbeddingInput, FeatureSpec, SlotSpec } from '../lib/core/slots.ts';
import type { OnnxPort } from '../lib/platform/onnx.ts';
import type { ComputedKeys } from './computed-keys.ts';

/** Rows of a request are looked up and run in batches of at most this many: the knee of the graph's throughput. */
export const BATCH_ROWS_MAX = 64;

/** One table that the graph needs, and which features of a row are looked up in it. */
interface TablePlan {
  readonly name: string;
  readonly dim: number;
  /** Positions among a row's keys; each once, even when several inputs of the graph take it. */
  readonly columns: Int32Array;
  /** Rows of the table in the graph, where ids below zero count from its end; 0: keys are taken as they are. */
  readonly wrapRows: number;
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
  readonly denseInput: string | undefined;
  readonly denseNum: number;
  readonly clickOutput: string;
  readonly clickColumn: number;
}

/** @throws CubeError INVALID_ARGUMENT or UNSUPPORTED when slot spec and manifest do not make a model that can answer */
export function planGraph(spec: SlotSpec, manifest: Manifest, keys: ComputedKeys): GraphPlan {
  const source = `${manifest.bundle} ${manifest.version}`;
  const features = requireFeatures(spec, source);
  const slotPositions = new Map(features.slots.map((slot, i) => [slot.name, i]));
  const columnsOf = new Map<string, number[]>();
  for (const embedding of spec.embeddings) {
    const columns = columnsOf.get(embedding.table) ?? [];
    columnsOf.set(embedding.table, columns);
    for (const position of keys.positionsOf(embedding)) {
      if (!columns.includes(position)) columns.push(position);
    }
  }
  const names = [...columnsOf.keys()];
  return {
    source,
    slotNum: features.slots.length,
    keyNum: keys.keyNum,
    ids: (spec.ids ?? [])
      .filter(({ kept, input }) => kept && input !== features.dense?.input)
      .map(({ input, slots }) => ({
        input,
        slots: Int32Array.from(slots, (slot) => slotPositions.get(slot)!),
      })),
    tables: names.map((name) =>
      planTable(spec, manifest, keys, { name, columns: columnsOf.get(name)! }),
    ),
    embeddings: spec.embeddings.map((embedding) => ({
      input: embedding.input,
      table: names.indexOf(embedding.table),
      columns: Int32Array.from(keys.positionsOf(embedding), (position) =>
        columnsOf.get(embedding.table)!.indexOf(position),
      ),
      shape: checkShape(embedding, keys.positionsOf(embedding).length, source),
    })),
    denseInput: features.dense?.input,
    denseNum: features.dense?.features.length ?? 0,
    clickOutput: features.click.output,
    clickColumn: features.click.column,
  };
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
  const { dim, dtype } = tableOf(manifest, name);
  if (dtype !== 'f32') {
    throw new CubeError(
      'UNSUPPORTED',
      `${manifest.bundle} ${manifest.version}: table ${name} has rows of ${dtype}; this build serves f32`,
    );
  }
  for (const embedding of spec.embeddings) {
    if (embedding.table === name && embedding.dim !== dim) refuseDim(embedding.dim);
  }
  if (pruned.dim !== dim) refuseDim(pruned.dim);
  const wrapRows = keys.wrapsIds(name) ? pruned.rows : 0;
  return { name, dim, columns: Int32Array.from(columns), wrapRows };

  function refuseDim(other: number): never {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${manifest.bundle} ${manifest.version}: table ${name} has dim ${dim} in manifest.json and ${other} in slots.json`,
    );
  }
}

function checkShape(embedding: EmbeddingInput, keyNum: number, source: string): number[] {
  const { input, shape, dim, bags } = embedding;
  if (bags !== undefined) {
    throw new CubeError(
      'UNSUPPORTED',
      `${source}: input ${input} takes the ${bags.pooling} of bags of ids, which this build does not serve`,
    );
  }
  const [batch, ...rest] = shape;
  const elements = rest.reduce((product, size) => product * size, 1);
  if (batch !== -1 || elements !== keyNum * dim || keyNum === 0) {
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
  if (plan.denseInput !== undefined) filled.add(plan.denseInput);
  const ids = new Set(plan.ids.map(({ input }) => input));
  for (const { name, dtype } of inputs) {
    if (ids.delete(name)) {
      if (/^int(32|64)$/.test(dtype)) continue;
      refuseGraph(plan, `the graph takes the ids ${name} as ${dtype}, not as integers`);
    }
    if (!filled.delete(name)) {
      refuseGraph(plan, `the graph's input ${name} is not in slots.json: nothing would fill it`);
    }
    if (dtype !== 'float32')
      refuseGraph(plan, `the graph's input ${name} is ${dtype}, not float32`);
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
  if (click.dtype !== 'float32') {
    refuseGraph(plan, `the graph's output ${click.name} is ${click.dtype}, not float32`);
  }
}

export function refuseGraph(plan: GraphPlan, what: string): never {
  throw new CubeError('INVALID_ARGUMENT', `${plan.source}: ${what}`);
}
