/**
 * Proves a pruned program: reads what was written back and compares, on sampled inputs, the full
 * program and the pruned program fed with rows of the tables. Programs run in the reference
 * interpreter; a converted model runs in onnxruntime.
 */

import { basename, join } from 'node:path';
import { requireDefined } from '../../../lib/core/errors.ts';
import { JsonReader } from '../../../lib/core/json.ts';
import { readSlotSpec } from '../../../lib/core/slots.ts';
import { readFile, readText } from '../../../lib/platform/files.ts';
import { OnnxModel, type OnnxTensor } from '../../../lib/platform/onnx.ts';
import { MODEL_FILE, SLOTS_FILE } from '../cut/output-folder.ts';
import { notVerifiedError } from '../cut/refusals.ts';
import {
  CONVERTED_DIFFERENCE_MAX,
  OutputComparison,
  openTables,
  RandomNumbers,
  type TableRowReader,
  VERIFICATION_SEED,
  type VerificationRequest,
  type VerificationResult,
} from '../cut/verification.ts';
import { PaddleInputSampler } from './input-sampler.ts';
import { Interpreter } from './interpreter.ts';
import type { PaddleLookup } from './lookup-finder.ts';
import { ParameterValues } from './parameter-values.ts';
import { Parameters } from './parameters.ts';
import type { PaddleCut } from './program-cutter.ts';
import { ProgramGraph } from './program-graph.ts';
import { readProgram } from './program-reader.ts';
import type { SequenceLengths } from './sequence-lengths.ts';
import { fillExternalRow, type SampledTableRows } from './table-rows.ts';
import { createTensor, type Tensor } from './tensor.ts';

export interface PaddleVerificationSource extends PaddleCut {
  readonly converted: boolean;
  readonly lengths: SequenceLengths;
}

type RunModel = (feeds: ReadonlyMap<string, Tensor>) => Promise<ReadonlyMap<string, Tensor>>;

/** @throws CubeError INVALID_ARGUMENT when they differ, UNSUPPORTED when they cannot be run here */
export async function verifyPaddleProgram(
  full: PaddleVerificationSource,
  request: VerificationRequest,
): Promise<VerificationResult> {
  const { folder, samples } = request;
  const spec = readSlotSpec(JsonReader.parse(readText(join(folder, SLOTS_FILE)), SLOTS_FILE));
  const random = new RandomNumbers(VERIFICATION_SEED);
  const { lengths, converted } = full;
  const inputs = new PaddleInputSampler(full, random, (name) =>
    converted ? lengths.get(name) : undefined,
  );
  const fullProgram = new Interpreter(full.graph, new ParameterValues(full, inputs.rows));
  const pruned = converted
    ? await openConvertedModel(full, folder)
    : openPrunedProgram(full, folder);
  const tables = openTables(folder, spec);
  const comparison = new OutputComparison(converted ? CONVERTED_DIFFERENCE_MAX : undefined);
  const outputShapes = new Map<string, readonly number[]>();
  const batches = [samples, 1];
  try {
    for (const batch of batches) {
      const feeds = inputs.draw(batch);
      const expected = fullProgram.run(feeds);
      const rows = full.lookups.map((lookup, i): [string, Tensor] => {
        const table = tables.get(requireDefined(spec.embeddings[i], 'the input of a lookup').table);
        const sampled = requireDefined(inputs.rows.get(lookup.table), 'the rows of a table');
        const rows = buildRowsTensor(lookup, feeds, sampled, table);
        // A converted graph sums the rows of a pooled lookup itself.
        const isSummed = lookup.isPooled && !converted;
        return [lookup.output.name, isSummed ? sumSequences(rows) : rows];
      });
      const kept = full.cut.keptInputs.map(({ name }): [string, Tensor] => [
        name,
        requireDefined(feeds.get(name), 'the values of an input'),
      ]);
      const actual = await pruned.run(new Map([...kept, ...rows]));
      for (const [name, tensor] of expected) {
        comparison.compare(name, tensor, actual.get(name));
        outputShapes.set(name, tensor.dims);
      }
    }
  } finally {
    for (const table of tables.values()) table.close();
    await pruned.close();
  }
  const maxAbsDifference = comparison.finish(full.path);
  return {
    verification: { samples, seed: VERIFICATION_SEED, batches, maxAbsDifference },
    outputShapes,
  };
}

