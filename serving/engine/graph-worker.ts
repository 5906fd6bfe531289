/**
 * A worker of a plain model: one thread with one instance of one graph. Batches arrive and leave in
 * memories that it shares with the main thread (graph-memory.ts). The graph is released by message,
 * after its batches: terminating a thread during a run would crash the process.
 */
import { parentPort, receiveMessageOnPort } from 'node:worker_threads';
import { requireDefined } from '../../lib/core/errors.ts';
import type { TensorSpec } from '../../lib/core/graph-signature.ts';
import type { NamedTensor } from '../../lib/core/tensor.ts';
import {
  type AnyOnnxTensor,
  OnnxModel,
  type OnnxValueInfo,
  type SessionTuning,
} from '../../lib/platform/onnx.ts';
import { fromOnnxTensor, toOnnxTensor } from '../../lib/platform/onnx-tensors.ts';
import {
  type DoneMessage,
  haveSameShapes,
  KEPT_BYTES_MAX,
  layOut,
  MEMORIES,
  OUTPUT_BYTES_MAX,
  type RunMessage,
  type Shapes,
  type TensorData,
  type TensorLayout,
  withRows,
} from './graph-memory.ts';
import { countFileBytes, replyFailure, runGraphs, type ThreadGraph } from './graph-thread.ts';
import type { StopMessage } from './model-instance.ts';

export interface GraphWorkerOptions {
  readonly model: Uint8Array;
  /** External data of the graph by file name. */
  readonly data: ReadonlyMap<string, Uint8Array>;
  /** Names the model in errors. */
  readonly source: string;
  readonly tuning: SessionTuning;
  readonly inputs: readonly Pick<TensorSpec, 'name' | 'dataType'>[];
  readonly outputs: readonly Pick<TensorSpec, 'name' | 'dataType'>[];
  /** Whether the first dimension of every tensor is the batch. */
  readonly isBatched: boolean;
}

/** What the runtime says about the loaded graph. */
export interface GraphInfo {
  readonly inputs: readonly OnnxValueInfo[];
  readonly outputs: readonly OnnxValueInfo[];
}

type Batch = RunMessage | number;
type Request = Batch | StopMessage;
type Reply = DoneMessage | number;

if (parentPort === null) throw new Error('graph-worker runs as a worker thread');
const port = parentPort;

/** What both threads know of one memory, and this thread's copies of its inputs. */
interface MemoryState extends Pick<RunMessage, 'memory' | 'shapes' | 'outputs' | 'texts'> {
  readonly bytes: Uint8Array;
  readonly inferMicros: Float64Array;
  /** The runtime refuses shared memory. */
  readonly copies: Uint8Array<ArrayBuffer>[];
  outputShapes: Shapes;
}

type Signature = Pick<GraphWorkerOptions, 'inputs' | 'outputs' | 'isBatched'>;

