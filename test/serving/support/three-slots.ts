/** A model that reads three slots from one table. */
import {
  FLOAT,
  floats,
  INT64,
  ints,
  model,
  node,
  ramp,
  value,
} from '../../tools/prune-model/support/onnx-builder.ts';

export const ROWS = 20;
export const DIM = 3;
export const TABLE: number[] = ramp(ROWS * DIM);
export const WEIGHTS: number[] = ramp(3 * DIM, 5);
/** Three slots of one table, one logit. */
export const THREE: Uint8Array = model({
  inputs: [value('ids', INT64, ['n', 3])],
  outputs: [value('logit', FLOAT, ['n', 1])],
  initializers: [
    floats('t', [ROWS, DIM], TABLE),
    floats('w', [3 * DIM, 1], WEIGHTS),
    ints('flat', [2], [0, 3 * DIM]),
  ],
  nodes: [
    node('Gather', ['t', 'ids'], ['rows']),
    node('Reshape', ['rows', 'flat'], ['x']),
    node('MatMul', ['x', 'w'], ['logit']),
  ],
});
