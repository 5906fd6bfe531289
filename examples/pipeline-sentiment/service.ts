/**
 * Sentiment of a text: two models in parallel, the mean of their probabilities. The example of
 * Pipeline Serving (imdb_model_ensemble) in TypeScript.
 *
 *   serving --pipeline examples/pipeline-sentiment/service.ts \
 *     --config examples/pipeline-sentiment/config.yml
 */
import { readFileSync } from 'node:fs';
import {
  CubeError,
  createTensor,
  Op,
  type PipelineRequest,
  type PipelineTensor,
  RequestOp,
  ResponseOp,
} from 'hypercube/pipeline';

const vocabulary = readFileSync(new URL('../sentiment/vocabulary.txt', import.meta.url), 'utf8');
const ids = new Map(vocabulary.split('\n').map((word, id) => [word, BigInt(id)]));
const UNKNOWN = 1n;

interface Words {
  readonly words: PipelineTensor;
}

interface Prediction {
  readonly prediction: PipelineTensor;
}

class Tokenize extends RequestOp<Words> {
  override unpackRequest({ values: { words } }: PipelineRequest): Words {
    const tokens = String(words ?? '')
      .toLowerCase()
      .match(/[a-z]+/g);
    if (tokens === null) throw new CubeError('INVALID_ARGUMENT', 'words has no word');
    const data = BigInt64Array.from(tokens, (token) => ids.get(token) ?? UNKNOWN);
    return { words: createTensor('INT64', [1, data.length], data) };
  }
}

type Models = { readonly bow: Prediction; readonly cnn: Prediction };

class Combine extends Op<Models, Prediction> {
  override preprocess({ bow, cnn }: Models) {
    const second = cnn.prediction.data;
    const data = Float32Array.from(bow.prediction.data as Float32Array, (value, i) => {
      return (value + Number(second[i])) / 2;
    });
    return { prediction: createTensor('FP32', [1, 2], data) };
  }
}

const read = new Tokenize();
const bow = new Op<{ '@DAGExecutor': Words }, Prediction>({ name: 'bow', inputs: [read] });
const cnn = new Op<{ '@DAGExecutor': Words }, Prediction>({ name: 'cnn', inputs: [read] });
const combine = new Combine({ name: 'combine', inputs: [bow, cnn] });

export default { name: 'imdb', ops: new ResponseOp({ inputs: [combine] }) };
