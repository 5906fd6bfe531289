/**
 * Reads serving_client_conf.prototxt, which Paddle Serving's tools write beside a model: the names,
 * aliases, types and shapes of its inputs and outputs.
 */
import { join } from 'node:path';
import { ELEM_TYPES } from '../../proto/general-tensor.ts';
import { parseTextFormat, type TextMessage } from '../../proto/text-format.ts';
import { CubeError } from '../core/errors.ts';
import type { TensorType } from '../core/graph-signature.ts';
import { suggestNames } from '../core/nearest-name.ts';
import { fileExists, isFolder, readText } from '../platform/files.ts';

const FILE = 'serving_client_conf.prototxt';
const FILE_BYTES_MAX = 4 << 20;
const DIM_MAX = 0x7fff_ffff;
const TYPES: ReadonlyMap<number, TensorType> = new Map(
  Object.entries(ELEM_TYPES).map(([type, number]) => [number, type as TensorType]),
);

export interface ClientVariable {
  /** In the model. */
  readonly name: string;
  /** For callers; the name where the file has no alias. */
  readonly alias: string;
  /** Its rows have different lengths. */
  readonly isLod: boolean;
  readonly dataType: TensorType;
  /** Of one row; -1: any length. */
  readonly shape: readonly number[];
}

export interface ClientConf {
  readonly feeds: readonly ClientVariable[];
  readonly fetches: readonly ClientVariable[];
}

/**
 * @param path the file, or its folder
 * @throws CubeError NOT_FOUND, INVALID_ARGUMENT with file, line and column
 */
export function readClientConf(path: string): ClientConf {
  const file = isFolder(path) ? join(path, FILE) : path;
  if (!fileExists(file)) throw new CubeError('NOT_FOUND', `${file}: no such file`);
  const message = parseTextFormat(readText(file, FILE_BYTES_MAX), file);
  checkFields(message, ['feed_var', 'fetch_var']);
  return {
    feeds: readVariables(message, 'feed_var', 'feed_type'),
    fetches: readVariables(message, 'fetch_var', 'fetch_type'),
  };
}

function readVariables(file: TextMessage, field: string, typeField: string): ClientVariable[] {
  const variables: ClientVariable[] = [];
  for (const message of file.messages(field)) {
    checkFields(message, ['name', 'alias_name', 'is_lod_tensor', typeField, 'shape']);
    const name = message.string('name') ?? message.fail('the variable has no name');
    const alias = message.string('alias_name') ?? name;
    if (variables.some((other) => other.alias === alias)) {
      message.fail(`two variables of ${field} have the alias ${alias}; rename one`);
    }
    const type = message.integer(typeField, 0, DIM_MAX) ?? 0;
    const dataType =
      TYPES.get(type) ?? message.failField(typeField, `${typeField}: unknown type ${type}`);
    const isLod = message.boolean('is_lod_tensor') ?? false;
    const shape = message.integers('shape', -1, DIM_MAX);
    variables.push({ name, alias, isLod, dataType, shape });
  }
  return variables;
}

function checkFields(message: TextMessage, known: readonly string[]): void {
  const unknown = message.names.find((name) => !known.includes(name));
  if (unknown === undefined) return;
  message.failField(unknown, `unknown field ${unknown}; ${suggestNames(unknown, known)}`);
}
