/** Generated images of one coloured shape on a dark background with noise. */
import { Random } from './random.ts';

/** Pixels on each side. */
export const IMAGE_SIDE = 32;
export const IMAGE_BYTES: number = 3 * IMAGE_SIDE * IMAGE_SIDE;
const COLOURS = ['red', 'green', 'blue'];
const SHAPES = ['circle', 'square', 'triangle'];

export const IMAGE_LABELS: readonly string[] = COLOURS.flatMap((colour) =>
  SHAPES.map((shape) => `${colour} ${shape}`),
);

export interface LabelledImage {
  /** [3, 32, 32]: the planes red, green and blue. */
  readonly pixels: Uint8Array;
  /** Position in IMAGE_LABELS. */
  readonly label: number;
}

/** The same images for the same seed. */
export function generateImages(seed: number, count: number): LabelledImage[] {
  const random = new Random(seed);
  return Array.from({ length: count }, () => {
    const label = random.nextBelow(IMAGE_LABELS.length);
    return { pixels: drawImage(random, label), label };
  });
}

function drawImage(random: Random, label: number): Uint8Array {
  const pixels = new Uint8Array(IMAGE_BYTES);
  const [colour, shape] = (IMAGE_LABELS[label] ?? '').split(' ');
  const radius = 8 + random.nextBelow(4);
  const centerX = radius + random.nextBelow(IMAGE_SIDE - 2 * radius);
  const centerY = radius + random.nextBelow(IMAGE_SIDE - 2 * radius);
  const brightness = 150 + random.nextBelow(60);
  for (let y = 0; y < IMAGE_SIDE; y++) {
    for (let x = 0; x < IMAGE_SIDE; x++) {
      const isInside = isInShape(shape ?? '', x - centerX, y - centerY, radius);
      for (let plane = 0; plane < 3; plane++) {
        const light = isInside && COLOURS[plane] === colour ? brightness : 20;
        pixels[(plane * IMAGE_SIDE + y) * IMAGE_SIDE + x] = light + random.nextBelow(40);
      }
    }
  }
  return pixels;
}

/** Whether a point is in a shape with its centre at 0, 0; y grows downwards. */
function isInShape(shape: string, x: number, y: number, radius: number): boolean {
  if (shape === 'circle') return x * x + y * y <= radius * radius;
  const isInSquare = Math.abs(x) <= 0.9 * radius && Math.abs(y) <= 0.9 * radius;
  return shape === 'square' ? isInSquare : isInSquare && 2 * Math.abs(x) <= y + 0.9 * radius;
}
