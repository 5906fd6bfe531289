/**
 * The parameters of a program: one file for each variable, named like it, or all in one file in the order of their names' bytes.
 * Data is read where it lies; nothing is held.
 */
import { basename, dirname, isAbsolute, join } from 'node:path';
import { CubeError } from '../../../lib/core/errors.ts';
import { fileExists, isFolder } from '../../../lib/platform/files.ts';
import { DataFile } from './data-file.ts';
import { type ParameterStream, readLodTensor, readSelectedRows } from './parameter-stream.ts';
import {
  elementBytes,
  elementName,
  isParameter,
  type Program,
  TYPE_SELECTED_ROWS,
  type Variable,
} from './program.ts';

/** The value of one variable, in its file. */
export interface Parameter extends ParameterStream {
  readonly variable: Variable;
  readonly reader: DataFile;
}

const encoder = new TextEncoder();

/** The order of a combined file. */
function byBytes(a: string, b: string): number {
  const [x, y] = [encoder.encode(a), encoder.encode(b)];
  const length = Math.min(x.length, y.length);
  for (let i = 0; i < length; i++) if (x[i] !== y[i]) return x[i]! - y[i]!;
  return x.length - y.length;
}

export interface ParameterOptions {
  /** File or folder of --params. */
  readonly given?: string | undefined;
  /** Tables that a server may hold. */
  readonly mayMiss?: ReadonlySet<string>;
  /** What the outputs need: of the others a file of their own may be missing; all when it is not said. */
  readonly needed?: ReadonlySet<string>;
}

export class Parameters {
  /** Name of the combined file; undefined when each variable has its own. */
  readonly combined: string | undefined;
  readonly #parameters = new Map<string, Parameter>();
  readonly #absent = new Set<string>();

  /** @throws CubeError CORRUPT when data is missing or of the wrong size */
  constructor(model: string, program: Program, options: ParameterOptions) {
    const place = findParameters(model, options.given);
    this.combined = place.file === undefined ? undefined : basename(place.file);
    const variables = parametersOf(program);
    const { mayMiss = new Set(), needed } = options;
    if (place.file !== undefined) this.#openCombined(place.file, variables, mayMiss);
    else {
      const idle = variables.map(({ name }) => name).filter((name) => needed?.has(name) === false);
      this.#openSeparate(place.folder, variables, new Set([...mayMiss, ...idle]));
    }
  }

  /** All that are there, in the order of a combined file. */
  get all(): readonly Parameter[] {
    return [...this.#parameters.values()];
  }

  get(name: string): Parameter | undefined {
    return this.#parameters.get(name);
  }

  /** Whether the variable's value is kept somewhere else. */
  isAbsent(name: string): boolean {
    return this.#absent.has(name);
  }

  get bytes(): number {
    return this.all.reduce((sum, { start, end }) => sum + end - start, 0);
  }

  #openCombined(path: string, all: readonly Variable[], mayMiss: ReadonlySet<string>): void {
    if (!fileExists(path) || isFolder(path)) {
      throw new CubeError('CORRUPT', `${path}: the file of the parameters is missing`);
    }
    const reader = new DataFile(path);
    try {
      this.#readCombined(reader, all);
    } catch (error) {
      // A table that a server holds is not in the file.
      const rest = all.filter(({ name }) => !mayMiss.has(name));
      if (rest.length === all.length) throw error;
      this.#parameters.clear();
      this.#readCombined(reader, rest);
      for (const { name } of all) if (mayMiss.has(name)) this.#absent.add(name);
    }
  }

  #readCombined(reader: DataFile, variables: readonly Variable[]): void {
    let position = 0;
    for (const variable of variables) {
      const parameter = this.#read(reader, position, variable);
      position = parameter.end;
    }
    if (position !== reader.bytes) {
      throw new CubeError(
        'CORRUPT',
        `${reader.path} has ${reader.bytes} bytes, its ${variables.length} variables end at ${position}`,
      );
    }
  }

  #openSeparate(
    folder: string,
    variables: readonly Variable[],
    mayMiss: ReadonlySet<string>,
  ): void {
    for (const variable of variables) {
      const { name } = variable;
      if (isAbsolute(name) || name.split(/[\\/]/).includes('..') || name.includes('\0')) {
        throw new CubeError(
          'UNSUPPORTED',
          `cannot prune this model: its variable ${JSON.stringify(name)} names a file outside its folder`,
        );
      }
      const path = join(folder, name);
      if (!fileExists(path) || isFolder(path)) {
        if (mayMiss.has(name)) {
          this.#absent.add(name);
          continue;
        }
        throw new CubeError(
          'CORRUPT',
          `the parameter ${JSON.stringify(name)} is missing: ${folder} has no such file (--params names a file that holds them all)`,
        );
      }
      const { end, reader } = this.#read(new DataFile(path), 0, variable);
      if (end !== reader.bytes) {
        throw new CubeError(
          'CORRUPT',
          `${path} has ${reader.bytes} bytes, its variable ends at ${end}`,
        );
      }
    }
  }

  #read(reader: DataFile, start: number, variable: Variable): Parameter {
    const { name, kind } = variable;
    const what = `variable ${JSON.stringify(name)}`;
    const read = kind === TYPE_SELECTED_ROWS ? readSelectedRows : readLodTensor;
    const parameter = { variable, reader, ...read(reader, start, what) };
    checkDeclared(parameter);
    this.#parameters.set(name, parameter);
    return parameter;
  }
}

/** The stream must be of what the program declares. */
function checkDeclared({ variable, reader, elementType, dims, keysOffset }: Parameter): void {
  const axes = keysOffset === undefined ? 0 : 1;
  const fits =
    elementType === variable.elementType &&
    dims.length === variable.dims.length &&
    dims.every((dim, i) => i < axes || dim === variable.dims[i] || variable.dims[i] === -1);
  if (fits) return;
  const found = `${elementName(elementType)} [${dims.join(', ')}]`;
  const declared = `${elementName(variable.elementType)} [${variable.dims.join(', ')}]`;
  throw new CubeError(
    'CORRUPT',
    `${reader.path}: variable ${JSON.stringify(variable.name)} is ${found}, the program says ${declared}`,
  );
}

/** Each variable once, in the order of a combined file. */
function parametersOf({ blocks }: Program): Variable[] {
  const variables = new Map<string, Variable>();
  for (const { vars } of blocks) {
    for (const variable of vars) {
      if (isParameter(variable) && !variables.has(variable.name)) {
        variables.set(variable.name, variable);
      }
    }
  }
  return [...variables.values()].sort((a, b) => byBytes(a.name, b.name));
}

function findParameters(
  model: string,
  given: string | undefined,
): { file?: string; folder: string } {
  const folder = dirname(model);
  if (given !== undefined) return isFolder(given) ? { folder: given } : { file: given, folder };
  const beside = /\.pdmodel$/.test(model)
    ? model.replace(/\.pdmodel$/, '.pdiparams')
    : join(folder, '__params__');
  return fileExists(beside) && !isFolder(beside) ? { file: beside, folder } : { folder };
}

/** Fills `target` with elements of a float32 parameter, from element `first` on. */
export function readFloats(parameter: Parameter, first: number, target: Float32Array): void {
  const itemBytes = elementBytes(parameter.elementType)!;
  const bytes = new Uint8Array(target.buffer, target.byteOffset, target.byteLength);
  parameter.reader.readInto(bytes, parameter.dataOffset + first * itemBytes);
}
