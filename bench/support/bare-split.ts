/** The pruned graph of a ranking model and its split form in bare onnxruntime. */
import { join } from 'node:path';
import { requireDefined } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { readSlotSpec } from '../../lib/core/slots.ts';
import { readFile, readText } from '../../lib/platform/files.ts';
import { OnnxModel, type OnnxTensor } from '../../lib/platform/onnx.ts';
import { splitUserSide } from '../../proto/onnx-user-split.ts';

const ROUNDS = 7;
const RUNS = 200;

/** CPU microseconds of a run with the candidates of one user, medians of alternating rounds. */
export interface BareFigures {
  readonly whole: number;
  /** With one user in the inputs of the user side. */
  readonly split: number;
}

/** @param folder with a model that `publishModel` pruned @param userSlots the first slots */
export async function measureBareGraphs(
  folder: string,
  { candidates, userSlots }: { candidates: number; userSlots: number },
): Promise<BareFigures> {
  const pruned = join(folder, 'pruned');
  const spec = readSlotSpec(JsonReader.parseFile(readText(join(pruned, 'slots.json')), pruned));
  const graph = readFile(join(pruned, 'model.onnx'));
  const positions = new Map(spec.features?.slots.map(({ name }, i) => [name, i]));
  const inputs = spec.embeddings.map(({ input, shape, dim, slots }) => {
    const isUser = slots.map((slot) => (positions.get(slot) ?? userSlots) < userSlots);
    return { name: input, dims: shape.slice(1), width: dim, isUser };
  });
  const split = requireDefined(splitUserSide(graph, inputs, pruned), 'a split graph');
  const users = new Set(split.inputs.flat().flatMap(({ name, isUser }) => (isUser ? [name] : [])));
  const runs = [
    { model: await OnnxModel.load(graph), users: new Set<string>(), times: [] as number[] },
    { model: await OnnxModel.load(split.model), users, times: [] as number[] },
  ];
  for (let round = 0; round <= ROUNDS; round++) {
    for (const { model, users: own, times } of runs) {
      const micros = await measure(model, makeFeeds(model, candidates, own));
      // The first round warms up.
      if (round > 0) times.push(micros);
    }
  }
  for (const { model } of runs) await model.release();
  const [whole = Number.NaN, once = Number.NaN] = runs.map(
    ({ times }) => times.sort((a, b) => a - b)[ROUNDS >> 1],
  );
  return { whole, split: once };
}

function makeFeeds(
  { inputs }: OnnxModel,
  candidates: number,
  users: ReadonlySet<string>,
): Record<string, OnnxTensor> {
  const feeds: Record<string, OnnxTensor> = {};
  for (const { name, dtype, shape } of inputs) {
    const rowCount = users.has(name) ? 1 : candidates;
    const dims = shape.map((size, i) => (i === 0 ? rowCount : Number(size)));
    const length = dims.reduce((product, size) => product * size, 1);
    feeds[name] =
      dtype === 'int64'
        ? { dtype, data: new BigInt64Array(length), dims }
        : { dtype: 'float32', data: Float32Array.from({ length }, (_, i) => Math.sin(i)), dims };
  }
  return feeds;
}

/** @returns CPU microseconds of a run */
async function measure(model: OnnxModel, feeds: Record<string, OnnxTensor>): Promise<number> {
  const start = process.cpuUsage();
  for (let i = 0; i < RUNS; i++) await model.run(feeds);
  const { user, system } = process.cpuUsage(start);
  return (user + system) / RUNS;
}
