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
import type { NamedTensor } from '../../lib/core/tensor.ts';
import { checkGraphInputs } from './graph-request.ts';
import type { GraphCall, GraphPrediction, LoadedGraph } from './loaded-graph.ts';
import type { PredictOptions } from './prediction.ts';
import type { TensorModel } from './tensor-model.ts';

export interface Declaration {
  /** Shapes include the batch. */
  readonly signature: GraphSignature;
  /** Dimensions in the graph, without the batch, of the tensors that have others in requests. */
  readonly reshapes: ReadonlyMap<string, readonly number[]>;
  readonly labels: ReadonlyMap<string, readonly string[]>;
  /** 0 is the most urgent; undefined: the default of the engine. */
  readonly defaultPriority: number | undefined;
  /** Answers leave in the order in which the requests came. */
  readonly preserveOrdering: boolean;
}

export class DeclaredGraph implements TensorModel {
  readonly signature: GraphSignature;
  readonly labels: ReadonlyMap<string, readonly string[]>;
  readonly #graph: LoadedGraph;
  readonly #declaration: Declaration;
  /** Ends when the last request has ended. */
  #lastEnd: Promise<unknown> = Promise.resolve();

  constructor(graph: LoadedGraph, declaration: Declaration) {
    this.#graph = graph;
    this.#declaration = declaration;
    this.signature = declaration.signature;
    this.labels = declaration.labels;
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
    const { defaultPriority, preserveOrdering } = this.#declaration;
    const priority = options.priority ?? defaultPriority;
    const run = this.#run(call, priority === undefined ? options : { ...options, priority });
    if (!preserveOrdering) return run;
    const before = this.#lastEnd;
    this.#lastEnd = Promise.allSettled([before, run]);
    await before;
    return run;
  }

  async #run(call: GraphCall, options: PredictOptions): Promise<GraphPrediction> {
    checkGraphInputs(call.inputs, this.signature, this.isBatched);
    const { reshapes } = this.#declaration;
    const names = this.signature.outputs.map(({ name }) => name);
    const prediction = await this.#graph.predict(
      {
        inputs: call.inputs.map((tensor) => this.#toGraph(tensor)),
        outputs: call.outputs.length > 0 ? call.outputs : names,
      },
      options,
    );
    if (reshapes.size === 0) return prediction;
    return { ...prediction, outputs: prediction.outputs.map((tensor) => this.#fromGraph(tensor)) };
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
