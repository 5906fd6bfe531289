/**
 * Classifies texts with a model of this process, behind messages of its own. The words of all
 * instances go through one op as mini-batches.
 *
 *   serving --pipeline examples/pipeline-messages/text.ts \
 *     --config examples/pipeline-messages/text.yml --proto examples/pipeline-messages/text.proto
 */
import { readFileSync } from 'node:fs';
import {
  CubeError,
  createTensor,
  Op,
  type PipelineTensor,
  RequestOp,
  ResponseOp,
} from 'hypercube/pipeline';

/** The fields of demo.text.TextRequest. */
interface TextRequest {
  readonly instances: readonly { readonly words: string }[];
}

interface Prediction {
  readonly positive: number;
  readonly verdict: 'NEGATIVE' | 'POSITIVE';
}

interface Scores {
  readonly prediction: PipelineTensor;
}

interface TextResponse {
  readonly predictions: readonly Prediction[];
}

const vocabulary = readFileSync(new URL('../sentiment/vocabulary.txt', import.meta.url), 'utf8');
const ids = new Map(vocabulary.split('\n').map((word, id) => [word, BigInt(id)]));
const UNKNOWN = 1n;

function tokenize(words: string, index: number): PipelineTensor {
  const tokens = words.toLowerCase().match(/[a-z]+/g);
  if (tokens === null) {
    throw new CubeError('INVALID_ARGUMENT', `instances[${index}].words has no word`);
  }
  const data = BigInt64Array.from(tokens, (token) => ids.get(token) ?? UNKNOWN);
  return createTensor('INT64', [1, data.length], data);
}

class Classify extends Op<
  { '@DAGExecutor': TextRequest },
  TextResponse,
  readonly { readonly words: PipelineTensor }[],
  readonly Scores[]
> {
  override preprocess({ '@DAGExecutor': { instances } }: { '@DAGExecutor': TextRequest }) {
    return instances.map(({ words }, index) => ({ words: tokenize(words, index) }));
  }

  override postprocess(_inputs: object, scores: readonly Scores[]) {
    const predictions = scores.map(({ prediction }): Prediction => {
      const positive = Number(prediction.data[1]);
      return { positive, verdict: positive > 0.5 ? 'POSITIVE' : 'NEGATIVE' };
    });
    return { predictions };
  }
}

const read = new RequestOp<TextRequest>();
const bow = new Classify({ name: 'bow', inputs: [read] });

export default new ResponseOp({ inputs: [bow] });
