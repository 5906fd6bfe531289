/** The steps for a Paddle program: read, index, find lookups, cut, convert on request. */

import { basename, dirname } from 'node:path';
import { CubeError } from '../../../lib/core/errors.ts';
import { readFile } from '../../../lib/platform/files.ts';
import type { CutLookup, CutModel, Dim, TensorInfo } from '../cut/cut-model.ts';
import { MODEL_FILE, REPORT_FILE, SLOTS_FILE, type StagedOutput } from '../cut/output-folder.ts';
import { refuseModel } from '../cut/refusals.ts';
import { TableNames } from '../cut/table.ts';
import { findPaddleLookups, findRemoteTables, type PaddleLookup } from './lookup-finder.ts';
import { verifyPaddleProgram } from './paddle-verification.ts';
import { type Parameter, Parameters } from './parameters.ts';
import {
  describeOp,
  getElementTypeName,
  getInputNames,
  type Program,
  type Variable,
} from './program.ts';
import type { PaddleCut } from './program-cutter.ts';
import { cutProgram, findKeptParameters, findReaderTypes } from './program-cutter.ts';
import { ProgramGraph } from './program-graph.ts';
import { readProgram } from './program-reader.ts';
import { formatProgram } from './program-text.ts';
import { toInferenceProgram } from './program-writer.ts';
import type { SequenceLengths } from './sequence-lengths.ts';
import { buildServingConfs } from './serving-conf.ts';
import { toTable } from './table-rows.ts';
import { convertProgram } from './to-onnx.ts';

export interface PaddleOptions {
  /** File or folder of the parameters; undefined: next to the program. */
  readonly params: string | undefined;
  /** Outputs to keep; empty keeps all. */
  readonly fetch: readonly string[];
  /** Converts the pruned program. */
  readonly to: 'onnx' | undefined;
  readonly lengths: SequenceLengths;
}

/** @returns undefined when the program has no lookups */
export function cutPaddleModel(path: string, options: PaddleOptions): CutModel | undefined {
  const bytes = readFile(path);
  const parsed = readProgram(bytes, path);
  const program = options.fetch.length > 0 ? toInferenceProgram(parsed) : parsed;
  const graph = new ProgramGraph(program, options.fetch);
  checkSequenceLengths(options.lengths, graph);
  const parameters = new Parameters(path, program, {
    path: options.params,
    optional: findRemoteTables(program),
    needed: graph.collectNeededNames(),
  });
  const found = findPaddleLookups(graph, parameters);
  if (found.length === 0) return undefined;
  const cut = cutProgram(graph, found);
  const lookups = found.filter(({ output }) => cut.inputs.includes(output));
  const pieces = { path, graph, parameters, lookups, cut };
  const converted =
    options.to === 'onnx' ? convertProgram({ ...pieces, lengths: options.lengths }) : undefined;
  const files =
    converted === undefined ? planProgramFiles(pieces) : planConvertedFiles(converted.bytes);
  const builder = new CutModelBuilder(pieces, options);
  return {
    ...builder.buildLookupsAndTables(converted === undefined),
    maps: [],
    inputs: graph.inputs.map((input) => builder.toTensorInfo(input)),
    outputs: graph.outputs.map((output) => builder.toTensorInfo(output)),
    keptInputs: cut.keptInputs.map((input) => ({
      ...builder.toTensorInfo(input),
      readers: cut.ops
        .filter((op) => getInputNames(op).includes(input.name))
        .map(({ type }) => type),
    })),
    nodes: { before: countComputingOps(program), after: cut.ops.length },
    bytes: { before: bytes.length + parameters.bytes, after: files.bytes },
    files: files.names,
    writeGraph: files.write,
    verify: (request) =>
      verifyPaddleProgram(
        { ...pieces, converted: converted !== undefined, lengths: options.lengths },
        request,
      ),
    close: () => undefined,
  };
}

/** @throws CubeError INVALID_ARGUMENT for a length of an input that has no sequences */
function checkSequenceLengths(lengths: SequenceLengths, { inputs }: ProgramGraph): void {
  const sequences = inputs.filter(({ lodLevel }) => lodLevel > 0).map(({ name }) => name);
  for (const name of lengths.names) {
    if (sequences.includes(name)) continue;
    const known = sequences.map((sequence) => JSON.stringify(sequence)).join(', ') || 'none';
    throw new CubeError(
      'INVALID_ARGUMENT',
      `--sequence-length ${name}=${lengths.get(name)}: no input of that name takes ` +
        `sequences; these do: ${known}`,
    );
  }
}

function countComputingOps({ main }: Program): number {
  return main.ops.filter(({ type }) => type !== 'feed' && type !== 'fetch').length;
}

function sumBytes(parameters: readonly Parameter[]): number {
  return parameters.reduce((sum, { start, end }) => sum + end - start, 0);
}

interface GraphFiles {
  readonly names: readonly string[];
  /** Bytes of graph and parameters. */
  readonly bytes: number;
  readonly write: (output: StagedOutput) => void;
}

function planConvertedFiles(model: Uint8Array): GraphFiles {
  const write = (output: StagedOutput): void => output.writeFile(MODEL_FILE, model);
  return { names: [MODEL_FILE], bytes: model.length, write };
}

