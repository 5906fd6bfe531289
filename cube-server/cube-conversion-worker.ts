/** The thread that turns a directory of Cube into a layer file: lookups go on beside it, and its memory goes with it. */
import { parentPort, workerData } from 'node:worker_threads';
import { CubeError } from '../lib/core/errors.ts';
import type { RowsInput, ValuesInput } from '../lib/core/layer-input.ts';
import { layerPath } from '../lib/repository/layout.ts';
import { type CubeDict, readCubeDict } from '../lib/store/cube-dict.ts';
import { writeLayer } from '../lib/store/layer-file.ts';
import type { ConversionAnswer, ConversionJob, ConvertedDict } from './cube-conversion.ts';

/** What `ends` of the layer writer can count to. */
const VALUES_BYTES_MAX = 2 ** 32 - 1;

function convert(job: ConversionJob): ConvertedDict {
  const { source, target, bundle, table, shardIndex, shardNum, indexed } = job;
  const dict = readCubeDict(source);
  const content = contentOf(dict, source);
  const { contentId, bytes, sha256 } = writeLayer(
    {
      ...{ table, shardIndex, shardNum, keys: dict.keys, ...content },
      ...(indexed ? { layout: 'indexed' } : {}),
    },
    (id) => `${target}/${layerPath(bundle, table, id)}`,
  );
  const { dtype } = content;
  const dim = dtype === 'bytes' ? 0 : content.dim;
  const { indexFiles } = dict;
  return { contentId, bytes, sha256, rows: dict.ends.length, dim, dtype, indexFiles };
}

/** Values of one length that floats fill are rows of floats; the bytes are the same either way. */
function contentOf(
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
      `${source}: ${values.length} bytes of values of several lengths, at most ${VALUES_BYTES_MAX}; use more shards`,
    );
  }
  return { dtype: 'bytes', values, ends: Uint32Array.from(ends) };
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
