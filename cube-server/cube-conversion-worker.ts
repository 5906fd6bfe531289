/**
 * The thread that converts a dictionary directory of Cube to a layer file. Lookups continue
 * meanwhile, and its memory is freed when it ends. It handles one job and sends one result.
 */

import { parentPort, workerData } from 'node:worker_threads';

import { CubeError, type ErrorCode } from '../lib/core/errors.ts';
import type { RowsInput, ValuesInput } from '../lib/core/layer-input.ts';
import type { TableDtype } from '../lib/core/manifest.ts';
import { layerPath } from '../lib/repository/layout.ts';
import { type CubeDict, type CubeIndexFile, readCubeDict } from '../lib/store/cube-dict.ts';
import { writeLayer } from '../lib/store/layer-file.ts';

/** Converts one dictionary directory to a layer file. */
export interface ConversionJob {
  readonly source: string;
  /** Target folder, with the layout of a data folder. */
  readonly target: string;
  readonly bundle: string;
  readonly table: string;
  readonly shardIndex: number;
  readonly shardNum: number;
  /** Use the indexed layout, so that rows can stay on disk. */
  readonly indexed: boolean;
}

export interface ConvertedDict {
  readonly contentId: string;
  readonly bytes: number;
  readonly sha256: string;
  readonly rows: number;
  readonly dim: number;
  readonly dtype: TableDtype;
  readonly indexFiles: readonly CubeIndexFile[];
}

export type ConversionResult =
  | { readonly ok: true; readonly converted: ConvertedDict }
  | { readonly ok: false; readonly code: ErrorCode; readonly message: string };

/** Limit of the layer writer's 32-bit `ends`. */
const VALUES_BYTES_MAX = 2 ** 32 - 1;

function convert(job: ConversionJob): ConvertedDict {
  const { source, target, bundle, table, shardIndex, shardNum, indexed } = job;
  const dict = readCubeDict(source);
  const content = toTableContent(dict, source);
  const { contentId, bytes, sha256 } = writeLayer(
    {
      table,
      shardIndex,
      shardNum,
      keys: dict.keys,
      ...content,
      ...(indexed ? { layout: 'indexed' } : {}),
    },
    (id) => `${target}/${layerPath(bundle, table, id)}`,
  );
  const { dtype } = content;
  const dim = dtype === 'bytes' ? 0 : content.dim;
  const { indexFiles } = dict;
  return { contentId, bytes, sha256, rows: dict.ends.length, dim, dtype, indexFiles };
}

/**
 * Values of equal length that is a multiple of 4 become f32 rows; the bytes are the same either
 * way.
 */
function toTableContent(
  { values, ends, valueBytes }: CubeDict,
  source: string,
): Pick<RowsInput, 'dtype' | 'dim' | 'rows'> | Pick<ValuesInput, 'dtype' | 'values' | 'ends'> {
  if (ends.length === 0) return { dtype: 'f32', dim: 1, rows: values };
  if (valueBytes !== undefined && valueBytes > 0 && valueBytes % 4 === 0) {
    return { dtype: 'f32', dim: valueBytes / 4, rows: values };
  }
  if (values.length > VALUES_BYTES_MAX) {
    throw new CubeError(
      'TOO_LARGE',
      `${source}: ${values.length} bytes of variable-length values exceed the limit of ` +
        `${VALUES_BYTES_MAX}; use more shards`,
    );
  }
  return { dtype: 'bytes', values, ends: Uint32Array.from(ends) };
}

/** Defects of a directory are not invalid arguments of the caller, so they become CORRUPT. */
function runJob(job: ConversionJob): ConversionResult {
  try {
    return { ok: true, converted: convert(job) };
  } catch (error) {
    const { code, message } = CubeError.from(error);
    const isArgument = code === 'INVALID_ARGUMENT';
    return {
      ok: false,
      code: isArgument ? 'CORRUPT' : code,
      message: isArgument ? `${job.source}: ${message}` : message,
    };
  }
}

parentPort?.postMessage(runJob(workerData as ConversionJob));
