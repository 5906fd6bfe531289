/**
 * The two classifiers of reviews, trained by gradient descent on one review at a time. `bow`
 * averages the embeddings of the words, so it ignores their order; `cnn` sees three neighbouring
 * words at a time.
 */
import { DenseLayer, findLargest } from './dense-layer.ts';
import { Random } from './random.ts';
import { generateReviews, type Review, tokenize, VOCABULARY } from './sentiment-text.ts';

export const EMBEDDING_DIM = 8;
/** Neighbouring words that a filter of `cnn` sees. */
export const WINDOW = 3;
export const FILTERS = 16;
const CLASSES = 2;
const EPOCHS = 8;
const FIRST_RATE = 0.1;
const TRAINING_REVIEWS = 4_000;
const TEST_REVIEWS = 1_000;
const TRAINING_SEED = 1;
const TEST_SEED = 2;

export interface Example {
  readonly words: readonly number[];
  readonly label: number;
}

/** @returns words and labels of generated reviews */
function makeExamples(reviews: readonly Review[]): Example[] {
  return reviews.map(({ text, label }) => ({ words: tokenize(text), label }));
}

interface Classifier {
  predict(words: readonly number[]): number[];
  train(words: readonly number[], label: number, rate: number): void;
}

/** Row-major [words, EMBEDDING_DIM]; the padding has zeros. */
function makeEmbeddings(random: Random): Float32Array {
  return random.weights(VOCABULARY.length * EMBEDDING_DIM, 0.3).fill(0, 0, EMBEDDING_DIM);
}

export class BowClassifier implements Classifier {
  readonly embeddings: Float32Array;
  readonly dense: DenseLayer;
  readonly #mean = new Float32Array(EMBEDDING_DIM);
  readonly #gradient = new Float32Array(EMBEDDING_DIM);

  constructor(random: Random) {
    this.embeddings = makeEmbeddings(random);
    this.dense = new DenseLayer(EMBEDDING_DIM, CLASSES, random);
  }

  predict(words: readonly number[]): number[] {
    return this.dense.predict(this.#pool(words));
  }

  train(words: readonly number[], label: number, rate: number): void {
    this.dense.train(this.#pool(words), label, rate, this.#gradient);
    for (const word of words) {
      for (let d = 0; d < EMBEDDING_DIM; d++) {
        const at = word * EMBEDDING_DIM + d;
        const step = (rate * this.#gradient[d]!) / words.length;
        this.embeddings[at] = this.embeddings[at]! - step;
      }
    }
  }

  #pool(words: readonly number[]): Float32Array {
    this.#mean.fill(0);
    for (const word of words) {
      for (let d = 0; d < EMBEDDING_DIM; d++) {
        const value = this.embeddings[word * EMBEDDING_DIM + d]! / words.length;
        this.#mean[d] = this.#mean[d]! + value;
      }
    }
    return this.#mean;
  }
}

export class CnnClassifier implements Classifier {
  readonly embeddings: Float32Array;
  /** Row-major [FILTERS, EMBEDDING_DIM, WINDOW], as the operator Conv takes them. */
  readonly filters: Float32Array;
  readonly bias: Float32Array = new Float32Array(FILTERS);
  readonly dense: DenseLayer;
  readonly #largest = new Float32Array(FILTERS);
  readonly #positions = new Int32Array(FILTERS);
  readonly #gradient = new Float32Array(FILTERS);

  constructor(random: Random) {
    this.embeddings = makeEmbeddings(random);
    this.filters = random.weights(FILTERS * EMBEDDING_DIM * WINDOW, 0.3);
    this.dense = new DenseLayer(FILTERS, CLASSES, random);
  }

  predict(words: readonly number[]): number[] {
    return this.dense.predict(this.#pool(words));
  }

  train(words: readonly number[], label: number, rate: number): void {
    this.dense.train(this.#pool(words), label, rate, this.#gradient);
    for (let f = 0; f < FILTERS; f++) {
      if (this.#largest[f] === 0) continue;
      const step = rate * this.#gradient[f]!;
      this.bias[f] = this.bias[f]! - step;
      for (let k = 0; k < WINDOW; k++) this.#trainPlace(words, f, k, step);
    }
  }

  /** The largest output of each filter, at least 0. */
  #pool(words: readonly number[]): Float32Array {
    this.#largest.fill(0);
    for (let position = 0; position < words.length; position++) {
      for (let f = 0; f < FILTERS; f++) {
        let sum = this.bias[f]!;
        for (let k = 0; k < WINDOW; k++) {
          const word = words[position + k - 1];
          if (word === undefined) continue;
          for (let d = 0; d < EMBEDDING_DIM; d++) {
            const value = this.embeddings[word * EMBEDDING_DIM + d]!;
            sum += value * this.filters[(f * EMBEDDING_DIM + d) * WINDOW + k]!;
          }
        }
        if (sum > this.#largest[f]!) {
          this.#largest[f] = sum;
          this.#positions[f] = position;
        }
      }
    }
    return this.#largest;
  }

  #trainPlace(words: readonly number[], f: number, k: number, step: number): void {
    const word = words[this.#positions[f]! + k - 1];
    if (word === undefined) return;
    for (let d = 0; d < EMBEDDING_DIM; d++) {
      const at = (f * EMBEDDING_DIM + d) * WINDOW + k;
      const row = word * EMBEDDING_DIM + d;
      const weight = this.filters[at]!;
      this.filters[at] = weight - step * this.embeddings[row]!;
      this.embeddings[row] = this.embeddings[row]! - step * weight;
    }
  }
}

function trainClassifier(classifier: Classifier): void {
  const examples = makeExamples(generateReviews(TRAINING_SEED, TRAINING_REVIEWS));
  for (let epoch = 0; epoch < EPOCHS; epoch++) {
    const rate = FIRST_RATE / (1 + epoch);
    for (const { words, label } of examples) classifier.train(words, label, rate);
  }
}

export interface SentimentModels {
  readonly bow: BowClassifier;
  readonly cnn: CnnClassifier;
}

export function trainSentimentModels(): SentimentModels {
  const bow = new BowClassifier(new Random(3));
  const cnn = new CnnClassifier(new Random(4));
  trainClassifier(bow);
  trainClassifier(cnn);
  return { bow, cnn };
}

/** Reviews that training does not see. */
export function makeTestReviews(): Review[] {
  return generateReviews(TEST_SEED, TEST_REVIEWS);
}

/** The share of test reviews whose label has the larger probability. */
export function measureSentiment(classifier: Classifier): number {
  const examples = makeExamples(makeTestReviews());
  const right = examples.filter(
    ({ words, label }) => findLargest(classifier.predict(words)) === label,
  );
  return right.length / examples.length;
}
