/**
 * Click probabilities of Criteo rows: the request op hashes the rows, two models score them in
 * parallel, an op takes the weighted mean.
 *
 *   serving --pipeline examples/pipeline-ctr/service.ts --config examples/pipeline-ctr/config.yml
 */
import {
  CubeError,
  createTensor,
  Op,
  type PipelineRequest,
  type PipelineTensor,
  RequestOp,
  ResponseOp,
} from 'hypercube/pipeline';
import { type ModelInputs, readRows } from './features.ts';

interface Scores {
  readonly prob: PipelineTensor;
}

class ReadRows extends RequestOp<ModelInputs> {
  override unpackRequest({ values: { rows } }: PipelineRequest): ModelInputs {
    if (typeof rows !== 'string') {
      throw new CubeError('INVALID_ARGUMENT', 'send the rows as text under the key rows');
    }
    return readRows(rows);
  }
}

/** A graph of the dense features alone. */
class DenseModel extends Op<{ '@DAGExecutor': ModelInputs }, Scores> {
  override preprocess({ '@DAGExecutor': { dense } }: { '@DAGExecutor': ModelInputs }) {
    return { dense };
  }
}

/** The share of the model with embeddings in the mean. */
const WEIGHT = 0.9;

class Combine extends Op<{ dnn: Scores; dense: Scores }, { click: PipelineTensor }> {
  override preprocess({ dnn, dense }: { dnn: Scores; dense: Scores }) {
    const rows = dnn.prob.shape[0] ?? 0;
    const click = new Float32Array(rows);
    const [strong, weak] = [dnn.prob.data, dense.prob.data];
    for (let row = 0; row < rows; row++) {
      const at = 2 * row + 1;
      click[row] = WEIGHT * Number(strong[at]) + (1 - WEIGHT) * Number(weak[at]);
    }
    return { click: createTensor('FP32', [rows], click) };
  }
}

const read = new ReadRows();
const dnn = new Op<{ '@DAGExecutor': ModelInputs }, Scores>({ name: 'dnn', inputs: [read] });
const dense = new DenseModel({ name: 'dense', inputs: [read] });
const combine = new Combine({ name: 'combine', inputs: [dnn, dense] });

export default { name: 'ctr', ops: new ResponseOp({ inputs: [combine] }) };
