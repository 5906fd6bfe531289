/**
 * Operators of a pipeline: the hooks that users override, and what the hooks return. Their
 * meaning is that of Paddle Serving's pipelines; error codes are in `proto/pipeline.ts`.
 */

/** Named values between ops. The engine passes references; ops must not change their inputs. */
export type OpValues = Readonly<Record<string, unknown>>;

/** The outputs of the predecessors by their names. */
export type OpInputs = Readonly<Record<string, OpValues>>;

/** What every hook learns about its request. */
export interface OpContext {
  /** The caller's id; not unique. */
  readonly logId: bigint;
  /** The engine's id of the request: unique in this process, increasing. */
  readonly dataId: number;
  /** Which of the op's concurrent executions this is: 0 to concurrency - 1. */
  readonly concurrencyIndex: number;
  /** Aborts when the caller cancels, a deadline passes or another op fails the request. */
  readonly signal: AbortSignal;
}

/** A hook's result with more than values. Hooks may also return the values themselves. */
export class OpResult<Values = OpValues> {
  readonly values: Values;
  /** True: `process` is skipped and `postprocess` gets these values. Read from preprocess only. */
  readonly skipProcess: boolean;
  /** Not 0: the request ends here with this code. */
  readonly errNo: number;
  readonly errMsg: string;

  constructor(values: Values, skipProcess = false, errNo = 0, errMsg = '') {
    this.values = values;
    this.skipProcess = skipProcess;
    this.errNo = errNo;
    this.errMsg = errMsg;
  }
}

/** Ends the request with a code of the user's own (usually 50 to 99). */
export function productError(errNo: number, errMsg: string): OpResult<OpValues> {
  return new OpResult<OpValues>({}, false, errNo, errMsg);
}

/** Hands `values` from preprocess to postprocess without `process`. */
export function skipProcess(values: OpValues): OpResult<OpValues> {
  return new OpResult(values, true);
}

export type HookResult<Values = OpValues> =
  | Values
  | OpResult<Values>
  | Promise<Values | OpResult<Values>>;

export interface OpOptions {
  readonly name: string;
  /** Predecessors. The order does not matter. */
  readonly inputs: readonly AnyOp[];
  /** Maximum concurrent executions; default 1. */
  readonly concurrency?: number;
  /** Limit of each try of `process` in milliseconds; below 0 (default): none. */
  readonly timeoutMs?: number;
  /** Tries of `process`; default 1: no retry. Product errors are not retried. */
  readonly retry?: number;
}

/**
 * One step of a pipeline. `Inputs` maps the names of the predecessors to their outputs.
 * A hook that throws ends the request with the code of `toErrNo` in run.ts.
 */
export class Op<Inputs extends OpInputs = OpInputs, Output extends OpValues = OpValues> {
  readonly name: string;
  readonly inputs: readonly AnyOp[];
  readonly concurrency: number;
  readonly timeoutMs: number;
  readonly retry: number;

  constructor(options: OpOptions) {
    this.name = options.name;
    this.inputs = options.inputs;
    this.concurrency = options.concurrency ?? 1;
    this.timeoutMs = options.timeoutMs ?? -1;
    this.retry = options.retry ?? 1;
  }

  /** Called once, before the first request. */
  initOp(): void | Promise<void> {}

  /** Default: the output of the only predecessor; an error when there are several. */
  preprocess(inputs: Inputs, _context: OpContext): HookResult {
    const outputs = Object.values(inputs);
    if (outputs.length !== 1 || outputs[0] === undefined) {
      throw new TypeError(
        `op ${this.name} has ${outputs.length} predecessors; override its preprocess`,
      );
    }
    return outputs[0];
  }

  /** Default: returns its input, as an op without a client does. */
  process(input: OpValues, _context: OpContext): OpValues | Promise<OpValues> {
    return input;
  }

  /** Default: what `process` returned. */
  postprocess(_inputs: Inputs, fetched: OpValues, _context: OpContext): HookResult<Output> {
    return fetched as Output;
  }
}

/** An op of any types, as edges and plans hold it. */
// biome-ignore lint/suspicious/noExplicitAny: hook parameters are contravariant
export type AnyOp = Op<any, any> | RequestOp;

/** A request as the protocols give it to the engine. */
export interface PipelineRequest {
  readonly logId: bigint;
  /** Keys with their values: tensors as typed arrays or strings, as the protocol decoded them. */
  readonly values: OpValues;
  /** Settings of the request that are not values, such as `pipeline.profile`. */
  readonly parameters: Readonly<Record<string, string>>;
}

/** The first op: turns a request into values. */
export class RequestOp {
  static readonly requestName: string = '@DAGExecutor';
  readonly name: string = RequestOp.requestName;
  readonly inputs: readonly AnyOp[] = [];

  initOp(): void | Promise<void> {}

  /** Default: the request's values. */
  unpackRequest(request: PipelineRequest, _context: OpContext): HookResult {
    return request.values;
  }
}

/** The last op: turns the output of its only predecessor into the values of the answer. */
export class ResponseOp {
  readonly name: string = '@ResponseOp';
  readonly inputs: readonly AnyOp[];

  constructor(options: { readonly inputs: readonly AnyOp[] }) {
    this.inputs = options.inputs;
  }

  initOp(): void | Promise<void> {}

  /** Default: the values unchanged. */
  packResponse(values: OpValues, _context: OpContext): HookResult {
    return values;
  }
}
