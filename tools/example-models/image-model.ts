/**
 * The classifier of images: halve the size, convolve, take the largest value of each quarter, and
 * one dense layer; trained by gradient descent on one image at a time.
 */
import { DenseLayer, findLargest } from './dense-layer.ts';
import { Random } from './random.ts';
import { generateImages, IMAGE_LABELS, IMAGE_SIDE, type LabelledImage } from './shape-images.ts';

export const FILTERS = 8;
/** Side of a filter. */
export const KERNEL = 5;
/** Side of an area of which the largest value is kept. */
export const POOL = 6;
const HALF_SIDE: number = IMAGE_SIDE / 2;
const OUTPUT_SIDE: number = HALF_SIDE - KERNEL + 1;
const QUARTERS = (OUTPUT_SIDE / POOL) ** 2;
/** Where the pixels of a filter lie behind its position, in the order of its weights. */
const WINDOW: Int32Array = Int32Array.from({ length: 3 * KERNEL * KERNEL }, (_, i) => {
  const plane = Math.floor(i / (KERNEL * KERNEL));
  const y = Math.floor(i / KERNEL) % KERNEL;
  return (plane * HALF_SIDE + y) * HALF_SIDE + (i % KERNEL);
});
const EPOCHS = 8;
const FIRST_RATE = 0.04;
const TRAINING_IMAGES = 1_500;
const TEST_IMAGES = 500;

export class ImageClassifier {
  /** Row-major [FILTERS, 3, KERNEL, KERNEL], as the operator Conv takes them. */
  readonly filters: Float32Array;
  readonly bias: Float32Array = new Float32Array(FILTERS);
  readonly dense: DenseLayer;
  readonly #small = new Float32Array(3 * HALF_SIDE * HALF_SIDE);
  readonly #largest = new Float32Array(FILTERS * QUARTERS);
  readonly #positions = new Int32Array(FILTERS * QUARTERS);
  readonly #gradient = new Float32Array(FILTERS * QUARTERS);

  constructor(random: Random) {
    this.filters = random.weights(FILTERS * 3 * KERNEL * KERNEL, 0.4);
    this.dense = new DenseLayer(FILTERS * QUARTERS, IMAGE_LABELS.length, random);
  }

  predict(pixels: Uint8Array): number[] {
    return this.dense.predict(this.#pool(pixels));
  }

  train({ pixels, label }: LabelledImage, rate: number): void {
    this.dense.train(this.#pool(pixels), label, rate, this.#gradient);
    for (let i = 0; i < this.#largest.length; i++) {
      if (this.#largest[i] === 0) continue;
      const filter = Math.floor(i / QUARTERS);
      const step = rate * this.#gradient[i]!;
      this.bias[filter] = this.bias[filter]! - step;
      for (let w = 0; w < WINDOW.length; w++) {
        const at = filter * WINDOW.length + w;
        const pixel = this.#small[this.#positions[i]! + WINDOW[w]!]!;
        this.filters[at] = this.filters[at]! - step * pixel;
      }
    }
  }

  /** The largest value of each filter in each quarter, at least 0. */
  #pool(pixels: Uint8Array): Float32Array {
    this.#halve(pixels);
    this.#largest.fill(0);
    for (let filter = 0; filter < FILTERS; filter++) {
      for (let y = 0; y < OUTPUT_SIDE; y++) {
        for (let x = 0; x < OUTPUT_SIDE; x++) this.#convolve(filter, y, x);
      }
    }
    return this.#largest;
  }

  #convolve(filter: number, y: number, x: number): void {
    const position = y * HALF_SIDE + x;
    const first = filter * WINDOW.length;
    let sum = this.bias[filter]!;
    for (let i = 0; i < WINDOW.length; i++) {
      sum += this.filters[first + i]! * this.#small[position + WINDOW[i]!]!;
    }
    const row = Math.floor(y / POOL) * (OUTPUT_SIDE / POOL);
    const at = filter * QUARTERS + row + Math.floor(x / POOL);
    if (sum > this.#largest[at]!) {
      this.#largest[at] = sum;
      this.#positions[at] = position;
    }
  }

  /** Scales to 0 … 1 and averages squares of four pixels. */
  #halve(pixels: Uint8Array): void {
    for (let row = 0; row < 3 * HALF_SIDE; row++) {
      for (let x = 0; x < HALF_SIDE; x++) {
        const at = 2 * row * IMAGE_SIDE + 2 * x;
        const upper = pixels[at]! + pixels[at + 1]!;
        const lower = pixels[at + IMAGE_SIDE]! + pixels[at + IMAGE_SIDE + 1]!;
        this.#small[row * HALF_SIDE + x] = (upper + lower) / (4 * 255);
      }
    }
  }
}

export function trainImageModel(): ImageClassifier {
  const classifier = new ImageClassifier(new Random(5));
  const images = generateImages(6, TRAINING_IMAGES);
  for (let epoch = 0; epoch < EPOCHS; epoch++) {
    const rate = FIRST_RATE / (1 + epoch / 2);
    for (const image of images) classifier.train(image, rate);
  }
  return classifier;
}

/** Images that training does not see. */
export function makeTestImages(): LabelledImage[] {
  return generateImages(7, TEST_IMAGES);
}

/** The share of test images whose label has the largest probability. */
export function measureImages(classifier: ImageClassifier): number {
  const images = makeTestImages();
  const right = images.filter(
    ({ pixels, label }) => findLargest(classifier.predict(pixels)) === label,
  );
  return right.length / images.length;
}
