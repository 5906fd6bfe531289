/**
 * How a request becomes the inputs of one graph: computed once from the slot spec and the manifest, checked against the
 * graph itself, and handed to the workers as plain data. Nothing about a model is known anywhere else.
 */
import { CubeError } from '../lib/core/errors.ts';
import { type Manifest, tableOf } from '../lib/core/manifest.ts';
import type { EmbeddingInput, FeatureSpec, SlotSpec } from '../lib/core/slots.ts';
import type { OnnxPort } from '../lib/platform/onnx.ts';

/** Rows of a request are looked up and run in batches of at most this many: the knee of the graph's throughput. */
export const BATCH_ROWS_MAX = 64;

/** One table that the graph needs, and which features of a row are looked up in it. */
interface TablePlan {
  readonly name: string;
  readonly dim: number;
  /** Positions among a row's slots; each once, even when several inputs of the graph take it. */
  readonly columns: Int32Array;
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
  readonly tables: readonly TablePlan[];
  readonly embeddings: readonly EmbeddingPlan[];
  readonly denseInput: string | undefined;
  readonly denseNum: number;
  readonly clickOutput: string;
  readonly clickColumn: number;
}

/** @throws CubeError INVALID_ARGUMENT or UNSUPPORTED when slot spec and manifest do not make a model that can answer */
export function planGraph(spec: SlotSpec, manifest: Manifest): GraphPlan {
  const source = `${manifest.bundle} ${manifest.version}`;
  const features = requireFeatures(spec, source);
  const slotPositions = new Map(features.slots.map((slot, i) => [slot.name, i]));
  const columnsOf = new Map<string, number[]>();
  for (const embedding of spec.embeddings) {
    const columns = columnsOf.get(embedding.table) ?? [];
    columnsOf.set(embedding.table, columns);
    for (const slot of embedding.slots) {
      const position = slotPositions.get(slot)!;
      if (!columns.includes(position)) columns.push(position);
    }
  }
  const names = [...columnsOf.keys()];
  return {
    source,
    slotNum: features.slots.length,
    tables: names.map((name) => planTable(spec, manifest, name, columnsOf.get(name)!)),
    embeddings: spec.embeddings.map((embedding) => ({
      input: embedding.input,
      table: names.indexOf(embedding.table),
      columns: Int32Array.from(embedding.slots, (slot) =>
        columnsOf.get(embedding.table)!.indexOf(slotPositions.get(slot)!),
      ),
      shape: checkShape(embedding, source),
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
  name: string,
  columns: readonly number[],
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
  return { name, dim, columns: Int32Array.from(columns) };

  function refuseDim(other: number): never {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${manifest.bundle} ${manifest.version}: table ${name} has dim ${dim} in manifest.json and ${other} in slots.json`,
    );
  }
}

function checkShape({ input, shape, slots, dim }: EmbeddingInput, source: string): number[] {
  const [batch, ...rest] = shape;
  const elements = rest.reduce((product, size) => product * size, 1);
  if (batch !== -1 || elements !== slots.length * dim || slots.length === 0) {
    throw new CubeError(
      'UNSUPPORTED',
      `${source}: input ${input} of shape [${shape.join(', ')}] does not take the rows of ${slots.length} slots ` +
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
  for (const { name, dtype } of inputs) {
    if (!filled.delete(name)) {
      refuseGraph(plan, `the graph's input ${name} is not in slots.json: nothing would fill it`);
    }
    if (dtype !== 'float32')
      refuseGraph(plan, `the graph's input ${name} is ${dtype}, not float32`);
  }
  for (const name of filled) {
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
