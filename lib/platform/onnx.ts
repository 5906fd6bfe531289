/**
 * The one import of onnxruntime-node: a model in memory that answers runs. Tensors are plain typed arrays with dims.
 *
 * `run()` is synchronous inside a `setImmediate`: it blocks the event loop of its thread for as long as it takes, so
 * servers keep a model in a worker thread, and a worker is stopped by message, never terminated while it runs.
 * Tensors on SharedArrayBuffers are refused: gather into a plain buffer first.
 */
import './telemetry.ts';
import { env, InferenceSession, Tensor } from 'onnxruntime-node';
import { CubeError } from '../core/errors.ts';

type SessionOptions = InferenceSession.SessionOptions;

interface OnnxArrays {
  /** The bits of each (lib/core/half-floats.ts). */
  float16: Uint16Array;
  float32: Float32Array;
  float64: Float64Array;
  int8: Int8Array;
  uint8: Uint8Array;
  int16: Int16Array;
  uint16: Uint16Array;
  int32: Int32Array;
  uint32: Uint32Array;
  int64: BigInt64Array;
  uint64: BigUint64Array;
  bool: Uint8Array;
}

/** Element types that have a typed array; strings are not among them. */
type OnnxDtype = keyof OnnxArrays;
type OnnxData = OnnxArrays[OnnxDtype];

const ARRAYS: { readonly [D in OnnxDtype]: new (length: number) => OnnxArrays[D] } = {
  float16: Uint16Array,
  float32: Float32Array,
  float64: Float64Array,
  int8: Int8Array,
  uint8: Uint8Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int32: Int32Array,
  uint32: Uint32Array,
  int64: BigInt64Array,
  uint64: BigUint64Array,
  bool: Uint8Array,
};

/** A dense tensor, row-major; `data` has exactly the product of `dims` elements and is not shared memory. */
export interface OnnxTensor {
  readonly dtype: OnnxDtype;
  readonly data: OnnxData;
  readonly dims: readonly number[];
}

/** An input or output as the model declares it: a dim is a number, or the name of a dynamic one. */
export interface OnnxPort {
  readonly name: string;
  readonly dtype: string;
  readonly shape: readonly (number | string)[];
}

const DEFAULT_INTRA_OP_THREADS = 1;

export interface OnnxOptions {
  readonly intraOpThreads?: number;
  /** What to call the model in errors: a path or a name. */
  readonly source?: string;
  /** Tensors of a model in memory that are not in its own bytes: the files that it names, and what is in them. */
  readonly externalData?: ReadonlyMap<string, Uint8Array>;
}

/** Where a model in memory finds no files: it has the data that it was given, never a file that it happens to name. */
const NO_FOLDER = '/dev/null/none';

// Whatever goes wrong is thrown; onnxruntime would also print it.
env.logLevel = 'fatal';

/** A loaded model. Runs must not overlap on one thread: the second waits for the first anyway. */
export class OnnxModel {
  readonly inputs: readonly OnnxPort[];
  readonly outputs: readonly OnnxPort[];
  readonly #source: string;
  readonly #session: InferenceSession;

  private constructor(session: InferenceSession, source: string) {
    this.#session = session;
    this.#source = source;
    this.inputs = session.inputMetadata.map(toPort);
    this.outputs = session.outputMetadata.map(toPort);
  }

  /**
   * @param model the bytes of an ONNX file, not kept after the call, with `externalData` when it has some; or the path of one, read
   * natively, whose external data is beside it
   * @throws CubeError CORRUPT when the bytes are no ONNX model, INVALID_ARGUMENT when it is one that cannot run
   */
  static async load(model: Uint8Array | string, options: OnnxOptions = {}): Promise<OnnxModel> {
    const { intraOpThreads = DEFAULT_INTRA_OP_THREADS, source = 'model', externalData } = options;
    try {
      const settings: SessionOptions = {
        executionMode: 'sequential',
        graphOptimizationLevel: 'all',
        intraOpNumThreads: intraOpThreads,
        interOpNumThreads: 1,
        logSeverityLevel: 4,
      };
      const session =
        typeof model === 'string'
          ? await InferenceSession.create(model, settings)
          : await InferenceSession.create(model, { ...settings, ...inMemory(externalData) });
      return new OnnxModel(session, source);
    } catch (error) {
      const reason = reasonOf(error);
      const code = model.length === 0 || /protobuf/i.test(reason) ? 'CORRUPT' : 'INVALID_ARGUMENT';
      throw new CubeError(code, `${source}: onnxruntime cannot load it: ${reason}`, {
        cause: error,
      });
    }
  }