/** The files of a pruned program: in the form of the input, plus its text form. */
function planProgramFiles({ path, graph, parameters, cut }: PaddleCut): GraphFiles {
  const model = basename(path);
  const kept = findKeptParameters(graph, cut);
  const streams = parameters.all.filter(({ variable }) => kept.has(variable.name));
  const confs = buildServingConfs(dirname(path), cut.inputs, graph.outputs);
  const { combinedFile } = parameters;
  const data =
    combinedFile === undefined ? streams.map(({ variable }) => variable.name) : [combinedFile];
  const texts = [`${model}.prototxt`, ...confs.keys()];
  const names = [model, ...texts, ...data];
  checkFileNames(names);
  const text = new TextEncoder().encode(formatProgram(cut.bytes));
  const write = (output: StagedOutput): void => {
    output.writeFile(model, cut.bytes);
    output.writeFile(`${model}.prototxt`, text);
    for (const [name, bytes] of confs) output.writeFile(name, bytes);
    if (combinedFile !== undefined) output.writeParts(combinedFile, toFileParts(streams));
    else
      for (const stream of streams) output.writeParts(stream.variable.name, toFileParts([stream]));
  };
  return { names, bytes: cut.bytes.length + sumBytes(streams), write };
}

/** The streams one after another, with the bytes that they have in their files. */
function toFileParts(
  streams: readonly Parameter[],
): { length: number; position: number; readInto(target: Uint8Array, at: number): void }[] {
  let position = 0;
  return streams.map(({ reader, start, end }) => {
    const part = {
      length: end - start,
      position,
      readInto: (target: Uint8Array, at: number): void => reader.readInto(target, start + at),
    };
    position += part.length;
    return part;
  });
}

/** Checks that no file of the program has the name of another output file. */
function checkFileNames(names: readonly string[]): void {
  const taken = new Set([SLOTS_FILE, REPORT_FILE, 'tables', MODEL_FILE]);
  for (const name of names) {
    const [top] = name.split('/');
    if (taken.has(name) || top === 'tables' || name.startsWith('.')) {
      refuseModel(
        `its file ${JSON.stringify(name)} would be written over another file of the output; ` +
          'rename it',
      );
    }
    taken.add(name);
  }
}

/** Describes lookups and tables in the form that both formats share. */
class CutModelBuilder {
  readonly #pieces: PaddleCut;
  readonly #options: PaddleOptions;

  constructor(pieces: PaddleCut, options: PaddleOptions) {
    this.#pieces = pieces;
    this.#options = options;
  }

  buildLookupsAndTables(isProgram: boolean): Pick<CutModel, 'lookups' | 'tables' | 'warnings'> {
    const { graph, cut, lookups } = this.#pieces;
    const names = new TableNames();
    const sources = [...new Set(lookups.map(({ table }) => table))];
    const tables = sources.map((source) => {
      const variable = source.parameter?.variable.name;
      const remainingReaders =
        variable === undefined ? [] : findReaderTypes(graph, cut.ops, variable);
      return toTable(source, names, remainingReaders);
    });
    const where = isProgram ? 'program' : 'graph';
    const warnings = tables.flatMap(({ name, remainingReaders, isExternal }) => [
      ...(remainingReaders.length > 0
        ? [
            `table ${name} also stays in the ${where}, where it is read by ` +
              `${remainingReaders.join(', ')}`,
          ]
        : []),
      ...(isExternal
        ? [`table ${name} is not in the model: a parameter server holds its rows`]
        : []),
    ]);
    return { lookups: lookups.map((lookup) => this.#lookup(lookup)), tables, warnings };
  }

  /** The tensor that a caller feeds or gets; a converted sequence has one more axis. */
  toTensorInfo({ name, elementType, dims, lodLevel }: Variable): TensorInfo {
    const [first, ...tail] = dims.map(toDim);
    const isSequence = lodLevel > 0 && this.#options.to === 'onnx';
    const length = this.#options.lengths.get(name);
    const isScalarRow = tail.length === 1 && tail[0] === 1;
    const shape =
      isSequence && length > 1 ? [first, length, ...(isScalarRow ? [] : tail)] : dims.map(toDim);
    return { name, dtype: getElementTypeName(elementType), shape };
  }

  #lookup({ op, output, ids, table, isPooled }: PaddleLookup): CutLookup {
    const isSequence = ids.input.lodLevel > 0;
    const length =
      isSequence && this.#options.to === 'onnx' ? this.#options.lengths.get(ids.input.name) : 1;
    const columns = length > 1 ? Array.from({ length }, (_, column) => column) : ids.columns;
    const [first, ...tail] = output.dims.map(toDim);
    const shape = length > 1 ? [first, length, ...tail] : [first, ...tail];
    const isProgram = this.#options.to === undefined;
    return {
      node: describeOp(op),
      input: output.name,
      shape,
      table: table.name,
      ids: [this.toTensorInfo(ids.input)],
      keys: columns.map((column) => ({ op: 'column', input: ids.input.name, column })),
      ...(isProgram && isSequence && !isPooled ? { lodLevel: 1 } : {}),
      ...(isProgram && isPooled
        ? { bags: { pooling: 'sum', offsets: ids.input.name, includesLast: true } }
        : {}),
      ...(table.padding === undefined ? {} : { paddingId: table.padding }),
    };
  }
}

function toDim(dim: number): Dim {
  return dim === -1 ? undefined : dim;
}
