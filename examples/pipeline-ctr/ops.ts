/**
 * Operators of the workflows in conf/. The nodes between them are built in.
 *
 *   serving --conf-dir examples/pipeline-ctr/conf --proto examples/pipeline-ctr/ctr.proto \
 *     --ops examples/pipeline-ctr/ops.ts
 */
import { Op, type PipelineTensor } from 'hypercube/pipeline';
import { type ModelInputs, readRows } from './features.ts';

/** The fields of ctr.CtrRequest. */
interface CtrRequest {
  readonly rows: readonly string[];
}

interface Scores {
  readonly prob: PipelineTensor;
}

/** The share of the model with embeddings in the mean. */
const WEIGHT = 0.9;

/** Hashes the rows of the request. */
export class HashRowsOp extends Op<{ '@DAGExecutor': CtrRequest }, ModelInputs> {
  override preprocess({ '@DAGExecutor': { rows } }: { '@DAGExecutor': CtrRequest }) {
    return readRows(rows.join('\n'));
  }
}

/** Hands the dense features on. */
export class DenseOp extends Op<{ hash: ModelInputs }, Pick<ModelInputs, 'dense'>> {
  override preprocess({ hash: { dense } }: { hash: ModelInputs }) {
    return { dense };
  }
}

/** The probability of a click of each row, as the weighted mean of its models. */
export class MeanOp extends Op<{ dnn?: Scores; dense: Scores }, object> {
  override preprocess({ dnn, dense }: { dnn?: Scores; dense: Scores }) {
    const weak = clicks(dense);
    if (dnn === undefined) return { click: weak, models: 'dense' };
    const click = clicks(dnn).map((strong, row) => {
      return WEIGHT * strong + (1 - WEIGHT) * (weak[row] ?? 0);
    });
    return { click, models: 'both' };
  }
}

/** The second column of `[rows, 2]`. */
function clicks({ prob: { shape, data } }: Scores): Float32Array {
  return Float32Array.from({ length: shape[0] ?? 0 }, (_, row) => Number(data[2 * row + 1]));
}
