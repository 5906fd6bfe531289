/**
 * Proves a pruned program: what was written is read back, and for sampled inputs the full program and the pruned one fed with rows of
 * the tables must give the same in the reference interpreter; what was converted to ONNX is run by onnxruntime.
 */
import { basename, join } from 'node:path';
import { JsonReader } from '../../../lib/core/json.ts';
import { readSlotSpec } from '../../../lib/core/slots.ts';
import { readFile, readText } from '../../../lib/platform/files.ts';
import { OnnxModel, type OnnxTensor } from '../../../lib/platform/onnx.ts';
import { MODEL_FILE, SLOTS_FILE } from '../output-folder.ts';
import {
  Comparison,
  openTables,
  PROOF_SEED,
  type ProofRequest,
  type ProofResult,
  RandomNumbers,
  type TableRows,
} from '../proof.ts';
import type { CutPieces } from './cut-pieces.ts';
import { Interpreter } from './interpreter.ts';
import type { Lookup } from './lookups.ts';
import { ParameterValues } from './parameter-values.ts';
import { Parameters } from './parameters.ts';
import { ProgramGraph } from './program-graph.ts';
import { readProgram } from './program-reader.ts';
import { ProofInputs } from './proof-inputs.ts';
import type { SequenceLengths } from './sequence-lengths.ts';
import { fillExternal, type SampledRows } from './table-rows.ts';
import { makeTensor, type Tensor, unproved } from './tensor.ts';

export interface PaddleProof extends CutPieces {
  readonly converted: boolean;
  readonly lengths: SequenceLengths;
}

/** onnxruntime adds in another order and in float32 throughout. */
const CONVERTED_DIFFERENCE_MAX = 1e-5;

/** What answers for the pruned model. */
type Run = (feeds: ReadonlyMap<string, Tensor>) => Promise<ReadonlyMap<string, Tensor>>;

/** @throws CubeError INVALID_ARGUMENT when they disagree, UNSUPPORTED when they cannot be run here */
export async function provePaddle(full: PaddleProof, request: ProofRequest): Promise<ProofResult> {
  const { folder, samples } = request;
  const spec = readSlotSpec(JsonReader.parse(readText(join(folder, SLOTS_FILE)), SLOTS_FILE));
  const random = new RandomNumbers(PROOF_SEED);
  const { lengths, converted } = full;
  const inputs = new ProofInputs(full, random, (name) =>
    converted ? lengths.of(name) : undefined,
  );
  const whole = new Interpreter(full.graph, new ParameterValues(full, inputs.rows));
  const pruned = converted ? await runOnnx(full, folder) : runProgram(full, folder);
  const tables = openTables(folder, spec);
  const comparison = new Comparison(converted ? CONVERTED_DIFFERENCE_MAX : undefined);
  const outputShapes = new Map<string, readonly number[]>();
  const batches = [samples, 1];
  try {
    for (const batch of batches) {
      const feeds = inputs.draw(batch);
      const expected = whole.run(feeds);
      const rows = full.lookups.map((lookup, i): [string, Tensor] => {
        const table = tables.get(spec.embeddings[i]!.table);
        const rows = rowsOf(lookup, feeds, inputs.rows.get(lookup.table)!, table);
        // A converted graph sums the rows of a lookup that pools itself.
        const isSummed = lookup.isPooled && !converted;
        return [lookup.output.name, isSummed ? sumOfSequences(rows) : rows];
      });
      const kept = full.cut.keptInputs.map(({ name }): [string, Tensor] => [
        name,
        feeds.get(name)!,
      ]);
      const actual = await pruned.run(new Map([...kept, ...rows]));
      for (const [name, tensor] of expected) {
        comparison.add(name, tensor, actual.get(name));
        outputShapes.set(name, tensor.dims);
      }
    }
  } finally {
    for (const table of tables.values()) table.close();
    await pruned.close();
  }
  const maxAbsDifference = comparison.finish(full.path);
  return { proof: { samples, seed: PROOF_SEED, batches, maxAbsDifference }, outputShapes };
}

