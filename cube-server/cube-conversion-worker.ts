/** The thread that turns a directory of Cube into a layer file: lookups go on beside it, and its memory goes with it. */
import { parentPort, workerData } from 'node:worker_threads';
import { CubeError } from '../lib/core/errors.ts';
import { layerPath } from '../lib/repository/layout.ts';
import { type CubeDict, readCubeDict } from '../lib/store/cube-dict.ts';
import { writeLayer } from '../lib/store/layer-file.ts';
import type { ConversionAnswer, ConversionJob, ConvertedDict } from './cube-conversion.ts';

function convert(job: ConversionJob): ConvertedDict {
  const { source, target, bundle, table, shardIndex, shardNum } = job;
  const dict = readCubeDict(source);
  const { dim, rows } = rowsOf(dict, source);
  const input = { table, dtype: 'f32', dim, shardIndex, shardNum, keys: dict.keys, rows } as const;
  const { contentId, bytes, sha256 } = writeLayer(
    input,
    (id) => `${target}/${layerPath(bundle, table, id)}`,
  );
  const { indexFiles } = dict;
  return { contentId, bytes, sha256, rows: dict.ends.length, dim, dtype: 'f32', indexFiles };
}

/** Values of one length that floats fill are rows of floats; the bytes are the same either way. */
function rowsOf({ values, ends, valueBytes }: CubeDict, source: string): RowsOfDict {
  if (ends.length === 0) return { dim: 1, rows: new Uint8Array(0) };
  if (valueBytes === undefined || valueBytes === 0 || valueBytes % 4 !== 0) {
    throw new CubeError(
      'UNSUPPORTED',
      `${source}: its values are not rows of floats of one length; this version of the software serves only those`,
    );
  }
  return { dim: valueBytes / 4, rows: values };
}

interface RowsOfDict {
  readonly dim: number;
  readonly rows: Uint8Array;
}

/** What a directory has wrong is no argument of the caller's. */
function answer(job: ConversionJob): ConversionAnswer {
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

parentPort?.postMessage(answer(workerData as ConversionJob));
