/** A Paddle program through the steps of this folder: read, index, find the lookups, cut them out, or convert what is left. */
import { basename, dirname } from 'node:path';
import { CubeError } from '../../../lib/core/errors.ts';
import { readFile } from '../../../lib/platform/files.ts';
import type { CutLookup, CutModel, Dim, Port } from '../cut-model.ts';
import { MODEL_FILE, REPORT_FILE, SLOTS_FILE, type StagedOutput } from '../output-folder.ts';
import { TableNames } from '../table.ts';
import type { CutPieces } from './cut-pieces.ts';
import { findLookups, type Lookup, remoteTables } from './lookups.ts';
import { provePaddle } from './paddle-proof.ts';
import { type Parameter, Parameters } from './parameters.ts';
import { describeOp, elementName, inputNames, type Program, type Variable } from './program.ts';
import { cutProgram, keptParameters, readersOf } from './program-cutter.ts';
import { ProgramGraph } from './program-graph.ts';
import { readProgram } from './program-reader.ts';
import { programText } from './program-text.ts';
import { inInferenceForm } from './program-writer.ts';
import { refuseProgram } from './refusal.ts';
import type { SequenceLengths } from './sequence-lengths.ts';
import { servingConfs } from './serving-conf.ts';
import { toTable } from './table-rows.ts';
import { convertProgram } from './to-onnx.ts';

export interface PaddleOptions {
  /** File or folder of the parameters, where it is not the usual one. */
  readonly params: string | undefined;
  /** Outputs to keep; all when there are none. */
  readonly fetch: readonly string[];
  /** Converts what is left. */
  readonly to: 'onnx' | undefined;
  readonly lengths: SequenceLengths;
}

/** @returns undefined when the program has no lookups */
export function cutPaddleModel(path: string, options: PaddleOptions): CutModel | undefined {
  const bytes = readFile(path);
  const read = readProgram(bytes, path);
  const program = options.fetch.length > 0 ? inInferenceForm(read) : read;
  const graph = new ProgramGraph(program, options.fetch);
  checkLengths(options.lengths, graph);
  const parameters = new Parameters(path, program, {
    given: options.params,
    mayMiss: remoteTables(program),
    needed: graph.neededNames(),
  });
  const found = findLookups(graph, parameters);
  if (found.length === 0) return undefined;
  const cut = cutProgram(graph, found);
  const lookups = found.filter(({ output }) => cut.inputs.includes(output));
  const pieces = { path, graph, parameters, lookups, cut };
  const converted =
    options.to === 'onnx' ? convertProgram({ ...pieces, lengths: options.lengths }) : undefined;
  const files = converted === undefined ? programFiles(pieces) : undefined;
  const kept = converted?.bytes.length ?? cut.bytes.length + sizeOf(files!.parameters);
  const neutral = new NeutralForm(pieces, options);
  return {
    ...neutral.lookupsAndTables(converted === undefined),
    maps: [],
    inputs: graph.inputs.map((input) => neutral.port(input)),
    outputs: graph.outputs.map((output) => neutral.port(output)),
    keptInputs: cut.keptInputs.map((input) => ({
      ...neutral.port(input),
      readers: cut.ops.filter((op) => inputNames(op).includes(input.name)).map(({ type }) => type),
    })),
    nodes: { before: computing(program), after: cut.ops.length },
    bytes: { before: bytes.length + parameters.bytes, after: kept },
    files: files?.names ?? [MODEL_FILE],
    writeGraph: (output) => {
      if (converted !== undefined) output.writeFile(MODEL_FILE, converted.bytes);
      else files!.write(output);
    },
    prove: (request) =>
      provePaddle(
        { ...pieces, converted: converted !== undefined, lengths: options.lengths },
        request,
      ),
    close: () => undefined,
  };
}

/** A length for an input that takes none would be passed over, and the model converted for another. */
function checkLengths(lengths: SequenceLengths, { inputs }: ProgramGraph): void {
  const sequences = inputs.filter(({ lodLevel }) => lodLevel > 0).map(({ name }) => name);
  for (const name of lengths.names) {
    if (sequences.includes(name)) continue;
    const known = sequences.map((sequence) => JSON.stringify(sequence)).join(', ') || 'none';
    throw new CubeError(
      'INVALID_ARGUMENT',
      `--sequence-length ${name}=${lengths.of(name)}: no input of that name takes sequences (those that do: ${known})`,
    );
  }
}

function computing({ blocks }: Program): number {
  return blocks[0]!.ops.filter(({ type }) => type !== 'feed' && type !== 'fetch').length;
}

