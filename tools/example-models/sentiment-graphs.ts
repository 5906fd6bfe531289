/**
 * The graphs of the sentiment models: `words` INT64 [batch, length], with id 0 after short texts,
 * to `prediction` FP32 [batch, 2]: the probabilities of negative and positive.
 */
import { ExampleGraph, FLOAT, INT64 } from './graph.ts';
import {
  type BowClassifier,
  type CnnClassifier,
  EMBEDDING_DIM,
  FILTERS,
  WINDOW,
} from './sentiment-models.ts';
import { PADDING_ID, VOCABULARY } from './sentiment-text.ts';

const CLASSES = 2;

/** Adds the input, its mask [batch, length] and the embeddings [batch, length, dim]. */
function startGraph(embeddings: Float32Array): ExampleGraph {
  const graph = new ExampleGraph();
  graph.addInput('words', INT64, ['batch', 'length']);
  graph.addOutput('prediction', FLOAT, ['batch', CLASSES]);
  graph.addFloats('embeddings', [VOCABULARY.length, EMBEDDING_DIM], embeddings);
  graph.addIntegers('padding', [], [PADDING_ID]);
  graph.addNode('Equal', ['words', 'padding'], 'is_padding');
  graph.addNode('Not', ['is_padding'], 'is_word');
  graph.addNode('Cast', ['is_word'], 'mask', { to: FLOAT });
  graph.addNode('Gather', ['embeddings', 'words'], 'word_embeddings');
  return graph;
}

function addClassifier(graph: ExampleGraph, features: number, dense: CnnClassifier['dense']): void {
  graph.addFloats('dense_weights', [features, CLASSES], dense.weights);
  graph.addFloats('dense_bias', [CLASSES], dense.bias);
  graph.addNode('Gemm', ['features', 'dense_weights', 'dense_bias'], 'logits');
  graph.addNode('Softmax', ['logits'], 'prediction', { axis: 1 });
}

export function encodeBow({ embeddings, dense }: BowClassifier): Uint8Array {
  const graph = startGraph(embeddings);
  graph.addIntegers('length_axis', [1], [1]);
  graph.addFloats('one', [], [1]);
  // The embedding of the padding is zero: it adds nothing to the sum.
  graph.addNode('ReduceSum', ['word_embeddings', 'length_axis'], 'sum', { keepdims: 0 });
  graph.addNode('ReduceSum', ['mask', 'length_axis'], 'count', { keepdims: 1 });
  graph.addNode('Max', ['count', 'one'], 'divisor');
  graph.addNode('Div', ['sum', 'divisor'], 'features');
  addClassifier(graph, EMBEDDING_DIM, dense);
  return graph.encode('bow');
}

export function encodeCnn({ embeddings, filters, bias, dense }: CnnClassifier): Uint8Array {
  const graph = startGraph(embeddings);
  graph.addIntegers('channel_axis', [1], [1]);
  graph.addFloats('filters', [FILTERS, EMBEDDING_DIM, WINDOW], filters);
  graph.addFloats('filter_bias', [FILTERS], bias);
  graph.addNode('Transpose', ['word_embeddings'], 'channels', { perm: [0, 2, 1] });
  graph.addNode('Conv', ['channels', 'filters', 'filter_bias'], 'filtered', {
    kernel_shape: [WINDOW],
    pads: [1, 1],
  });
  graph.addNode('Relu', ['filtered'], 'active');
  // A filter also sees the last word from the padding after it.
  graph.addNode('Unsqueeze', ['mask', 'channel_axis'], 'channel_mask');
  graph.addNode('Mul', ['active', 'channel_mask'], 'masked');
  graph.addNode('ReduceMax', ['masked'], 'features', { axes: [2], keepdims: 0 });
  addClassifier(graph, FILTERS, dense);
  return graph.encode('cnn');
}
