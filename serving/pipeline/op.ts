/**
 * Operators of a pipeline: the hooks that users override, and what the hooks return. Their
 * meaning is that of Paddle Serving's pipelines; error codes are in `proto/pipeline.ts`.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { RequestVersions } from './request-versions.ts';

/**
 * Named values between ops: strings, numbers, typed arrays, `PipelineTensor`, or anything else. The
 * engine passes references; ops must not change their inputs.
 */
export type OpValues = Readonly<Record<string, unknown>>;

/** The outputs of the predecessors by their names. */
export type OpInputs = Readonly<Record<string, OpValues>>;

/** The ids of a request, as logs show them. */
export interface RequestIds {
  /** The caller's id; not unique. */
  readonly logId: bigint;
  /** The pipeline's id of the request: unique in this process, increasing. */
  readonly dataId: number;
}

/** What every hook learns about its request. */
export interface OpContext extends RequestIds {
  /** Which of the op's concurrent executions this is: 0 to concurrency - 1. */
  readonly concurrencyIndex: number;
  /** Aborts when the caller cancels, a deadline passes or another op fails the request. */
  readonly signal: AbortSignal;
  /** The same as `signal.aborted`; cheaper to read, because signals are made on demand. */
  readonly isAborted: boolean;
  /** Milliseconds until the deadline of the request; Infinity without one. */
  readonly remainingMs: number;
  /** The versions of models that the request uses. */
  readonly versions: RequestVersions;
  /** Writes both ids on each line. */
  readonly logger: Logger;
}

/** What `process` learns: ids and signal of the batch. */
export interface ProcessContext extends OpContext {
  /**
   * The request of each feed. `logId` and `dataId` of the batch are those of the first. The signal
   * of the batch aborts at the op's `timeoutMs`, or when all its requests have ended.
   */
  readonly requests: readonly OpContext[];
}

/** A hook's result with more than values. Hooks may also return the values themselves. */
export class OpResult<Values = OpValues> {
  readonly values: Values;
  /** True: `process` is skipped and `postprocess` gets these values. Read from preprocess only. */
  readonly skipProcess: boolean;
  /** Not 0: the request ends here with this code. */
  readonly errNo: number;
  readonly errMsg: string;
  /** Replaces the caller's id. Read from unpackRequest only. */
  readonly logId: bigint | undefined;

  constructor(values: Values, skipProcess = false, errNo = 0, errMsg = '', logId?: bigint) {
    this.values = values;
    this.skipProcess = skipProcess;
    this.errNo = errNo;
    this.errMsg = errMsg;
    this.logId = logId;
  }
}

/**
 * Ends the request with a code of the user's own (usually 50 to 99).
 * @throws CubeError INVALID_ARGUMENT when the code is 0 or not a 32-bit integer
 */
export function productError(errNo: number, errMsg: string): OpResult<never> {
  if (errNo === 0 || errNo !== (errNo | 0)) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `product error code ${errNo}: expected a 32-bit integer that is not 0`,
    );
  }
  return new OpResult<never>({} as never, false, errNo, errMsg);
}

/** Hands `values` from preprocess to postprocess without `process`. */
export function skipProcess<Values extends object>(values: Values): OpResult<Values> {
  return new OpResult(values, true);
}

/** Values of unpackRequest with a log id that replaces the caller's. */
export function withLogId<Values extends object>(values: Values, logId: bigint): OpResult<Values> {
  return new OpResult(values, false, 0, '', logId);
}

/** Values, or an `OpResult`; both also as promises. */
export type HookResult<Values = OpValues> =
  | Values
  | OpResult<Values>
  | Promise<Values | OpResult<Values>>;

/** `process` returns one result for each feed, in order. */
export type ProcessResult<Values = OpValues> = HookResult<readonly Values[]>;

/** The part of a mini-batch; `T` itself where `T` is not a list. */
export type Part<T> = T extends readonly (infer Item)[] ? Item : T;

/** What an op calls: a model of this process or a remote service. */
export interface OpClient {
  /**
   * Predicts each feed.
   * @param context its `requests` belong to `feeds`, one to one
   * @returns one result for each feed, in order
   * @throws CubeError as the service failed
   */
  predict(feeds: readonly OpValues[], context: ProcessContext): Promise<readonly OpValues[]>;

  /** Called once before the first request. @throws CubeError when it cannot be used */
  start?(): Promise<void>;

  /** Called once after the last request. */
  stop?(): Promise<void>;
}

