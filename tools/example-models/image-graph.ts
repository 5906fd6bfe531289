/**
 * The graph of the image classifier: `image` UINT8 [batch, 3, 32, 32] to `scores` FP32 [batch, 9],
 * the probabilities of the labels.
 */
import { ExampleGraph, FLOAT, UINT8 } from './graph.ts';
import { FILTERS, type ImageClassifier, KERNEL, POOL } from './image-model.ts';
import { IMAGE_LABELS, IMAGE_SIDE } from './shape-images.ts';

export function encodeImageModel({ filters, bias, dense }: ImageClassifier): Uint8Array {
  const graph = new ExampleGraph();
  graph.addInput('image', UINT8, ['batch', 3, IMAGE_SIDE, IMAGE_SIDE]);
  graph.addOutput('scores', FLOAT, ['batch', IMAGE_LABELS.length]);
  graph.addFloats('white', [], [255]);
  graph.addFloats('filters', [FILTERS, 3, KERNEL, KERNEL], filters);
  graph.addFloats('filter_bias', [FILTERS], bias);
  graph.addFloats('dense_weights', [dense.features, dense.classes], dense.weights);
  graph.addFloats('dense_bias', [dense.classes], dense.bias);
  graph.addNode('Cast', ['image'], 'pixels', { to: FLOAT });
  graph.addNode('Div', ['pixels', 'white'], 'scaled');
  graph.addNode('AveragePool', ['scaled'], 'small', { kernel_shape: [2, 2], strides: [2, 2] });
  graph.addNode('Conv', ['small', 'filters', 'filter_bias'], 'filtered', {
    kernel_shape: [KERNEL, KERNEL],
  });
  graph.addNode('Relu', ['filtered'], 'active');
  graph.addNode('MaxPool', ['active'], 'largest', {
    kernel_shape: [POOL, POOL],
    strides: [POOL, POOL],
  });
  graph.addNode('Flatten', ['largest'], 'features', { axis: 1 });
  graph.addNode('Gemm', ['features', 'dense_weights', 'dense_bias'], 'logits');
  graph.addNode('Softmax', ['logits'], 'scores', { axis: 1 });
  return graph.encode('shapes');
}
