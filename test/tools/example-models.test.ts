/**
 * The committed models of `examples/`: they are what example-models makes, they are as accurate as
 * their pages say, and padding does not change answers.
 */
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { OnnxModel } from '../../lib/platform/onnx.ts';
import { makeExampleFiles } from '../../tools/example-models/example-files.ts';
import { makeTestImages } from '../../tools/example-models/image-model.ts';
import { makeTestReviews } from '../../tools/example-models/sentiment-models.ts';
import { tokenize, VOCABULARY } from '../../tools/example-models/sentiment-text.ts';
import { IMAGE_BYTES, IMAGE_LABELS } from '../../tools/example-models/shape-images.ts';

const ROOT = join(import.meta.dirname, '..', '..', '..');
const EXAMPLES = join(ROOT, 'examples');
const BYTES_MAX = 1.5e6;

const made = makeExampleFiles();

function findLargest(scores: Float32Array, first: number, count: number): number {
  const row = Array.from(scores.subarray(first, first + count));
  return row.indexOf(Math.max(...row));
}

test('the committed files are the files that example-models makes', () => {
  const differing = [...made.files].filter(([name, bytes]) => {
    const path = join(EXAMPLES, name);
    return !existsSync(path) || !readFileSync(path).equals(bytes);
  });
  const names = differing.map(([name]) => name);
  assert.deepEqual(names, [], 'run node dist/tools/example-models/main.js --output examples');
  const total = [...made.files.values()].reduce((sum, { length }) => sum + length, 0);
  assert.ok(total < BYTES_MAX, `${total} bytes`);
});

test('every model of a repository is a graph, or an ensemble, with a configuration', () => {
  for (const example of ['sentiment', 'image-classifier', 'triton-clients']) {
    const folder = join(EXAMPLES, example, 'models');
    for (const name of readdirSync(folder)) {
      const config = readFileSync(join(folder, name, 'config.pbtxt'), 'utf8');
      assert.match(config, new RegExp(`^name: "${name}"\n`));
      const isEnsemble = config.includes('platform: "ensemble"');
      assert.equal(made.files.has(`${example}/models/${name}/1/model.onnx`), !isEnsemble, name);
    }
  }
});

/** Pads all texts to the same length. */
function toBatch(texts: readonly string[]): { words: BigInt64Array; length: number } {
  const rows = texts.map(tokenize);
  const width = Math.max(...rows.map((row) => row.length));
  const words = new BigInt64Array(rows.length * width);
  rows.forEach((row, i) => {
    words.set(row.map(BigInt), i * width);
  });
  return { words, length: width };
}

async function classify(model: OnnxModel, texts: readonly string[]): Promise<Float32Array> {
  const { words, length } = toBatch(texts);
  const feeds = { words: { dtype: 'int64', data: words, dims: [texts.length, length] } } as const;
  const { prediction } = await model.run(feeds);
  assert.deepEqual(prediction?.dims, [texts.length, 2]);
  return prediction?.data as Float32Array;
}

for (const name of ['bow', 'cnn'] as const) {
  test(`${name} classifies reviews as in training, with and without padding`, async () => {
    const model = await OnnxModel.load(join(EXAMPLES, `sentiment/models/${name}/1/model.onnx`));
    const reviews = makeTestReviews();
    const scores = await classify(
      model,
      reviews.map(({ text }) => text),
    );
    const right = reviews.filter(({ label }, i) => findLargest(scores, 2 * i, 2) === label);
    assert.equal(right.length / reviews.length, made.accuracies[name]);
    for (const [i, { text }] of reviews.slice(0, 40).entries()) {
      const alone = await classify(model, [text]);
      const difference = Math.abs(Number(alone[1]) - Number(scores[2 * i + 1]));
      assert.ok(difference < 1e-5, `${text}: ${difference}`);
    }
    await model.release();
  });
}

test('cnn understands a negation that bow cannot see, and unknown words have an id', () => {
  assert.ok(Number(made.accuracies['bow']) > 0.75 && Number(made.accuracies['bow']) < 0.95);
  assert.ok(Number(made.accuracies['cnn']) > 0.98);
  assert.deepEqual(tokenize('The FILM, zebra!'), [VOCABULARY.indexOf('the'), 2, 1]);
  assert.equal(VOCABULARY[2], 'film');
});

test('the image classifier takes bytes and is as accurate as in training', async () => {
  const path = join(EXAMPLES, 'image-classifier/models/shapes/1/model.onnx');
  const model = await OnnxModel.load(path);
  const images = makeTestImages();
  const pixels = new Uint8Array(images.length * IMAGE_BYTES);
  images.forEach((image, i) => {
    pixels.set(image.pixels, i * IMAGE_BYTES);
  });
  const dims = [images.length, 3, 32, 32];
  const { scores } = await model.run({ image: { dtype: 'uint8', data: pixels, dims } });
  const [data, classes] = [scores?.data as Float32Array, IMAGE_LABELS.length];
  const right = images.filter(({ label }, i) => findLargest(data, classes * i, classes) === label);
  // A value within rounding of another one may change places between the two implementations.
  const share = right.length / images.length;
  assert.ok(Math.abs(share - Number(made.accuracies['shapes'])) <= 0.004, String(share));
  assert.ok(share > 0.95, String(share));
  await model.release();
});

test('the pages state the accuracy', () => {
  const pages = { bow: 'sentiment', cnn: 'sentiment', shapes: 'image-classifier' };
  for (const [model, page] of Object.entries(pages)) {
    const text = readFileSync(join(EXAMPLES, page, 'README.md'), 'utf8');
    const share = `${(100 * Number(made.accuracies[model])).toFixed(1)} %`;
    assert.match(text, new RegExp(`\\b${model}\\b[^\\n]*${share}`), `${page} states ${share}`);
  }
});