/** The rows of one new input: from the table file, or made up for a table on a parameter server. */
function buildRowsTensor(
  { ids, table, output }: PaddleLookup,
  feeds: ReadonlyMap<string, Tensor>,
  sampled: SampledTableRows,
  file: TableRowReader | undefined,
): Tensor {
  const source = requireDefined(feeds.get(ids.input.name), 'the ids of a lookup');
  const [count = 0] = source.dims;
  const width = source.data.length / Math.max(1, count);
  const [, ...tail] = output.dims;
  const rows = createTensor('float32', [count, ...tail], source.lod);
  const data = rows.data as Float32Array;
  let at = 0;
  for (let row = 0; row < count; row++) {
    for (const column of ids.columns) {
      const key = source.data[row * width + column]!;
      const position = sampled.findPosition(key);
      if (position === undefined)
        throw notVerifiedError(`key ${key} is not in table ${table.name}`);
      const target = data.subarray(at, at + table.dim);
      if (file !== undefined) file.copyRow(position, data, at);
      else if (key !== table.padding) fillExternalRow(key, target);
      at += table.dim;
    }
  }
  return rows;
}

function sumSequences({ data, dims, lod = [] }: Tensor): Tensor {
  const [, width = 1] = dims;
  const sums = createTensor('float32', [lod.length - 1, width]);
  for (let s = 0; s + 1 < lod.length; s++) {
    for (let d = 0; d < width; d++) {
      let sum = 0;
      for (let row = lod[s]!; row < lod[s + 1]!; row++) sum += data[row * width + d]!;
      sums.data[s * width + d] = sum;
    }
  }
  return sums;
}

interface PrunedModelRunner {
  readonly run: RunModel;
  close(): Promise<void>;
}

/** Opens the written program and its parameters. */
function openPrunedProgram(full: PaddleVerificationSource, folder: string): PrunedModelRunner {
  const path = join(folder, basename(full.path));
  const program = readProgram(readFile(path), path);
  const graph = new ProgramGraph(program, []);
  const { combinedFile } = full.parameters;
  const parameters = new Parameters(path, program, {
    path: combinedFile === undefined ? folder : join(folder, combinedFile),
    needed: graph.collectNeededNames(),
  });
  const pieces = { path, graph, parameters, lookups: [] };
  const interpreter = new Interpreter(graph, new ParameterValues(pieces, new Map()));
  return { run: async (feeds) => interpreter.run(feeds), close: async () => undefined };
}

async function openConvertedModel(
  full: PaddleVerificationSource,
  folder: string,
): Promise<PrunedModelRunner> {
  const model = await OnnxModel.load(join(folder, MODEL_FILE), { source: 'the converted model' });
  const shapes = new Map(model.inputs.map(({ name, shape }) => [name, shape]));
  const run: RunModel = async (feeds) => {
    const tensors = [...feeds].flatMap(([name, tensor]) => {
      const shape = shapes.get(name);
      return shape === undefined ? [] : [[name, toOnnxTensor(tensor, shape.length)]];
    });
    const results = await model.run(Object.fromEntries(tensors));
    return new Map(
      full.graph.outputs.flatMap(({ name }): [string, Tensor][] => {
        const result = results[name];
        return result === undefined ? [] : [[name, fromOnnxTensor(result)]];
      }),
    );
  };
  return { run, close: () => model.release() };
}

/** Gives sequences an axis of their own where the converted model has one. */
function toOnnxTensor({ dtype, data, dims, lod }: Tensor, rank: number): OnnxTensor {
  const batch = (lod?.length ?? 1) - 1;
  const isScalarRow = dims.length === 2 && dims[1] === 1 && rank === 2;
  const tail = isScalarRow ? [] : dims.slice(1);
  const length = lod?.[1] ?? 0;
  const isSplit = lod !== undefined && (rank > dims.length || (isScalarRow && length > 1));
  const shape = isSplit ? [batch, length, ...tail] : [...dims];
  if (dtype === 'int64') return { dtype, data: BigInt64Array.from(data, BigInt), dims: shape };
  if (dtype === 'int32') return { dtype, data: Int32Array.from(data), dims: shape };
  if (dtype === 'bool') return { dtype, data: Uint8Array.from(data), dims: shape };
  if (dtype === 'float64') return { dtype, data: data as Float64Array, dims: shape };
  return { dtype, data: data as Float32Array, dims: shape };
}

function fromOnnxTensor({ dtype, data, dims }: OnnxTensor): Tensor {
  const values = dtype === 'float32' ? (data as Float32Array) : Float64Array.from(data, Number);
  return { dtype: dtype as Tensor['dtype'], data: values, dims };
}