  /**
   * @param feeds one tensor for every input
   * @returns every output; the arrays are the caller's
   * @throws CubeError INVALID_ARGUMENT naming the tensor, or with onnxruntime's reason
   */
  async run(feeds: Readonly<Record<string, OnnxTensor>>): Promise<Record<string, OnnxTensor>> {
    const tensors: Record<string, Tensor> = {};
    for (const [name, feed] of Object.entries(feeds)) tensors[name] = this.#toTensor(name, feed);
    let results: InferenceSession.OnnxValueMapType;
    try {
      results = await this.#session.run(tensors);
    } catch (error) {
      const reason = reasonOf(error);
      throw new CubeError('INVALID_ARGUMENT', `${this.#source}: the run failed: ${reason}`, {
        cause: error,
      });
    }
    const outputs: Record<string, OnnxTensor> = {};
    for (const { name } of this.outputs) outputs[name] = this.#fromTensor(name, results[name]);
    return outputs;
  }

  async release(): Promise<void> {
    await this.#session.release();
  }

  #toTensor(name: string, { dtype, data, dims }: OnnxTensor): Tensor {
    const where = `${this.#source}: input ${JSON.stringify(name)}`;
    if (data.buffer instanceof SharedArrayBuffer) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${where}: its data is on shared memory, which onnxruntime refuses; copy it to a plain buffer`,
      );
    }
    if (dims.reduce((product, dim) => product * dim, 1) !== data.length) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${where}: ${data.length} elements do not fill the shape [${dims.join(', ')}]`,
      );
    }
    if (!(data instanceof ARRAYS[dtype])) {
      throw new CubeError('INVALID_ARGUMENT', `${where}: its array is not one of ${dtype}`);
    }
    return new Tensor(dtype as 'float32', data as Float32Array, dims);
  }

  #fromTensor(name: string, value: Tensor | undefined): OnnxTensor {
    if (value === undefined || !Object.hasOwn(ARRAYS, value.type)) {
      throw new CubeError(
        'UNSUPPORTED',
        `${this.#source}: output ${JSON.stringify(name)}: ${value?.type ?? 'optional'} values are not supported`,
      );
    }
    const dtype = value.type as OnnxDtype;
    return { dtype, data: plainArray(dtype, value.data as OnnxData), dims: value.dims };
  }
}

/** Runtimes with a Float16Array give one; its bits are what callers know. */
function plainArray(dtype: OnnxDtype, data: OnnxData): OnnxData {
  if (dtype !== 'float16' || data instanceof Uint16Array) return data;
  return new Uint16Array(data.buffer, data.byteOffset, data.length);
}

function inMemory(files: ReadonlyMap<string, Uint8Array> = new Map()): SessionOptions {
  return {
    extra: { session: { model_external_initializers_file_folder_path: NO_FOLDER } },
    externalData: [...files].map(([path, data]) => ({ path, data })),
  };
}

function toPort(metadata: InferenceSession.ValueMetadata): OnnxPort {
  return metadata.isTensor
    ? { name: metadata.name, dtype: metadata.type, shape: metadata.shape }
    : { name: metadata.name, dtype: 'not a tensor', shape: [] };
}

/** What onnxruntime said, without the words it puts before every reason. */
function reasonOf(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  return message.replace(/^Can't create a session\.\s*/, '').replaceAll(/\s+/g, ' ');
}
