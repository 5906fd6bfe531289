/**
 * Converts the weights of a graph to fewer bits and compares the result with the original on
 * sampled inputs. It lives in a thread of its own, because loads and runs block their thread.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { OnnxModel, type OnnxTensor, type OnnxValueInfo } from '../../lib/platform/onnx.ts';
import { convertPrecision } from '../../proto/onnx-precision.ts';
import { createRandom, sampleInput, toNumbers } from './graph-samples.ts';
import {
  type LowerPrecision,
  measureDifference,
  PRECISION_TOLERANCES,
} from './precision-difference.ts';

export interface PrecisionRequest {
  readonly model: Uint8Array;
  /** External data of the graph by file name. */
  readonly data: ReadonlyMap<string, Uint8Array>;
  readonly precision: LowerPrecision;
  /** Names the model in errors. */
  readonly source: string;
}

export interface CheckedGraph {
  readonly model: Uint8Array;
  /** The largest difference, relative to the largest output where that is above 1. */
  readonly difference: number;
}

/** Sizes of the dynamic first dimension. */
const SAMPLED_BATCHES: readonly number[] = [1, 7, 16, 64];
/** Runs of a graph whose first dimensions are fixed: as many rows, within limits. */
const FIXED_RUNS_MIN = 4;
const FIXED_RUNS_MAX = 32;

/**
 * @throws CubeError UNSUPPORTED when nothing can be converted, the graph cannot be sampled, or the
 *   outputs differ by more than the tolerance
 */
export async function convertAndCheck(request: PrecisionRequest): Promise<CheckedGraph> {
  const { precision, source, data } = request;
  const converted = convertPrecision(request.model, precision, source);
  const original = await OnnxModel.load(request.model, { source, externalData: data });
  try {
    const target = `${source} with precision ${precision}`;
    const candidate = await OnnxModel.load(converted.model, { source: target, externalData: data });
    try {
      const difference = await compare(original, candidate, source);
      const tolerance = PRECISION_TOLERANCES[precision];
      if (difference <= tolerance) return { model: converted.model, difference };
      throw new CubeError(
        'UNSUPPORTED',
        `${target}: outputs on sampled inputs differ from the original by ` +
          `${difference.toPrecision(3)}, the limit is ${tolerance}; use a precision with more bits`,
      );
    } finally {
      await candidate.release();
    }
  } finally {
    await original.release();
  }
}

/**
 * The rows of each sampled run. A graph with fixed first dimensions has one size, and runs several
 * times with other values.
 */
export function listSampledBatches(inputs: readonly Pick<OnnxValueInfo, 'shape'>[]): number[] {
  const firsts = inputs.flatMap(({ shape }) => shape.slice(0, 1));
  const isFixed = (dim: number | string): dim is number => typeof dim === 'number' && dim >= 0;
  if (firsts.length > 0 && !firsts.every(isFixed)) return [...SAMPLED_BATCHES];
  const rows = Math.max(1, ...firsts.filter(isFixed));
  const rowsInAll = SAMPLED_BATCHES.reduce((sum, batch) => sum + batch, 0);
  const runs = Math.min(FIXED_RUNS_MAX, Math.max(FIXED_RUNS_MIN, Math.ceil(rowsInAll / rows)));
  return new Array<number>(runs).fill(rows);
}

async function compare(original: OnnxModel, candidate: OnnxModel, source: string): Promise<number> {
  const random = createRandom();
  let largest = 0;
  for (const batch of listSampledBatches(original.inputs)) {
    const feeds: Record<string, OnnxTensor> = {};
    for (const input of original.inputs) {
      feeds[input.name] = sampleInput(input, { random, batch, source });
    }
    const [expected, actual] = [await original.run(feeds), await candidate.run(feeds)];
    for (const { name } of original.outputs) {
      largest = Math.max(
        largest,
        measureDifference(toNumbers(expected[name]), toNumbers(actual[name])),
      );
    }
  }
  return largest;
}