/** How an op is executed. Settings of the pipeline for an op replace those of its constructor. */
export interface OpSettings {
  /** Maximum concurrent executions; default 1. */
  readonly concurrency?: number;
  /** Limit of each try of `process` in milliseconds; below 0 (default): none. */
  readonly timeoutMs?: number;
  /** Tries of `process`; default 1: no retry. Product errors are not retried. */
  readonly retry?: number;
  /** Maximum requests in one call of `process`; default 1. Only feeds of equal shapes share one. */
  readonly batchSize?: number;
  /** Maximum time that a request waits for a larger batch, in milliseconds; default 2. */
  readonly autoBatchingTimeoutMs?: number;
  /** What the default `process` calls; default: none, `process` returns its feeds. */
  readonly client?: OpClient;
}

export interface OpOptions extends OpSettings {
  readonly name: string;
  /** Predecessors. The order does not matter. */
  readonly inputs: readonly AnyOp[];
}

/**
 * One step of a pipeline. A hook that throws ends the request with the code of the error.
 * - `Inputs` maps the names of the predecessors to their outputs.
 * - `Feed` is what preprocess makes for `process`: values, or a list of values (mini-batches:
 *   `process` runs once for each part).
 * - `Fetched` is what postprocess gets: the result of `process`, or the list of the results.
 */
export class Op<
  Inputs extends object = OpInputs,
  Output extends object = OpValues,
  Feed extends object = OpValues,
  Fetched extends object = OpValues,
> {
  readonly name: string;
  readonly inputs: readonly AnyOp[];
  readonly settings: OpSettings;
  /** Set before `initOp`: the client of the settings. */
  client: OpClient | undefined;

  constructor({ name, inputs, ...settings }: OpOptions) {
    this.name = name;
    this.inputs = inputs;
    this.settings = settings;
    this.client = settings.client;
  }

  /** Called once before the first request; in worker threads, once in each. */
  initOp(): void | Promise<void> {}

  /** Default: the output of the only predecessor; an error when there are several. */
  preprocess(inputs: Inputs, _context: OpContext): HookResult<Feed | Fetched> {
    const outputs = Object.values(inputs);
    if (outputs.length !== 1 || outputs[0] === undefined) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `op ${this.name} has ${outputs.length} predecessors; override its preprocess`,
      );
    }
    return outputs[0] as Feed;
  }

  /**
   * Default: what the client predicts; without a client, the feeds themselves.
   * @param feeds one for each request of the batch; one part when preprocess returned a list
   */
  process(feeds: readonly Part<Feed>[], context: ProcessContext): ProcessResult<Part<Fetched>> {
    const { client } = this;
    if (client === undefined) return feeds as unknown as readonly Part<Fetched>[];
    return client.predict(feeds as readonly OpValues[], context) as Promise<Part<Fetched>[]>;
  }

  /** Default: what `process` returned. */
  postprocess(_inputs: Inputs, fetched: Fetched, _context: OpContext): HookResult<Output> {
    return fetched as unknown as Output;
  }
}

/** An op of any types, as edges and plans hold it. */
// biome-ignore lint/suspicious/noExplicitAny: hook parameters are contravariant
export type StepOp = Op<any, any, any, any>;

// biome-ignore lint/suspicious/noExplicitAny: as above
export type AnyRequestOp = RequestOp<any>;

export type AnyOp = StepOp | AnyRequestOp;

/** A request as the protocols give it to the pipeline. */
export interface PipelineRequest {
  /** Keys with their values: strings, or tensors as `PipelineTensor`. */
  readonly values: OpValues;
  /** The caller's id; default 0. */
  readonly logId?: bigint;
  /** Settings of the request that are not values, such as `pipeline.profile`. */
  readonly parameters?: Readonly<Record<string, string>>;
  /** Of services with messages of their own: `demo.EchoService/Echo`. */
  readonly method?: string;
}

/** The first op: turns a request into values. */
export class RequestOp<Output extends object = OpValues> {
  static readonly requestName: string = '@DAGExecutor';
  readonly name: string = RequestOp.requestName;
  readonly inputs: readonly AnyOp[] = [];

  initOp(): void | Promise<void> {}

  /** Default: the request's values. */
  unpackRequest(request: PipelineRequest, _context: OpContext): HookResult<Output> {
    return request.values as Output;
  }
}

/** The last op: turns the output of its only predecessor into the values of the answer. */
export class ResponseOp<Input extends object = OpValues> {
  readonly name: string = '@ResponseOp';
  readonly inputs: readonly AnyOp[];

  constructor(options: { readonly inputs: readonly AnyOp[] }) {
    this.inputs = options.inputs;
  }

  initOp(): void | Promise<void> {}

  /** Default: the values unchanged. */
  packResponse(values: Input, _context: OpContext): HookResult {
    return values as OpValues;
  }
}

// biome-ignore lint/suspicious/noExplicitAny: as above
export type AnyResponseOp = ResponseOp<any>;