class PlainGraph implements ThreadGraph<GraphInfo, Batch> {
  readonly sharesTables = false;
  readonly fileBytes: number;
  readonly #model: OnnxModel;
  readonly #signature: Signature;
  readonly #onReleased: () => void;
  readonly #memories: (MemoryState | undefined)[] = Array.from(
    { length: MEMORIES },
    () => undefined,
  );
  readonly #waiting: Request[] = [];
  #received = 0;
  #isBusy = false;

  private constructor(
    model: OnnxModel,
    parts: { signature: Signature; fileBytes: number },
    onReleased: () => void,
  ) {
    this.#model = model;
    this.#signature = parts.signature;
    this.fileBytes = parts.fileBytes;
    this.#onReleased = onReleased;
  }

  static async load(options: GraphWorkerOptions, onReleased: () => void): Promise<PlainGraph> {
    const { model, data, source, tuning, ...signature } = options;
    const loaded = await OnnxModel.load(model, { ...tuning, source, externalData: data });
    const fileBytes = countFileBytes(model, data);
    return new PlainGraph(loaded, { signature, fileBytes }, onReleased);
  }

  get ready(): GraphInfo {
    const { inputs, outputs } = this.#model;
    return { inputs, outputs };
  }

  handle(request: Request): void {
    if (this.#isBusy) this.#waiting.push(request);
    else void this.#work(request);
  }

  async #work(first: Request): Promise<void> {
    this.#isBusy = true;
    let next: Request | undefined = first;
    while (next !== undefined) {
      if (typeof next !== 'number' && next.kind === 'stop') return this.#stop();
      await this.#run(next);
      // The next batch is usually there: taking it costs less than an event.
      next = this.#waiting.shift() ?? (receiveMessageOnPort(port)?.message as Request | undefined);
    }
    this.#isBusy = false;
  }

  async #stop(): Promise<void> {
    await this.#model.release();
    this.#onReleased();
  }

  /** The memory of a batch, with what the message says of the batch. */
  #receive(message: RunMessage | number): MemoryState {
    const place = this.#received++ % MEMORIES;
    const last = this.#memories[place];
    if (typeof message !== 'number') {
      const { memory, shapes, outputs, texts } = message;
      const state = {
        memory,
        shapes,
        outputs,
        texts,
        bytes: new Uint8Array(memory),
        inferMicros: new Float64Array(memory, 0, 1),
        copies: last?.copies ?? this.#signature.inputs.map(() => new Uint8Array()),
        outputShapes: [],
      };
      this.#memories[place] = memory.byteLength > KEPT_BYTES_MAX ? undefined : state;
      return state;
    }
    const state = requireDefined(last, 'the memory of a batch');
    const shapes = withRows(state.shapes, this.#signature.isBatched ? message : undefined);
    if (shapes === state.shapes) return state;
    const changed = { ...state, shapes };
    this.#memories[place] = changed;
    return changed;
  }

  async #run(message: RunMessage | number): Promise<void> {
    try {
      const state = this.#receive(message);
      const startMs = performance.now();
      const layout = layOut(this.#signature.inputs, state.shapes);
      const feeds = this.#readInputs(state, layout);
      const specs = state.outputs.map((position) => this.#signature.outputs[position]!);
      const results = await this.#model.runTensors(
        feeds,
        specs.map(({ name }) => name),
      );
      const inferMicros = 1_000 * (performance.now() - startMs);
      const tensors = specs.map(({ name, dataType }) =>
        fromOnnxTensor(name, results[name]!, dataType),
      );
      this.#replyDone(state, layout.end, tensors, inferMicros);
    } catch (error) {
      replyFailure(port, 'INTERNAL', error);
    }
  }

  #readInputs(
    { shapes, texts, bytes, copies }: MemoryState,
    { offsets, byteLengths }: TensorLayout,
  ): Record<string, AnyOnnxTensor> {
    const feeds: Record<string, AnyOnnxTensor> = {};
    for (let i = 0; i < this.#signature.inputs.length; i++) {
      const { name, dataType } = this.#signature.inputs[i]!;
      const shape = shapes[i]!;
      const text = texts[i];
      if (text !== undefined) {
        feeds[name] = toOnnxTensor({ dataType, shape, data: text });
        continue;
      }
      const length = byteLengths[i]!;
      if (copies[i]!.length !== length) copies[i] = new Uint8Array(length);
      const data = copies[i]!;
      data.set(bytes.subarray(offsets[i], offsets[i]! + length));
      feeds[name] = toOnnxTensor({ dataType, shape, data });
    }
    return feeds;
  }

  #replyDone(
    state: MemoryState,
    begin: number,
    tensors: readonly NamedTensor[],
    inferMicros: number,
  ): void {
    const shapes = tensors.map(({ shape }) => shape);
    const { offsets, end } = layOut(tensors, shapes, begin);
    const hasTexts = tensors.some(({ dataType }) => dataType === 'BYTES');
    const rows = this.#signature.isBatched ? state.shapes[0]?.[0] : undefined;
    const isAsBefore = haveSameShapes(withRows(state.outputShapes, rows), shapes);
    state.outputShapes = shapes;
    if (hasTexts || end - begin > OUTPUT_BYTES_MAX) {
      const values = tensors.map((tensor) => tensor.data);
      const reply: Reply = { kind: 'done', shapes, inferMicros, data: values };
      port.postMessage(reply, listOwnBuffers(values, state.copies));
      return;
    }
    for (let i = 0; i < tensors.length; i++) {
      state.bytes.set(tensors[i]!.data as Uint8Array, offsets[i]);
    }
    state.inferMicros[0] = inferMicros;
    const reply: Reply = isAsBefore ? (rows ?? 1) : { kind: 'done', shapes, inferMicros };
    port.postMessage(reply);
  }
}

/** Buffers of outputs which are not inputs, too: a graph may return an input as it is. */
function listOwnBuffers(
  list: readonly TensorData[],
  copies: readonly Uint8Array<ArrayBuffer>[],
): ArrayBuffer[] {
  return list.flatMap((one) => {
    if (!(one instanceof Uint8Array)) return [];
    const buffer = one.buffer as ArrayBuffer;
    return copies.some((copy) => copy.buffer === buffer) ? [] : [buffer];
  });
}

runGraphs(port, PlainGraph.load);
