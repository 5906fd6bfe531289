/**
 * A loaded ONNX model; the only import of onnxruntime-node. Tensors are plain typed arrays with
 * dimensions.
 *
 * `run()` blocks the event loop of its thread until it ends (it is synchronous inside a
 * `setImmediate`). Servers therefore keep models in worker threads, which are stopped by a message
 * and never terminated during a run. Tensors on SharedArrayBuffers are refused: copy them to a
 * plain buffer.
 */
import './disable-telemetry.ts';
import { createRequire } from 'node:module';
import type * as OnnxRuntime from 'onnxruntime-node';
import { CubeError } from '../core/errors.ts';
import { ARRAY_TYPES, type OnnxData, type OnnxDtype } from './onnx-arrays.ts';
import { CPU_ONLY, formatProvider, type Provider, type ProviderOrder } from './onnx-providers.ts';

// An import would be evaluated before disable-telemetry.ts in a bundle.
const { env, InferenceSession, listSupportedBackends, Tensor } = createRequire(import.meta.url)(
  'onnxruntime-node',
) as typeof OnnxRuntime;
type InferenceSession = OnnxRuntime.InferenceSession;
type Tensor = OnnxRuntime.Tensor;

type SessionOptions = OnnxRuntime.InferenceSession.SessionOptions;

/**
 * A dense row-major tensor. `data` has exactly the product of `dims` elements, outside shared
 * memory.
 */
export interface OnnxTensor {
  readonly dtype: OnnxDtype;
  readonly data: OnnxData;
  readonly dims: readonly number[];
}

/** A tensor of any type that onnxruntime exchanges; strings have no typed array. */
export type AnyOnnxTensor =
  | OnnxTensor
  | {
      readonly dtype: 'string';
      readonly data: readonly string[];
      readonly dims: readonly number[];
    };

/** A declared input or output. A dimension is a number, or the name of a dynamic one. */
export interface OnnxValueInfo {
  readonly name: string;
  readonly dtype: string;
  readonly shape: readonly (number | string)[];
}

const DEFAULT_INTRA_OP_THREADS = 1;

/** How onnxruntime runs a graph; results differ by rounding at most. */
export interface SessionTuning {
  /** Threads for one operator; default 1. */
  readonly intraOpThreads?: number;
  /** Threads for several operators at once in parallel execution; default 1. */
  readonly interOpThreads?: number;
  readonly executionMode?: 'sequential' | 'parallel';
  readonly optimizationLevel?: 'disabled' | 'basic' | 'extended' | 'all';
  readonly useMemoryArena?: boolean;
  readonly useMemoryPattern?: boolean;
  /** What runs the operators; default the CPU. */
  readonly providers?: ProviderOrder;
}

export interface OnnxOptions extends SessionTuning {
  /** Path or name of the model, for errors. */
  readonly source?: string;
  /** External tensor data of a model in memory: file name to content. */
  readonly externalData?: ReadonlyMap<string, Uint8Array>;
}

/**
 * A folder without files: a model in memory may only use the data passed with it, never files it
 * names.
 */
const NO_EXTERNAL_DATA_FOLDER = '/dev/null/none';

/** The name of a file in that folder, in a reason of onnxruntime. */
const MISSING_DATA: RegExp = new RegExp(`${NO_EXTERNAL_DATA_FOLDER}/([^"'\\s,]+)`);

// Errors are thrown; onnxruntime must not also print them.
env.logLevel = 'fatal';

/** Runs must not overlap on one thread. */
export class OnnxModel {
  readonly inputs: readonly OnnxValueInfo[];
  readonly outputs: readonly OnnxValueInfo[];
  readonly #source: string;
  readonly #session: InferenceSession;

  private constructor(session: InferenceSession, source: string) {
    this.#session = session;
    this.#source = source;
    this.inputs = session.inputMetadata.map(toValueInfo);
    this.outputs = session.outputMetadata.map(toValueInfo);
  }

