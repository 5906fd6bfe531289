/** Finds the ops of a pipeline. */
import { CubeError } from '../../lib/core/errors.ts';
import { type AnyOp, type AnyResponseOp, Op, RequestOp, ResponseOp, type StepOp } from './op.ts';
import type { PipelineOps } from './pipeline-module.ts';

interface FoundOps {
  /** Those between request and response. */
  readonly steps: StepOp[];
  readonly response: AnyResponseOp;
}

/** @throws CubeError INVALID_ARGUMENT for a list without exactly one response op */
export function findOps(ops: PipelineOps): FoundOps {
  return ops instanceof ResponseOp ? collectOps(ops) : splitOps(ops);
}

/** Every op that the response reads, directly or through others. */
function collectOps(response: AnyResponseOp): FoundOps {
  const found = new Set<StepOp>();
  const waiting = [...response.inputs];
  for (let op = waiting.pop(); op !== undefined; op = waiting.pop()) {
    if (!(op instanceof Op) || found.has(op)) continue;
    found.add(op);
    waiting.push(...op.inputs);
  }
  return { steps: [...found].reverse(), response };
}

function splitOps(ops: readonly (AnyOp | AnyResponseOp)[]): FoundOps {
  const responses = ops.filter((op) => op instanceof ResponseOp);
  const [response] = responses;
  if (response === undefined || responses.length > 1) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `the pipeline has ${responses.length} response ops; it needs exactly one`,
    );
  }
  const steps = ops.filter((op) => !(op instanceof ResponseOp) && !(op instanceof RequestOp));
  return { steps: steps as StepOp[], response };
}