function sizeOf(parameters: readonly Parameter[]): number {
  return parameters.reduce((sum, { start, end }) => sum + end - start, 0);
}

interface ProgramFiles {
  readonly names: readonly string[];
  readonly parameters: readonly Parameter[];
  write(output: StagedOutput): void;
}

/** What a pruned program is written as: like the input, and its text beside it. */
function programFiles({ path, graph, parameters, cut }: CutPieces): ProgramFiles {
  const model = basename(path);
  const kept = keptParameters(graph, cut);
  const streams = parameters.all.filter(({ variable }) => kept.has(variable.name));
  const confs = servingConfs(dirname(path), cut.inputs, graph.outputs);
  const { combined } = parameters;
  const data = combined === undefined ? streams.map(({ variable }) => variable.name) : [combined];
  const texts = [`${model}.prototxt`, ...confs.keys()];
  const names = [model, ...texts, ...data];
  checkNames(names);
  const text = new TextEncoder().encode(programText(cut.bytes));
  const write = (output: StagedOutput): void => {
    output.writeFile(model, cut.bytes);
    output.writeFile(`${model}.prototxt`, text);
    for (const [name, bytes] of confs) output.writeFile(name, bytes);
    if (combined !== undefined) output.writePieces(combined, inOneFile(streams));
    else
      for (const stream of streams) output.writePieces(stream.variable.name, inOneFile([stream]));
  };
  return { names, parameters: streams, write };
}

/** The streams one behind the other, as they stood in their files. */
function inOneFile(
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

/** Names of files that stand beside the model must not be those of our own. */
function checkNames(names: readonly string[]): void {
  const taken = new Set([SLOTS_FILE, REPORT_FILE, 'tables', MODEL_FILE]);
  for (const name of names) {
    const [top] = name.split('/');
    if (taken.has(name) || top === 'tables' || name.startsWith('.')) {
      refuseProgram(`its file ${JSON.stringify(name)} would be written over another of the output`);
    }
    taken.add(name);
  }
}

/** The lookups and tables as all formats describe them. */
class NeutralForm {
  readonly #pieces: CutPieces;
  readonly #options: PaddleOptions;

  constructor(pieces: CutPieces, options: PaddleOptions) {
    this.#pieces = pieces;
    this.#options = options;
  }

  lookupsAndTables(isProgram: boolean): Pick<CutModel, 'lookups' | 'tables' | 'warnings'> {
    const { graph, cut, lookups } = this.#pieces;
    const names = new TableNames();
    const sources = [...new Set(lookups.map(({ table }) => table))];
    const tables = sources.map((source) => {
      const variable = source.parameter?.variable.name;
      const keptFor = variable === undefined ? [] : readersOf(graph, cut.ops, variable);
      return toTable(source, names, keptFor);
    });
    const where = isProgram ? 'program' : 'graph';
    const warnings = tables.flatMap(({ name, keptFor, isExternal }) => [
      ...(keptFor.length > 0
        ? [`table ${name} also stays in the ${where}: ${keptFor.join(', ')} reads it`]
        : []),
      ...(isExternal ? [`table ${name} is not in the model: a server holds its rows`] : []),
    ]);
    return { lookups: lookups.map((lookup) => this.#lookup(lookup)), tables, warnings };
  }

  /** As a caller sees it; a sequence that is converted has one axis more. */
  port({ name, elementType, dims, lodLevel }: Variable): Port {
    const [first, ...tail] = dims.map(toDim);
    const isSequence = lodLevel > 0 && this.#options.to === 'onnx';
    const length = this.#options.lengths.of(name);
    const isScalarRow = tail.length === 1 && tail[0] === 1;
    const shape =
      isSequence && length > 1 ? [first, length, ...(isScalarRow ? [] : tail)] : dims.map(toDim);
    return { name, dtype: elementName(elementType), shape };
  }

  #lookup({ op, output, ids, table, isPooled }: Lookup): CutLookup {
    const isSequence = ids.input.lodLevel > 0;
    const length =
      isSequence && this.#options.to === 'onnx' ? this.#options.lengths.of(ids.input.name) : 1;
    const columns = length > 1 ? Array.from({ length }, (_, column) => column) : ids.columns;
    const [first, ...tail] = output.dims.map(toDim);
    const shape = length > 1 ? [first, length, ...tail] : [first, ...tail];
    const isProgram = this.#options.to === undefined;
    return {
      node: describeOp(op),
      input: output.name,
      shape,
      table: table.name,
      ids: [this.port(ids.input)],
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
