/**
 * The parameters of a program: one file for each variable, named like it, or one file for all, in
 * the order of the bytes of their names. Data is read where it is; nothing is kept in memory.
 */

import { basename, dirname, isAbsolute, join } from 'node:path';
import { CubeError, requireDefined } from '../../../lib/core/errors.ts';
import { fileExists, isFolder } from '../../../lib/platform/files.ts';
import {
  DataFile,
  type ParameterStream,
  readLodTensor,
  readSelectedRows,
} from './parameter-stream.ts';
import {
  getElementBytes,
  getElementTypeName,
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

/** Compares names in the order of a combined file. */
function compareBytes(a: string, b: string): number {
  return Buffer.compare(encoder.encode(a), encoder.encode(b));
}

export interface ParameterOptions {
  /** File or folder of --params. */
  readonly path?: string | undefined;
  /** Tables that may be on a parameter server and absent here. */
  readonly optional?: ReadonlySet<string>;
  /** Variables that the outputs need; the files of others may be missing. Default: all. */
  readonly needed?: ReadonlySet<string>;
}

export class Parameters {
  /** Name of the combined file; undefined when each variable has its own file. */
  readonly combinedFile: string | undefined;
  readonly #parameters = new Map<string, Parameter>();
  readonly #absent = new Set<string>();

  /** @throws CubeError CORRUPT when data is missing or has the wrong size */
  constructor(model: string, program: Program, options: ParameterOptions) {
    const location = locateParameters(model, options.path);
    this.combinedFile = location.file === undefined ? undefined : basename(location.file);
    const variables = listParameters(program);
    const { optional = new Set(), needed } = options;
    if (location.file !== undefined) this.#openCombined(location.file, variables, optional);
    else {
      const unneeded = variables
        .map(({ name }) => name)
        .filter((name) => needed?.has(name) === false);
      this.#openSeparate(location.folder, variables, new Set([...optional, ...unneeded]));
    }
  }

  /** All parameters found, in the order of a combined file. */
  get all(): readonly Parameter[] {
    return [...this.#parameters.values()];
  }

  get(name: string): Parameter | undefined {
    return this.#parameters.get(name);
  }

  /** Whether the value is not among the parameters. */
  isAbsent(name: string): boolean {
    return this.#absent.has(name);
  }

  get bytes(): number {
    return this.all.reduce((sum, { start, end }) => sum + end - start, 0);
  }

  #openCombined(path: string, all: readonly Variable[], mayMiss: ReadonlySet<string>): void {
    if (!fileExists(path) || isFolder(path)) {
      throw new CubeError(
        'CORRUPT',
        `${path}: the file with the parameters is missing; name it with --params`,
      );
    }
    const reader = new DataFile(path);
    try {
      this.#readCombined(reader, all);
    } catch (error) {
      // Tables on a parameter server are not in the file.
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
        `${reader.path} has ${reader.bytes} bytes, but its ${variables.length} variables end ` +
          `at ${position}`,
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
          `cannot prune this model: its variable ${JSON.stringify(name)} names a file ` +
            `outside the model's folder`,
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
          `parameter ${JSON.stringify(name)} is missing: ${folder} has no such file; if one ` +
            'file contains ' +
            'all parameters, name it with --params',
        );
      }
      const { end, reader } = this.#read(new DataFile(path), 0, variable);
      if (end !== reader.bytes) {
        throw new CubeError(
          'CORRUPT',
          `${path} has ${reader.bytes} bytes, but its variable ends at ${end}`,
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

/** Checks a stream against the declaration in the program. */
function checkDeclared({ variable, reader, elementType, dims, keysOffset }: Parameter): void {
  const axes = keysOffset === undefined ? 0 : 1;
  const fits =
    elementType === variable.elementType &&
    dims.length === variable.dims.length &&
    dims.every((dim, i) => i < axes || dim === variable.dims[i] || variable.dims[i] === -1);
  if (fits) return;
  const found = `${getElementTypeName(elementType)} [${dims.join(', ')}]`;
  const declared = `${getElementTypeName(variable.elementType)} [${variable.dims.join(', ')}]`;
  throw new CubeError(
    'CORRUPT',
    `${reader.path}: variable ${JSON.stringify(variable.name)} is ${found}, but the program ` +
      `declares ${declared}`,
  );
}

/** Each variable once, in the order of a combined file. */
function listParameters({ blocks }: Program): Variable[] {
  const variables = new Map<string, Variable>();
  for (const { vars } of blocks) {
    for (const variable of vars) {
      if (isParameter(variable) && !variables.has(variable.name)) {
        variables.set(variable.name, variable);
      }
    }
  }
  return [...variables.values()].sort((a, b) => compareBytes(a.name, b.name));
}

function locateParameters(
  model: string,
  path: string | undefined,
): { file?: string; folder: string } {
  const folder = dirname(model);
  if (path !== undefined) return isFolder(path) ? { folder: path } : { file: path, folder };
  const sibling = /\.pdmodel$/.test(model)
    ? model.replace(/\.pdmodel$/, '.pdiparams')
    : join(folder, '__params__');
  return fileExists(sibling) && !isFolder(sibling) ? { file: sibling, folder } : { folder };
}

/** Fills `target` with elements of a float32 parameter, from element `first` on. */
export function readFloats(parameter: Parameter, first: number, target: Float32Array): void {
  const itemBytes = requireDefined(
    getElementBytes(parameter.elementType),
    'the size of an element',
  );
  const bytes = new Uint8Array(target.buffer, target.byteOffset, target.byteLength);
  parameter.reader.readInto(bytes, parameter.dataOffset + first * itemBytes);
}