/** The rows of one new input, from the table file; of a table that a server holds, the same made-up rows. */
function rowsOf(
  { ids, table, output }: Lookup,
  feeds: ReadonlyMap<string, Tensor>,
  sampled: SampledRows,
  file: TableRows | undefined,
): Tensor {
  const source = feeds.get(ids.input.name)!;
  const width = source.data.length / Math.max(1, source.dims[0]!);
  const count = source.dims[0]!;
  const [, ...tail] = output.dims;
  const rows = makeTensor('float32', [count, ...tail], source.lod);
  const data = rows.data as Float32Array;
  let at = 0;
  for (let row = 0; row < count; row++) {
    for (const column of ids.columns) {
      const key = source.data[row * width + column]!;
      const position = sampled.positionOf(key);
      if (position === undefined) throw unproved(`the key ${key} is not in ${table.name}`);
      const target = data.subarray(at, at + table.dim);
      if (file !== undefined) file.copyRow(position, data, at);
      else if (key !== table.padding) fillExternal(key, target);
      at += table.dim;
    }
  }
  return rows;
}

function sumOfSequences({ data, dims, lod = [] }: Tensor): Tensor {
  const [, width = 1] = dims;
  const sums = makeTensor('float32', [lod.length - 1, width]);
  for (let s = 0; s + 1 < lod.length; s++) {
    for (let d = 0; d < width; d++) {
      let sum = 0;
      for (let row = lod[s]!; row < lod[s + 1]!; row++) sum += data[row * width + d]!;
      sums.data[s * width + d] = sum;
    }
  }
  return sums;
}

interface Pruned {
  readonly run: Run;
  close(): Promise<void>;
}

/** The program and the parameters that were written. */
function runProgram(full: PaddleProof, folder: string): Pruned {
  const path = join(folder, basename(full.path));
  const program = readProgram(readFile(path), path);
  const graph = new ProgramGraph(program, []);
  const { combined } = full.parameters;
  const parameters = new Parameters(path, program, {
    given: combined === undefined ? folder : join(folder, combined),
    needed: graph.neededNames(),
  });
  const pieces = { path, graph, parameters, lookups: [] };
  const interpreter = new Interpreter(graph, new ParameterValues(pieces, new Map()));
  return { run: async (feeds) => interpreter.run(feeds), close: async () => undefined };
}

async function runOnnx(full: PaddleProof, folder: string): Promise<Pruned> {
  const model = await OnnxModel.load(join(folder, MODEL_FILE), { source: 'the converted model' });
  const shapes = new Map(model.inputs.map(({ name, shape }) => [name, shape]));
  const run: Run = async (feeds) => {
    const given = [...feeds].filter(([name]) => shapes.has(name));
    const tensors = given.map(([name, tensor]) => [name, toOnnx(tensor, shapes.get(name)!.length)]);
    const results = await model.run(Object.fromEntries(tensors));
    return new Map(
      full.graph.outputs.flatMap(({ name }): [string, Tensor][] => {
        const result = results[name];
        return result === undefined ? [] : [[name, fromOnnx(result)]];
      }),
    );
  };
  return { run, close: () => model.release() };
}

/** Sequences of one length get an axis of their own where the converted model has one. */
function toOnnx({ dtype, data, dims, lod }: Tensor, rank: number): OnnxTensor {
  const batch = (lod?.length ?? 1) - 1;
  const isScalarRow = dims.length === 2 && dims[1] === 1 && rank === 2;
  const tail = isScalarRow ? [] : dims.slice(1);
  const isSplit = lod !== undefined && (rank > dims.length || (isScalarRow && lod[1]! > 1));
  const shape = isSplit ? [batch, lod[1]!, ...tail] : [...dims];
  if (dtype === 'int64') return { dtype, data: BigInt64Array.from(data, BigInt), dims: shape };
  if (dtype === 'int32') return { dtype, data: Int32Array.from(data), dims: shape };
  if (dtype === 'bool') return { dtype, data: Uint8Array.from(data), dims: shape };
  if (dtype === 'float64') return { dtype, data: data as Float64Array, dims: shape };
  return { dtype, data: data as Float32Array, dims: shape };
}

function fromOnnx({ dtype, data, dims }: OnnxTensor): Tensor {
  const values = dtype === 'float32' ? (data as Float32Array) : Float64Array.from(data, Number);
  return { dtype: dtype as Tensor['dtype'], data: values, dims };
}
