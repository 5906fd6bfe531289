/**
 * A graph behind declared inputs and outputs: requests use the declared shapes, get the declared
 * outputs, and have the declared default priority. The elements of a tensor are the same in both
 * shapes.
 */
import {
  type GraphSignature,
  type TensorSpec,
  toWireShape,
} from '../../lib/core/graph-signature.ts';
import { concatRows, type NamedTensor, type Tensor } from '../../lib/core/tensor.ts';
import { checkGraphInputs } from './graph-request.ts';
import type { GraphCall, GraphPrediction, LoadedGraph } from './loaded-graph.ts';
import type { PredictOptions } from './prediction.ts';
import type { Scheduling, TensorModel } from './tensor-model.ts';

export interface Declaration {
  /** Shapes include the batch. */
  readonly signature: GraphSignature;
  /** Dimensions in the graph, without the batch, of the tensors that have others in requests. */
  readonly reshapes: ReadonlyMap<string, readonly number[]>;
  readonly labels: ReadonlyMap<string, readonly string[]>;
  /**
   * The values of inputs that a request may leave out, as the graph takes them; those of a graph
   * with a batch are one row.
   */
  readonly defaults: ReadonlyMap<string, Tensor>;
  readonly scheduling: Scheduling | undefined;
}

export class DeclaredGraph implements TensorModel {
  readonly signature: GraphSignature;
  readonly labels: ReadonlyMap<string, readonly string[]>;
  readonly #graph: LoadedGraph;
  readonly #declaration: Declaration;
  /** Settles when every request that is in a batch has been answered. */
  #lastEnd: Promise<unknown> = Promise.resolve();

  constructor(graph: LoadedGraph, declaration: Declaration) {
    this.#graph = graph;
    this.#declaration = declaration;
    this.signature = declaration.signature;
    this.labels = declaration.labels;
  }

  get limitsQueueTimeout(): boolean {
    return this.#declaration.scheduling?.hasQueuePolicy ?? false;
  }

  get declaredMaxBatch(): number {
    return this.#graph.batching.maxBatch;
  }

  get optionalInputs(): ReadonlyMap<string, unknown> {
    return this.#declaration.defaults;
  }

  get scheduling(): Scheduling | undefined {
    return this.#declaration.scheduling;
  }

  get name(): string {
    return this.#graph.name;
  }

  get version(): string {
    return this.#graph.version;
  }

  get isBatched(): boolean {
    return this.#graph.isBatched;
  }

  get batching(): LoadedGraph['batching'] {
    return this.#graph.batching;
  }

  get stats(): LoadedGraph['stats'] {
    return this.#graph.stats;
  }

  get batcher(): LoadedGraph['batcher'] {
    return this.#graph.batcher;
  }

  get pool(): LoadedGraph['pool'] {
    return this.#graph.pool;
  }

  async predict(call: GraphCall, options: PredictOptions): Promise<GraphPrediction> {
    const { scheduling } = this.#declaration;
    if (scheduling === undefined) return this.#run(call, options);
    const prioritized = { ...options, priority: choosePriority(options.priority, scheduling) };
    if (!scheduling.preserveOrdering) return this.#run(call, prioritized);
    return this.#runInOrder(call, prioritized);
  }

  /** Waits for the answers of the requests that entered batches before this one. */
  async #runInOrder(call: GraphCall, options: PredictOptions): Promise<GraphPrediction> {
    let before: Promise<unknown> | undefined;
    let end = (): void => undefined;
    const ended = new Promise<void>((resolve) => {
      end = resolve;
    });
    const onScheduled = (): void => {
      before = this.#lastEnd;
      this.#lastEnd = ended;
    };
    try {
      return await this.#run(call, { ...options, onScheduled });
    } finally {
      await before;
      end();
    }
  }

  async #run(call: GraphCall, options: PredictOptions): Promise<GraphPrediction> {
    const { reshapes } = this.#declaration;
    const defaults = this.#addDefaults(call);
    const names = this.signature.outputs.map(({ name }) => name);
    const prediction = await this.#graph.predict(
      {
        inputs: [...call.inputs.map((tensor) => this.#toGraph(tensor)), ...defaults],
        outputs: call.outputs.length > 0 ? call.outputs : names,
      },
      options,
    );
    if (reshapes.size === 0) return prediction;
    return { ...prediction, outputs: prediction.outputs.map((tensor) => this.#fromGraph(tensor)) };
  }

  /** @returns the inputs that the request leaves out @throws CubeError INVALID_ARGUMENT */
  #addDefaults({ inputs: given }: GraphCall): NamedTensor[] {
    const { defaults } = this.#declaration;
    const absent = [...defaults].filter(([name]) => given.every((tensor) => tensor.name !== name));
    const inputs = this.signature.inputs.filter(({ name }) =>
      absent.every(([other]) => other !== name),
    );
    const { rowCount } = checkGraphInputs(given, { ...this.signature, inputs }, this.isBatched);
    return absent.map(([name, tensor]) => {
      const rows = this.isBatched ? concatRows(new Array<Tensor>(rowCount).fill(tensor)) : tensor;
      return { name, ...rows };
    });
  }

  #toGraph(tensor: NamedTensor): NamedTensor {
    const dims = this.#declaration.reshapes.get(tensor.name);
    if (dims === undefined) return tensor;
    return this.#reshape(tensor, this.#getDims(this.signature.inputs, tensor.name), dims);
  }

  #fromGraph(tensor: NamedTensor): NamedTensor {
    const dims = this.#declaration.reshapes.get(tensor.name);
    if (dims === undefined) return tensor;
    return this.#reshape(tensor, dims, this.#getDims(this.signature.outputs, tensor.name));
  }

  /** Declared dimensions without the batch. */
  #getDims(specs: readonly TensorSpec[], name: string): readonly number[] {
    const dims = toWireShape(specs.find((spec) => spec.name === name)?.dims ?? []);
    return this.isBatched ? dims.slice(1) : dims;
  }

  /** Both shapes have as many sizes of -1, which correspond in their order. */
  #reshape(tensor: NamedTensor, from: readonly number[], to: readonly number[]): NamedTensor {
    const { shape } = tensor;
    const own = this.isBatched ? shape.slice(1) : shape;
    const open = own.filter((_, i) => from[i] === -1);
    const sizes = to.map((size) => (size === -1 ? (open.shift() ?? 1) : size));
    return { ...tensor, shape: this.isBatched ? [shape[0] ?? 1, ...sizes] : sizes };
  }

  checkAvailable(): Promise<void> {
    return this.#graph.checkAvailable();
  }

  acquire(): void {
    this.#graph.acquire();
  }

  release(): void {
    this.#graph.release();
  }

  close(): Promise<void> {
    return this.#graph.close();
  }

  retire(): Promise<void> {
    return this.#graph.retire();
  }
}

function choosePriority(
  priority: number | undefined,
  { priorityLevels, defaultPriorityLevel }: Scheduling,
): number {
  if (priority !== undefined && priority < priorityLevels) return priority;
  return Math.max(0, defaultPriorityLevel - 1);
}
