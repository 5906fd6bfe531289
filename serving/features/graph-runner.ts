/**
 * One graph in memory, run on batches: gathers each input from distinct rows and index into its own plain buffer, runs, and
 * copies the float outputs out. Lives in a model worker, because a run blocks its thread.
 */
import { f16ToF32Bits } from '../../lib/core/half-floats.ts';
import { OnnxModel, type OnnxTensor } from '../../lib/platform/onnx.ts';
import type { OutputShape } from '../engine/batch-slab.ts';
import { checkGraph, type GraphPlan, refuseGraph } from './graph-plan.ts';
import { type GraphInputs, InputTensors } from './input-tensors.ts';

/** The outputs of floats, by name. */
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

  /** Loads, checks the graph against the plan and runs it on zeros: one row, then a full batch. */
  static async load(
    graph: { model: Uint8Array; data: ReadonlyMap<string, Uint8Array> },
    plan: GraphPlan,
    rowsMax: number,
  ): Promise<GraphRunner> {
    const source = `${plan.source}: model.onnx`;
    const model = await OnnxModel.load(graph.model, { source, externalData: graph.data });
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

  /** The graph's outputs of floats, one line a row: the click output first. */
  get outputs(): readonly OutputShape[] {
    return this.#outputs;
  }

  /** @param targets one for each of `outputs`, filled for the first `rowCount` rows */
  async run(
    inputs: GraphInputs,
    rowCount: number,
    targets: readonly Float32Array[],
  ): Promise<void> {
    const results = await this.#runInputs(inputs, rowCount);
    this.#outputs.forEach(({ name, width }, i) => {
      const data = results.get(name)!;
      if (data.length !== rowCount * width) this.#refuseOutput(name, rowCount, data.length);
      targets[i]!.set(data);
    });
  }

  async release(): Promise<void> {
    await this.#model.release();
  }

  /** Runs on zeros, one row and then a full batch, which show what the outputs are like. */
  async #warmUp(): Promise<void> {
    const inputs = this.#zeros();
    const one = await this.#runInputs(inputs, 1);
    const full = await this.#runInputs(inputs, this.#rowsMax);
    const { clickColumn, clickOutput } = this.#plan;
    const width = one.get(clickOutput)!.length;
    const inFull = full.get(clickOutput)!.length;
    if (inFull !== this.#rowsMax * width) this.#refuseOutput(clickOutput, this.#rowsMax, inFull);
    if (clickColumn >= width) {
      const has = `${width} values in a row`;
      refuseGraph(this.#plan, `click column ${clickColumn} of ${clickOutput}, which has ${has}`);
    }
    const others = [...one.keys()].filter((name) => {
      const isLines = full.get(name)!.length === this.#rowsMax * one.get(name)!.length;
      return name !== clickOutput && isLines;
    });
    this.#outputs = [clickOutput, ...others].map((name) => ({
      ...{ name, width: one.get(name)!.length },
    }));
  }

  #zeros(): GraphInputs {
    const { ids, denseNum, tables } = this.#plan;
    const rowsMax = this.#rowsMax;
    return {
      ids: ids.map(({ slots }) => new BigInt64Array(rowsMax * slots.length)),
      dense: new Float32Array(rowsMax * denseNum),
      tensors: [],
      tables: tables.map(({ columns, dim }) => ({
        index: new Int32Array(rowsMax * columns.length),
        ends: new Uint32Array(rowsMax * columns.length),
        rows: new Float32Array(dim),
      })),
    };
  }

  async #runInputs(inputs: GraphInputs, rowCount: number): Promise<Results> {
    const runs: Readonly<Record<string, OnnxTensor>>[] = [];
    for (const feed of this.#tensors.feeds(inputs, rowCount)) {
      runs.push(await this.#model.run(feed));
    }
    const results = new Map<string, Float32Array>();
    for (const { name, dtype } of this.#model.outputs) {
      if (dtype !== 'float32' && dtype !== 'float16') continue;
      const pieces = runs.map((run) => asFloats(run[name]!));
      results.set(name, pieces.length === 1 ? pieces[0]! : joined(pieces));
    }
    const { batch } = this.#plan;
    if (batch === 0) return results;
    // The last run's surplus rows go.
    for (const [name, data] of results) {
      const lines = data.subarray(0, (data.length * rowCount) / (runs.length * batch));
      results.set(name, lines);
    }
    return results;
  }

  #refuseOutput(name: string, rowCount: number, values: number): never {
    refuseGraph(
      this.#plan,
      `output ${name} has ${values} values for ${rowCount} rows; it must be one line a row`,
    );
  }
}

function asFloats({ dtype, data }: OnnxTensor): Float32Array {
  if (dtype !== 'float16') return data as Float32Array;
  const bits = Uint32Array.from(data as Uint16Array, f16ToF32Bits);
  return new Float32Array(bits.buffer);
}

function joined(pieces: readonly Float32Array[]): Float32Array {
  const all = new Float32Array(pieces.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}
