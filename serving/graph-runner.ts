/**
 * One graph in memory, run on slabs: gathers each input from distinct rows and index into its own plain buffer, runs, and
 * writes the click output back into the slab. Lives in a model worker, because a run blocks its thread.
 */
import { OnnxModel, type OnnxTensor } from '../lib/platform/onnx.ts';
import { type SlabTable, type SlabViews, slabBytes, viewSlab } from './batch-slab.ts';
import {
  BATCH_ROWS_MAX,
  checkGraph,
  type EmbeddingPlan,
  type GraphPlan,
  refuseGraph,
} from './graph-plan.ts';

/** Up to this dim an element loop copies a row faster than `set(subarray)`. */
const LOOP_COPY_DIM = 16;

export class GraphRunner {
  readonly #model: OnnxModel;
  readonly #plan: GraphPlan;
  /** Input buffers of BATCH_ROWS_MAX rows, one for each embedding input. */
  readonly #buffers: readonly Float32Array[];
  #outputNum = 0;

  private constructor(model: OnnxModel, plan: GraphPlan) {
    this.#model = model;
    this.#plan = plan;
    this.#buffers = plan.embeddings.map(
      ({ table, columns }) =>
        new Float32Array(BATCH_ROWS_MAX * columns.length * plan.tables[table]!.dim),
    );
  }

  /** Loads, checks the graph against the plan and runs it on zeros: one row, then a full batch. */
  static async load(
    graph: { model: Uint8Array; data: ReadonlyMap<string, Uint8Array> },
    plan: GraphPlan,
  ): Promise<GraphRunner> {
    const source = `${plan.source}: model.onnx`;
    const model = await OnnxModel.load(graph.model, { source, externalData: graph.data });
    try {
      checkGraph(plan, model.inputs, model.outputs);
      const runner = new GraphRunner(model, plan);
      await runner.#warmUp();
      return runner;
    } catch (error) {
      await model.release();
      throw error;
    }
  }

  /** Values of the click output in a row. */
  get outputNum(): number {
    return this.#outputNum;
  }

  /** Fills the slab's output for its first `rowCount` rows. */
  async run(slab: ArrayBuffer, rowCount: number): Promise<void> {
    const views = viewSlab(this.#plan, this.#outputNum, slab);
    const data = await this.#runViews(views, rowCount);
    if (data.length !== rowCount * this.#outputNum) this.#refuseOutput(rowCount, data.length);
    views.output.set(data);
  }

  async release(): Promise<void> {
    await this.#model.release();
  }

  async #warmUp(): Promise<void> {
    const views = viewSlab(this.#plan, 0, new ArrayBuffer(slabBytes(this.#plan, 0)));
    this.#outputNum = (await this.#runViews(views, 1)).length;
    const full = await this.#runViews(views, BATCH_ROWS_MAX);
    if (full.length !== BATCH_ROWS_MAX * this.#outputNum) {
      this.#refuseOutput(BATCH_ROWS_MAX, full.length);
    }
    const { clickColumn, clickOutput } = this.#plan;
    if (clickColumn >= this.#outputNum) {
      const width = `${this.#outputNum} values in a row`;
      refuseGraph(this.#plan, `click column ${clickColumn} of ${clickOutput}, which has ${width}`);
    }
  }

  async #runViews(views: SlabViews, rowCount: number): Promise<Float32Array> {
    const feeds: Record<string, OnnxTensor> = {};
    this.#plan.embeddings.forEach((embedding, i) => {
      const { dim } = this.#plan.tables[embedding.table]!;
      const { columns } = this.#plan.tables[embedding.table]!;
      const buffer = this.#buffers[i]!;
      const source = views.tables[embedding.table]!;
      gather(source, columns.length, embedding, { dim, rowCount, target: buffer });
      feeds[embedding.input] = {
        dtype: 'float32',
        data: buffer.subarray(0, rowCount * embedding.columns.length * dim),
        dims: [rowCount, ...embedding.shape],
      };
    });
    this.#plan.ids.forEach(({ input, slots }, i) => {
      feeds[input] = this.#idsTensor(
        input,
        views.ids[i]!.subarray(0, rowCount * slots.length),
        rowCount,
      );
    });
    const { denseInput, denseNum } = this.#plan;
    if (denseInput !== undefined) {
      const data = views.dense.subarray(0, rowCount * denseNum);
      feeds[denseInput] = { dtype: 'float32', data, dims: [rowCount, denseNum] };
    }
    const outputs = await this.#model.run(feeds);
    return outputs[this.#plan.clickOutput]!.data as Float32Array;
  }

  /** As the graph declares it: [batch] or [batch, columns], of 32 or 64 bits. */
  #idsTensor(input: string, ids: BigInt64Array, rowCount: number): OnnxTensor {
    const { shape, dtype } = this.#model.inputs.find(({ name }) => name === input)!;
    const dims = shape.length === 1 ? [rowCount] : [rowCount, ids.length / rowCount];
    for (let axis = 2; axis < shape.length; axis++) dims.push(1);
    if (dtype === 'int64') return { dtype, data: ids, dims };
    return {
      dtype: 'int32',
      data: Int32Array.from(ids, (id) => Number(BigInt.asIntN(32, id))),
      dims,
    };
  }

  #refuseOutput(rowCount: number, values: number): never {
    refuseGraph(
      this.#plan,
      `output ${this.#plan.clickOutput} has ${values} values for ${rowCount} rows; it must be one line a row`,
    );
  }
}

/** Copies, for each row and each column of one input, its row of the table. */
function gather(
  source: SlabTable,
  tableColumns: number,
  { columns }: EmbeddingPlan,
  batch: { dim: number; rowCount: number; target: Float32Array },
): void {
  const { index, rows } = source;
  const { dim, rowCount, target } = batch;
  const columnNum = columns.length;
  const inLoop = dim <= LOOP_COPY_DIM;
  let to = 0;
  for (let row = 0; row < rowCount; row++) {
    const rowIndex = row * tableColumns;
    for (let c = 0; c < columnNum; c++) {
      let from = index[rowIndex + columns[c]!]! * dim;
      if (inLoop) {
        const end = from + dim;
        while (from < end) target[to++] = rows[from++]!;
      } else {
        target.set(rows.subarray(from, from + dim), to);
        to += dim;
      }
    }
  }
}
