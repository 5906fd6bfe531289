/** The end of a request by a code. Never leaves the pipeline: answers have `errNo` and `errMsg`. */
import { CubeError } from '../../lib/core/errors.ts';
import { PIPELINE_ERROR, toPipelineErrNo } from '../../proto/pipeline.ts';
import { OpResult } from './op.ts';

export class Stopped extends Error {
  readonly errNo: number;
  /** A product error is an answer, so `process` is not tried again. */
  readonly isProductError: boolean;

  constructor(errNo: number, message: string, isProductError = false) {
    super(message);
    this.errNo = errNo;
    this.isProductError = isProductError;
  }
}

/** @param name of the op whose hook threw; foreign errors are UNKNOWN, as in the original */
export function toStopped(error: unknown, name: string): Stopped {
  if (error instanceof Stopped) return error;
  const message = error instanceof Error ? error.message : String(error);
  const errNo = error instanceof CubeError ? toPipelineErrNo(error) : PIPELINE_ERROR.UNKNOWN;
  return new Stopped(errNo, `op ${name}: ${message}`);
}

/**
 * The result of a hook: bare values become an `OpResult`.
 * @throws Stopped for a product error; TYPE_ERROR when the hook returned no values
 */
export function readResult<Values>(
  name: string,
  hook: string,
  result: Values | OpResult<Values>,
): OpResult<Values> {
  if (!(result instanceof OpResult)) {
    if (typeof result === 'object' && result !== null) return new OpResult<Values>(result);
    const found = result === null ? 'null' : typeof result;
    throw new Stopped(
      PIPELINE_ERROR.TYPE_ERROR,
      `op ${name}: ${hook} returned ${found}; return named values`,
    );
  }
  if (result.errNo !== 0) throw new Stopped(result.errNo, result.errMsg, true);
  return result;
}

export function isPromise<T>(value: T | Promise<T>): value is Promise<T> {
  return typeof (value as { then?: unknown } | null)?.then === 'function';
}
