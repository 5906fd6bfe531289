/** A model with tables whose requests must be tensors. */
import {
  BOOL,
  FLOAT,
  floats,
  INT32,
  INT64,
  ints,
  model,
  node,
  ramp,
  value,
} from '../../tools/prune-model/support/onnx-builder.ts';

const DOUBLE = 11;

/**
 * score = (Σ mask · history row) · item row, twice if boosted, + age + price + Σ dense. History is
 * a sequence of any length.
 */
export function attentionModel(): Uint8Array {
  return model({
    inputs: [
      value('history', INT64, ['batch', 'length']),
      value('mask', BOOL, ['batch', 'length']),
      value('item', INT64, ['batch']),
      value('boost', BOOL, ['batch']),
      value('age', INT32, ['batch', 1]),
      value('price', DOUBLE, ['batch', 1]),
      value('dense', FLOAT, ['batch', 2]),
    ],
    outputs: [value('score', FLOAT, ['batch', 1])],
    initializers: [
      floats('words', [12, 3], ramp(36)),
      floats('items', [12, 3], ramp(36, 2)),
      floats('two', [1], [2]),
      ints('first', [1], [1]),
      ints('last', [1], [2]),
    ],
    nodes: [
      node('Gather', ['words', 'history'], ['rows']),
      node('Cast', ['mask'], ['bits'], { attributes: { to: FLOAT } }),
      node('Unsqueeze', ['bits', 'last'], ['weights']),
      node('Mul', ['rows', 'weights'], ['weighted']),
      node('ReduceSum', ['weighted', 'first'], ['user'], { attributes: { keepdims: 0 } }),
      node('Gather', ['items', 'item'], ['target']),
      node('Mul', ['user', 'target'], ['products']),
      node('ReduceSum', ['products', 'first'], ['dot'], { attributes: { keepdims: 1 } }),
      node('Mul', ['dot', 'two'], ['doubled']),
      node('Unsqueeze', ['boost', 'first'], ['boosts']),
      node('Where', ['boosts', 'doubled', 'dot'], ['boosted']),
      node('Cast', ['age'], ['years'], { attributes: { to: FLOAT } }),
      node('Cast', ['price'], ['cost'], { attributes: { to: FLOAT } }),
      node('ReduceSum', ['dense', 'first'], ['sum'], { attributes: { keepdims: 1 } }),
      node('Sum', ['boosted', 'years', 'cost', 'sum'], ['score']),
    ],
  });
}