  /**
   * @param model the bytes of an ONNX file, which are not kept, with `externalData` if it has any;
   *   or the path of a file, read natively with the external data beside it
   * @throws CubeError CORRUPT when the bytes are not an ONNX model, INVALID_ARGUMENT when it cannot
   *   run
   */
  static async load(model: Uint8Array | string, options: OnnxOptions = {}): Promise<OnnxModel> {
    const { intraOpThreads = DEFAULT_INTRA_OP_THREADS, source = 'model', externalData } = options;
    try {
      const settings: SessionOptions = {
        executionProviders: toExecutionProviders(options.providers ?? CPU_ONLY),
        executionMode: options.executionMode ?? 'sequential',
        graphOptimizationLevel: options.optimizationLevel ?? 'all',
        intraOpNumThreads: intraOpThreads,
        interOpNumThreads: options.interOpThreads ?? 1,
        enableCpuMemArena: options.useMemoryArena ?? true,
        enableMemPattern: options.useMemoryPattern ?? true,
        logSeverityLevel: 4,
      };
      const session =
        typeof model === 'string'
          ? await InferenceSession.create(model, settings)
          : await InferenceSession.create(model, {
              ...settings,
              ...toInMemoryOptions(externalData),
            });
      return new OnnxModel(session, source);
    } catch (error) {
      const reason = getReason(error);
      const missing = MISSING_DATA.exec(reason)?.[1];
      if (missing !== undefined && externalData?.has(missing)) {
        throw new CubeError(
          'UNSUPPORTED',
          `${source}: tensors of branches and loops are in the file ${missing}, which ` +
            'onnxruntime supports for other tensors only; save the model as one file',
          { cause: error },
        );
      }
      if (missing !== undefined) {
        throw new CubeError(
          'INVALID_ARGUMENT',
          `${source}: some of its tensors are in the file ${missing}, which was not given; put ` +
            'it into the folder of the model, or save the model as one file',
          { cause: error },
        );
      }
      const code = model.length === 0 || /protobuf/i.test(reason) ? 'CORRUPT' : 'INVALID_ARGUMENT';
      throw new CubeError(code, `${source}: onnxruntime cannot load it: ${reason}`, {
        cause: error,
      });
    }
  }

  /**
   * @param feeds one tensor for each input
   * @returns every output; the caller owns the arrays
   * @throws CubeError INVALID_ARGUMENT naming the tensor, or with onnxruntime's reason
   */
  async run(feeds: Readonly<Record<string, OnnxTensor>>): Promise<Record<string, OnnxTensor>> {
    const results = await this.runTensors(feeds);
    const outputs: Record<string, OnnxTensor> = {};
    for (const [name, tensor] of Object.entries(results)) {
      if (tensor.dtype === 'string') this.#failOutput(name, 'string');
      outputs[name] = tensor;
    }
    return outputs;
  }

  /**
   * As `run`, with strings.
   * @param outputs names of the outputs to compute; default: all
   */
  async runTensors(
    feeds: Readonly<Record<string, AnyOnnxTensor>>,
    outputs: readonly string[] = this.outputs.map(({ name }) => name),
  ): Promise<Record<string, AnyOnnxTensor>> {
    const tensors: Record<string, Tensor> = {};
    for (const [name, feed] of Object.entries(feeds)) tensors[name] = this.#toTensor(name, feed);
    let results: OnnxRuntime.InferenceSession.OnnxValueMapType;
    try {
      results = await this.#session.run(tensors, outputs);
    } catch (error) {
      const reason = getReason(error);
      throw new CubeError('INVALID_ARGUMENT', `${this.#source}: the run failed: ${reason}`, {
        cause: error,
      });
    }
    return Object.fromEntries(outputs.map((name) => [name, this.#fromTensor(name, results[name])]));
  }

  async release(): Promise<void> {
    await this.#session.release();
  }

  #toTensor(name: string, { dtype, data, dims }: AnyOnnxTensor): Tensor {
    const where = `${this.#source}: input ${JSON.stringify(name)}`;
    if (dtype !== 'string' && data.buffer instanceof SharedArrayBuffer) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${where}: its data is in shared memory, which onnxruntime refuses; ` +
          'copy it to a plain buffer',
      );
    }
    if (dims.reduce((product, dim) => product * dim, 1) !== data.length) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${where}: ${data.length} elements do not fill the shape [${dims.join(', ')}]`,
      );
    }
    if (dtype === 'string') return new Tensor(dtype, hideNulCharacters(data, where), dims);
    if (!(data instanceof ARRAY_TYPES[dtype])) {
      throw new CubeError('INVALID_ARGUMENT', `${where}: its array is not one of ${dtype}`);
    }
    const tensor = new Tensor(dtype as 'float32', data as Float32Array, dims);
    if (dtype === 'float16') keepHalfBits(tensor, data);
    return tensor;
  }

