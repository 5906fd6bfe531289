/**
 * Runs one graph on batches: fills the graph's inputs, runs it, and copies its float outputs. It
 * lives in a model worker, because a run blocks its thread.
 */
import { requireDefined } from '../core/errors.ts';
import { f16ToF32Bits } from '../core/half-floats.ts';
import { OnnxModel, type OnnxTensor, type SessionTuning } from '../platform/onnx.ts';
import { checkGraph, type GraphPlan, type OutputShape, rejectGraph } from './graph-plan.ts';
import { type GraphInputs, InputTensors } from './input-tensors.ts';

/** The float outputs by name. */
type Results = ReadonlyMap<string, Float32Array>;

export class GraphRunner {
  readonly #model: OnnxModel;
  readonly #plan: GraphPlan;
  readonly #rowsMax: number;
  readonly #tensors: InputTensors;
  #outputs: readonly OutputShape[] = [];

  private constructor(model: OnnxModel, plan: GraphPlan, rowsMax: number) {
    this.#model = model;
    this.#plan = plan;
    this.#rowsMax = rowsMax;
    this.#tensors = new InputTensors(plan, model.inputs, rowsMax);
  }

  /**
   * Loads the graph, checks it against the plan, and runs it on zeros: one row, then a full batch.
   */
  static async load(
    graph: { model: Uint8Array; data: ReadonlyMap<string, Uint8Array> },
    plan: GraphPlan,
    rowsMax: number,
    tuning: SessionTuning = {},
  ): Promise<GraphRunner> {
    const source = `${plan.source}: model.onnx`;
    const model = await OnnxModel.load(graph.model, {
      ...tuning,
      source,
      externalData: graph.data,
    });
    try {
      checkGraph(plan, model.inputs, model.outputs);
      const runner = new GraphRunner(model, plan, rowsMax);
      await runner.#warmUp();
      return runner;
    } catch (error) {
      await model.release();
      throw error;
    }
  }

  /** The float outputs that have values for each row, the click output first. */
  get outputs(): readonly OutputShape[] {
    return this.#outputs;
  }

  /** @param targets one for each of `outputs`; the first `rowCount` rows are filled */
  async run(
    inputs: GraphInputs,
    rowCount: number,
    targets: readonly Float32Array[],
  ): Promise<void> {
    const results = await this.#runInputs(inputs, rowCount);
    this.#outputs.forEach(({ name, width }, i) => {
      const data = results.get(name);
      if (data?.length !== rowCount * width) {
        this.#rejectOutput(name, rowCount, data?.length ?? 0);
      }
      targets[i]!.set(data);
    });
  }

  async release(): Promise<void> {
    await this.#model.release();
  }

  /** Runs one row and then a full batch of zeros, which shows the widths of the outputs. */
  async #warmUp(): Promise<void> {
    const inputs = this.#makeZeros();
    const one = await this.#runInputs(inputs, 1);
    const full = await this.#runInputs(inputs, this.#rowsMax);
    const { clickColumn, clickOutput } = this.#plan;
    const width = one.get(clickOutput)?.length ?? 0;
    const fullLength = full.get(clickOutput)?.length ?? 0;
    if (fullLength !== this.#rowsMax * width) {
      this.#rejectOutput(clickOutput, this.#rowsMax, fullLength);
    }
    if (clickColumn >= width) {
      rejectGraph(
        this.#plan,
        `the click column is ${clickColumn}, ` +
          `but the output ${clickOutput} has ${width} values in a row`,
      );
    }
    const others = Array.from(one, ([name, { length }]) => ({ name, width: length })).filter(
      (output) =>
        output.name !== clickOutput &&
        full.get(output.name)?.length === this.#rowsMax * output.width,
    );
    this.#outputs = [{ name: clickOutput, width }, ...others];
  }

  #makeZeros(): GraphInputs {
    const { ids, denseNum, tables, users } = this.#plan;
    const rowsMax = this.#rowsMax;
    const [firstRows, rowUsers] = [new Int32Array(1), new Int32Array(rowsMax)];
    return {
      ...(users === undefined ? {} : { users: { userCount: 1, firstRows, rowUsers } }),
      ids: ids.map(({ slots }) => new BigInt64Array(rowsMax * slots.length)),
      dense: new Float32Array(rowsMax * denseNum),
      readyTensors: [],
      tables: tables.map(({ columns, dim }) => ({
        index: new Int32Array(rowsMax * columns.length),
        ends: new Uint32Array(rowsMax * columns.length),
        rows: new Float32Array(dim),
      })),
    };
  }

  async #runInputs(inputs: GraphInputs, rowCount: number): Promise<Results> {
    const runs: Readonly<Record<string, OnnxTensor>>[] = [];
    for (const feed of this.#tensors.fillFeeds(inputs, rowCount)) {
      runs.push(await this.#model.run(feed));
    }
    const results = new Map<string, Float32Array>();
    for (const { name, dtype } of this.#model.outputs) {
      if (dtype !== 'float32' && dtype !== 'float16') continue;
      const [first, ...others] = runs.map((run) =>
        toFloats(requireDefined(run[name], `the output ${name}`)),
      );
      if (first === undefined) continue;
      results.set(name, others.length === 0 ? first : concatenate([first, ...others]));
    }
    const { fixedBatch } = this.#plan;
    if (fixedBatch === 0) return results;
    // Drops the padding rows of the last run.
    for (const [name, data] of results) {
      const rows = data.subarray(0, (data.length * rowCount) / (runs.length * fixedBatch));
      results.set(name, rows);
    }
    return results;
  }

  #rejectOutput(name: string, rowCount: number, values: number): never {
    rejectGraph(
      this.#plan,
      `the output ${name} has ${values} values for ${rowCount} rows; ` +
        `every row must have as many values`,
    );
  }
}

function toFloats({ dtype, data }: OnnxTensor): Float32Array {
  if (dtype !== 'float16') return data as Float32Array;
  const bits = Uint32Array.from(data as Uint16Array, f16ToF32Bits);
  return new Float32Array(bits.buffer);
}

function concatenate(pieces: readonly Float32Array[]): Float32Array {
  const all = new Float32Array(pieces.reduce((sum, { length }) => sum + length, 0));
  let offset = 0;
  for (const piece of pieces) {
    all.set(piece, offset);
    offset += piece.length;
  }
  return all;
}
