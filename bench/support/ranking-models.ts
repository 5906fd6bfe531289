/**
 * Ranking models for benchmarks: the demo's network and two of other forms with seeded random
 * weights. All take the demo's rows, 26 categorical and 13 dense features, and read one table of
 * hashed ids. The first 20 slots belong to the user.
 */
import { join } from 'node:path';
import { readText, replaceFile } from '../../lib/platform/files.ts';
import { createRandom } from '../../serving/engine/graph-samples.ts';
import {
  type Attribute,
  FLOAT,
  floats,
  INT64,
  ints,
  model,
  node,
  value,
} from '../../test/tools/prune-model/support/onnx-builder.ts';
import { DEMO, publishModel } from './demo-model.ts';
import { SLOT_NUM } from './protocol-callers.ts';

/** Slots with features of the user; the other slots have features of each candidate. */
export const USER_SLOTS = 20;
const DENSE_NUM = 13;
/** Rows of the demo's table: ids are hashes modulo this. */
const TABLE_ROWS = 100_001;
const DIM = 16;
const SHARD_NUM = 2;
const TOWER_WIDTHS = [256, 128, 64] as const;
/** Widths of the DLRM that its authors train on the Criteo Kaggle rows. */
const BOTTOM_WIDTHS = [512, 256, 64, DIM] as const;
const TOP_WIDTHS = [512, 256, 1] as const;

export interface RankingModel {
  readonly title: string;
  /** Encodes the model; undefined: the demo's. */
  readonly encode: (() => Uint8Array) | undefined;
}

export const RANKING_MODELS: Readonly<Record<string, RankingModel>> = {
  dnn: {
    title: "the demo's network: embeddings of 10, layers of 400, 400, 400",
    encode: undefined,
  },
  towers: {
    title: `two towers: embeddings of ${DIM}, layers of ${TOWER_WIDTHS.join(', ')} each`,
    encode: encodeTowers,
  },
  dlrm: {
    title:
      `DLRM: embeddings of ${DIM}, layers of ${BOTTOM_WIDTHS.join(', ')} below ` +
      `and ${TOP_WIDTHS.join(', ')} above`,
    encode: encodeDlrm,
  },
};

/** Publishes a model to `<folder>/repo` with the slots of users declared, and writes rows. */
export async function publishRankingModel(folder: string, { encode }: RankingModel): Promise<void> {
  const features = JSON.parse(readText(join(DEMO, 'features.json')));
  const slots = features.slots.map((slot: object, i: number) => {
    return i < USER_SLOTS ? { ...slot, side: 'user' } : slot;
  });
  const click = encode === undefined ? features.click : { output: 'prob', column: 0 };
  const path = join(folder, 'features.json');
  replaceFile(path, JSON.stringify({ ...features, slots, click }));
  if (encode === undefined) return publishModel(folder, SHARD_NUM, path);
  const modelPath = join(folder, 'model.onnx');
  replaceFile(modelPath, encode());
  return publishModel(folder, SHARD_NUM, path, modelPath);
}

/** Collects the nodes and weights of a graph. */
class GraphBuilder {
  readonly #random = createRandom();
  readonly #nodes: Uint8Array[] = [];
  readonly #initializers: Uint8Array[] = [];
  #next = 0;

  addNode(op: string, inputs: string[], attributes: Record<string, Attribute> = {}): string {
    const output = `v${this.#next++}`;
    this.#nodes.push(node(op, inputs, [output], { attributes }));
    return output;
  }

  addIntegers(values: readonly number[]): string {
    const name = `i${this.#next++}`;
    this.#initializers.push(ints(name, [values.length], values));
    return name;
  }

  /** @param range the largest absolute value */
  addWeights(dims: readonly number[], range: number): string {
    const name = `w${this.#next++}`;
    const length = dims.reduce((product, dim) => product * dim, 1);
    const values = Array.from({ length }, () => range * (2 * this.#random() - 1));
    this.#initializers.push(floats(name, dims, values));
    return name;
  }

  /**
   * Adds fully connected layers with Relu between them.
   *
   * @param last whether Relu follows the last one
   */
  addLayers(input: string, width: number, widths: readonly number[], last: boolean): string {
    let [name, from] = [input, width];
    for (const [i, to] of widths.entries()) {
      // This range keeps the variance of values from layer to layer.
      const weights = this.addWeights([to, from], Math.sqrt(6 / (from + to)));
      const attributes = { transB: 1 };
      name = this.addNode('Gemm', [name, weights, this.addWeights([to], 0.1)], attributes);
      if (last || i < widths.length - 1) name = this.addNode('Relu', [name]);
      from = to;
    }
    return name;
  }

  finish(logit: string): Uint8Array {
    return model({
      inputs: [
        value('ids', INT64, ['batch', SLOT_NUM]),
        value('dense', FLOAT, ['batch', DENSE_NUM]),
      ],
      outputs: [value('prob', FLOAT, ['batch', 1])],
      initializers: this.#initializers,
      nodes: [...this.#nodes, node('Sigmoid', [logit], ['prob'])],
    });
  }
}

function range(from: number, to: number): number[] {
  return Array.from({ length: to - from }, (_, i) => from + i);
}

/** Score: sigmoid of the dot product of the user's tower and the item's, which has the dense. */
function encodeTowers(): Uint8Array {
  const graph = new GraphBuilder();
  const table = graph.addWeights([TABLE_ROWS, DIM], 0.5);
  const look = (from: number, to: number): string => {
    const columns = graph.addIntegers(range(from, to));
    const ids = graph.addNode('Gather', ['ids', columns], { axis: 1 });
    return graph.addNode('Flatten', [graph.addNode('Gather', [table, ids])], { axis: 1 });
  };
  const users = look(0, USER_SLOTS);
  const items = graph.addNode('Concat', [look(USER_SLOTS, SLOT_NUM), 'dense'], { axis: 1 });
  const itemWidth = (SLOT_NUM - USER_SLOTS) * DIM + DENSE_NUM;
  const user = graph.addLayers(users, USER_SLOTS * DIM, TOWER_WIDTHS, false);
  const item = graph.addLayers(items, itemWidth, TOWER_WIDTHS, false);
  const products = graph.addNode('Mul', [user, item]);
  const axes = graph.addIntegers([1]);
  return graph.finish(graph.addNode('ReduceSum', [products, axes], { keepdims: 1 }));
}

/** The dot products of all pairs of embeddings and of the bottom layers, then the top layers. */
function encodeDlrm(): Uint8Array {
  const graph = new GraphBuilder();
  const table = graph.addWeights([TABLE_ROWS, DIM], 0.5);
  const embeddings = graph.addNode('Gather', [table, 'ids']);
  const bottom = graph.addLayers('dense', DENSE_NUM, BOTTOM_WIDTHS, true);
  const row = graph.addNode('Unsqueeze', [bottom, graph.addIntegers([1])]);
  const all = graph.addNode('Concat', [row, embeddings], { axis: 1 });
  const columns = graph.addNode('Transpose', [all], { perm: [0, 2, 1] });
  const products = graph.addNode('MatMul', [all, columns]);
  const vectors = SLOT_NUM + 1;
  const pairs = range(0, vectors).flatMap((a) => range(0, a).map((b) => a * vectors + b));
  const flat = graph.addNode('Flatten', [products], { axis: 1 });
  const picked = graph.addNode('Gather', [flat, graph.addIntegers(pairs)], { axis: 1 });
  const top = graph.addNode('Concat', [bottom, picked], { axis: 1 });
  return graph.finish(graph.addLayers(top, DIM + pairs.length, TOP_WIDTHS, false));
}
