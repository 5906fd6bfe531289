/** The generated files of the examples, as paths in the folder `examples`. */
import { encodeClickModel, measureClickModel, trainClickModel } from './click-model.ts';
import { encodeClientGraphs } from './client-graphs.ts';
import { encodeImageModel } from './image-graph.ts';
import { makeTestImages, measureImages, trainImageModel } from './image-model.ts';
import { encodeBow, encodeCnn } from './sentiment-graphs.ts';
import { measureSentiment, trainSentimentModels } from './sentiment-models.ts';
import { VOCABULARY } from './sentiment-text.ts';
import { IMAGE_LABELS, IMAGE_SIDE } from './shape-images.ts';

const encoder = new TextEncoder();

export interface ExampleFiles {
  readonly files: ReadonlyMap<string, Uint8Array>;
  /** The share of correct answers of each trained model on data that training does not see. */
  readonly accuracies: Readonly<Record<string, number>>;
}

/** Trains the models, which takes seconds, and encodes all files. */
export function makeExampleFiles(): ExampleFiles {
  const { bow, cnn } = trainSentimentModels();
  const shapes = trainImageModel();
  const click = trainClickModel();
  const files = new Map<string, Uint8Array>([
    ['sentiment/models/bow/1/model.onnx', encodeBow(bow)],
    ['sentiment/models/cnn/1/model.onnx', encodeCnn(cnn)],
    ['sentiment/vocabulary.txt', encodeLines(VOCABULARY)],
    ['image-classifier/models/shapes/1/model.onnx', encodeImageModel(shapes)],
    ['image-classifier/models/shapes/labels.txt', encodeLines(IMAGE_LABELS)],
    ['image-classifier/request.json', encodeImageRequest()],
    ['pipeline-ctr/dense/model.onnx', encodeClickModel(click)],
  ]);
  for (const model of ['bow', 'cnn']) {
    files.set(`sentiment/models/${model}/labels.txt`, encodeLines(['negative', 'positive']));
  }
  for (const [model, graph] of encodeClientGraphs()) {
    files.set(`triton-clients/models/${model}/1/model.onnx`, graph);
  }
  const accuracies = {
    bow: measureSentiment(bow),
    cnn: measureSentiment(cnn),
    shapes: measureImages(shapes),
    click: measureClickModel(click),
  };
  return { files, accuracies };
}

function encodeLines(lines: readonly string[]): Uint8Array {
  return encoder.encode(lines.map((line) => `${line}\n`).join(''));
}

/** A KServe request with the first test image. */
function encodeImageRequest(): Uint8Array {
  const [image] = makeTestImages();
  const shape = [1, 3, IMAGE_SIDE, IMAGE_SIDE];
  const data = Array.from(image?.pixels ?? []);
  return encodeLines([
    JSON.stringify({ inputs: [{ name: 'image', datatype: 'UINT8', shape, data }] }),
  ]);
}
