/** The last layer of each classifier: features to probabilities of the classes. */
import { type Random, softmax } from './random.ts';

export class DenseLayer {
  readonly features: number;
  readonly classes: number;
  /** Row-major [features, classes]. */
  readonly weights: Float32Array;
  readonly bias: Float32Array;

  constructor(features: number, classes: number, random: Random) {
    this.features = features;
    this.classes = classes;
    this.weights = random.weights(features * classes, 0.5);
    this.bias = new Float32Array(classes);
  }

  predict(input: Float32Array): number[] {
    const logits = Array.from(this.bias);
    for (let i = 0; i < this.features; i++) {
      const value = input[i]!;
      if (value === 0) continue;
      for (let c = 0; c < this.classes; c++) {
        logits[c] = logits[c]! + value * this.weights[i * this.classes + c]!;
      }
    }
    return softmax(logits);
  }

  /**
   * One step of gradient descent on the cross-entropy.
   * @param inputGradient receives the gradient of the loss for each feature
   */
  train(input: Float32Array, label: number, rate: number, inputGradient: Float32Array): void {
    const errors = this.predict(input);
    errors[label] = errors[label]! - 1;
    for (let i = 0; i < this.features; i++) {
      let gradient = 0;
      for (let c = 0; c < this.classes; c++) {
        const at = i * this.classes + c;
        gradient += errors[c]! * this.weights[at]!;
        this.weights[at] = this.weights[at]! - rate * errors[c]! * input[i]!;
      }
      inputGradient[i] = gradient;
    }
    for (let c = 0; c < this.classes; c++) this.bias[c] = this.bias[c]! - rate * errors[c]!;
  }
}

/** The position of the largest probability. */
export function findLargest(values: readonly number[]): number {
  return values.indexOf(Math.max(...values));
}
