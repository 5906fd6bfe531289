/**
 * A click model of the 13 dense features alone, logistic regression on half of the demo's rows:
 * `dense` FP32 [batch, 13], scaled as in training, to `prob` FP32 [batch, 2].
 */
import { join } from 'node:path';
import { scaleDense } from '../../lib/core/feature-rows.ts';
import { readTrainedFeatures } from '../../lib/core/feature-spec.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { readText } from '../../lib/platform/files.ts';
import { DenseLayer, findLargest } from './dense-layer.ts';
import { ExampleGraph, FLOAT } from './graph.ts';
import { Random } from './random.ts';

const DEMO = join(import.meta.dirname, '..', '..', '..', 'data', 'demo');
const FEATURES = 13;
const CLASSES = 2;
const EPOCHS = 5;
const RATE = 0.01;

interface ClickRows {
  readonly labels: readonly number[];
  readonly dense: Float32Array;
}

function readRows(): ClickRows {
  const path = join(DEMO, 'features.json');
  const { dense } = readTrainedFeatures(JsonReader.parseFile(readText(path), path));
  const lines = readText(join(DEMO, 'rows.tsv')).split('\n').filter(Boolean);
  const raw = lines.flatMap((line) =>
    line
      .split('\t')
      .slice(1, 1 + FEATURES)
      .map((text) => (text === '' ? Number.NaN : Number(text))),
  );
  const labels = lines.map((line) => Number(line.slice(0, 1)));
  const scaled = scaleDense(Float64Array.from(raw), lines.length, dense?.features ?? []);
  return { labels, dense: scaled };
}

export function trainClickModel(): DenseLayer {
  const { labels, dense } = readRows();
  const layer = new DenseLayer(FEATURES, CLASSES, new Random(11));
  const gradient = new Float32Array(FEATURES);
  for (let epoch = 0; epoch < EPOCHS; epoch++) {
    for (let row = 0; row < labels.length; row += 2) {
      const input = dense.subarray(row * FEATURES, (row + 1) * FEATURES);
      layer.train(input, labels[row] ?? 0, RATE, gradient);
    }
  }
  return layer;
}

/** The share of correct answers on the rows that training does not see. */
export function measureClickModel(layer: DenseLayer): number {
  const { labels, dense } = readRows();
  let correct = 0;
  for (let row = 1; row < labels.length; row += 2) {
    const input = dense.subarray(row * FEATURES, (row + 1) * FEATURES);
    if (findLargest(layer.predict(input)) === labels[row]) correct++;
  }
  return correct / Math.floor(labels.length / 2);
}

export function encodeClickModel({ weights, bias }: DenseLayer): Uint8Array {
  const graph = new ExampleGraph();
  graph.addInput('dense', FLOAT, ['batch', FEATURES]);
  graph.addOutput('prob', FLOAT, ['batch', CLASSES]);
  graph.addFloats('weights', [FEATURES, CLASSES], weights);
  graph.addFloats('bias', [CLASSES], bias);
  graph.addNode('Gemm', ['dense', 'weights', 'bias'], 'logits');
  graph.addNode('Softmax', ['logits'], 'prob', { axis: 1 });
  return graph.encode('click');
}