  #fromTensor(name: string, value: Tensor | undefined): AnyOnnxTensor {
    if (value?.type === 'string') {
      return { dtype: 'string', data: showNulCharacters(value.data as string[]), dims: value.dims };
    }
    if (value === undefined || !Object.hasOwn(ARRAY_TYPES, value.type)) {
      this.#failOutput(name, value?.type ?? 'optional');
    }
    const dtype = value.type as OnnxDtype;
    return { dtype, data: toPlainArray(dtype, value.data as OnnxData), dims: value.dims };
  }

  #failOutput(name: string, type: string): never {
    throw new CubeError(
      'UNSUPPORTED',
      `${this.#source}: output ${JSON.stringify(name)}: ${type} values are not supported`,
    );
  }
}

function toExecutionProviders(
  order: ProviderOrder,
): OnnxRuntime.InferenceSession.ExecutionProviderConfig[] {
  return order.map(({ name, device }) => ({
    name,
    ...(device !== undefined && { deviceId: device }),
  }));
}

/** y [1] = x [1], with Identity. */
const PROBE_GRAPH =
  'CAgSBHRlc3Q6OgoQCgF4EgF5IghJZGVudGl0eRIEdGVzdFoPCgF4EgoKCAgBEgQKAggBYg' +
  '8KAXkSCgoICAESBAoCCAFCBAoAEA0=';
const problems = new Map<string, Promise<string | undefined>>();

/**
 * Why an execution provider cannot run graphs in this process; undefined: it can. The first call
 * for a provider may load its libraries, which blocks; later calls return the same answer.
 */
export function findProviderProblem(provider: Provider): Promise<string | undefined> {
  const key = formatProvider(provider);
  let problem = problems.get(key);
  if (problem === undefined) {
    problem = tryProvider(provider);
    problems.set(key, problem);
  }
  return problem;
}

async function tryProvider(provider: Provider): Promise<string | undefined> {
  const known = listSupportedBackends().map(({ name }) => name);
  if (!known.includes(provider.name)) {
    const place = `${process.platform}/${process.arch}`;
    return `onnxruntime-node ${env.versions.node} for ${place} has only ${known.join(', ')}`;
  }
  try {
    const session = await InferenceSession.create(Buffer.from(PROBE_GRAPH, 'base64'), {
      executionProviders: toExecutionProviders([provider]),
      logSeverityLevel: 4,
    });
    await session.release();
    return undefined;
  } catch (error) {
    return getReason(error).slice(0, 300);
  }
}

/**
 * The runtime's interface for Node cuts texts at NUL. In graphs this code point, which Unicode
 * never assigns, stands for it.
 */
const NUL_IN_GRAPHS = '\u{10ffff}';

function hideNulCharacters(texts: readonly string[], where: string): string[] {
  return texts.map((text) => {
    if (text.includes(NUL_IN_GRAPHS)) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${where}: a text has the code point U+10FFFF, which stands for NUL in graphs`,
      );
    }
    return text.includes('\0') ? text.replaceAll('\0', NUL_IN_GRAPHS) : text;
  });
}

function showNulCharacters(texts: readonly string[]): readonly string[] {
  if (!texts.some((text) => text.includes(NUL_IN_GRAPHS))) return texts;
  return texts.map((text) => text.replaceAll(NUL_IN_GRAPHS, '\0'));
}

/**
 * Where there is a Float16Array (Node 24) the library makes one of the bits, whose length its
 * native part takes for 0: "not enough space". That part takes the bits too.
 */
function keepHalfBits(tensor: Tensor, bits: OnnxData): void {
  Object.defineProperty(tensor, 'data', { value: bits });
}

/** Newer runtimes return a Float16Array; callers expect its bits. */
function toPlainArray(dtype: OnnxDtype, data: OnnxData): OnnxData {
  if (dtype !== 'float16' || data instanceof Uint16Array) return data;
  return new Uint16Array(data.buffer, data.byteOffset, data.length);
}

function toInMemoryOptions(files: ReadonlyMap<string, Uint8Array> = new Map()): SessionOptions {
  return {
    extra: { session: { model_external_initializers_file_folder_path: NO_EXTERNAL_DATA_FOLDER } },
    externalData: [...files].map(([path, data]) => ({ path, data })),
  };
}

function toValueInfo(metadata: OnnxRuntime.InferenceSession.ValueMetadata): OnnxValueInfo {
  return metadata.isTensor
    ? { name: metadata.name, dtype: metadata.type, shape: metadata.shape }
    : { name: metadata.name, dtype: 'not a tensor', shape: [] };
}

/** onnxruntime's reason without its constant prefix. */
function getReason(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  return message.replace(/^Can't create a session\.\s*/, '').replaceAll(/\s+/g, ' ');
}
