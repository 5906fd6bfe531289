/** What the file of a pipeline exports. */
import type { PipelineLayout } from '../../proto/pipeline.ts';
import type { AnyOp, AnyResponseOp } from './op.ts';

/** Ops of a pipeline: the response op, from which the others are found, or all ops. */
export type PipelineOps = AnyResponseOp | readonly (AnyOp | AnyResponseOp)[];

/** What the file of a pipeline exports as default, or a function that returns it. */
export interface PipelineModule {
  /** Name of the service, as in the path `/{name}/prediction`. Default: the name of the file. */
  readonly name?: string;
  readonly ops: PipelineOps;
  /** The layout of requests that fit both: `plain` for clients of v0.4 to v0.6. */
  readonly layout?: PipelineLayout;
  /** Arrays of answers as tensors, instead of text as the original. */
  readonly packTensors?: boolean;
}
