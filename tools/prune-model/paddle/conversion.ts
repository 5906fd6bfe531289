/** How the converter calls what writes one operator of a program as nodes of ONNX. */
import { CubeError } from '../../../lib/core/errors.ts';
import type { OnnxGraph } from './onnx-graph.ts';
import { describeOp, type Op } from './program.ts';
import type { Tensor } from './tensor.ts';

/** What two runs of different batches showed of a variable. */
export interface KnownShape {
  /** -1 where it changes with the batch. */
  readonly dims: readonly number[];
  readonly dtype: Tensor['dtype'];
}

export interface Conversion {
  readonly op: Op;
  readonly graph: OnnxGraph;
  /** The name in the graph of the one variable of a parameter; '' when it is left out. */
  input(parameter: string): string;
  inputs(parameter: string): readonly string[];
  shape(parameter: string, position?: number): KnownShape;
  outputShape(parameter: string): KnownShape;
  /** Claims the name of an output. */
  output(parameter: string, position?: number): string;
  /** Claims a name for something in between. */
  between(what: string): string;
  /** Ids of a row in the sequences of an input; undefined when it has none. */
  sequenceLength(parameter: string): number | undefined;
}

export type Converter = (conversion: Conversion) => void;

/** @param why continues a sentence about the operator */
export function cannotConvert(op: Op, why: string): CubeError {
  return new CubeError('UNSUPPORTED', `cannot convert ${describeOp(op)} to ONNX: ${why}`);
}
