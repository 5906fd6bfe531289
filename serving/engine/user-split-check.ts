/**
 * Compares a graph whose user side runs once for each user with the original, on sampled inputs. It
 * lives in a thread of its own, because loads and runs block their thread.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { OnnxModel, type OnnxTensor } from '../../lib/platform/onnx.ts';
import type { ColumnInput, SplitInput, UserSplit } from '../../proto/onnx-user-split.ts';
import { createRandom, sampleInput, toNumbers } from './graph-samples.ts';
import { measureDifference } from './precision-difference.ts';

export interface UserSplitRequest {
  readonly original: Uint8Array;
  /** External data of both graphs by file name. */
  readonly data: ReadonlyMap<string, Uint8Array>;
  readonly inputs: readonly ColumnInput[];
  readonly split: UserSplit;
}

export type UserSplitReply =
  | { readonly ok: true; readonly difference: number }
  | { readonly ok: false; readonly message: string };

/** Only the order of additions differs. */
const TOLERANCE = 1e-5;
/** For each sample, the user of each row. */
const SAMPLES: readonly (readonly number[])[] = [
  [0],
  [0, 0, 0, 0, 0],
  [0, 1, 2, 3],
  [0, 0, 1, 2, 2, 2, 3, 3],
];

/**
 * @returns the largest difference of an output, relative to the largest output where that is
 *   above 1
 * @throws CubeError UNSUPPORTED when the outputs differ by more than 1e-5
 */
export async function checkUserSplit(request: UserSplitRequest): Promise<number> {
  const { data: externalData, split } = request;
  const source = 'the graph';
  const original = await OnnxModel.load(request.original, { source, externalData });
  try {
    const candidate = await OnnxModel.load(split.model, { source, externalData });
    try {
      const random = createRandom();
      let largest = 0;
      for (const rowUsers of SAMPLES) {
        const feeds = sampleFeeds(original, request, rowUsers, random);
        const expected = await original.run(feeds.original);
        const actual = await candidate.run(feeds.split);
        for (const { name } of original.outputs) {
          const difference = measureDifference(toNumbers(expected[name]), toNumbers(actual[name]));
          largest = Math.max(largest, difference);
        }
      }
      if (largest <= TOLERANCE) return largest;
      throw new CubeError(
        'UNSUPPORTED',
        `its outputs would differ by ${largest.toPrecision(3)}, the limit is ${TOLERANCE}`,
      );
    } finally {
      await candidate.release();
    }
  } finally {
    await original.release();
  }
}

type Feeds = Record<string, OnnxTensor>;

/** Samples the inputs of the original graph, and gives the split one the same rows. */
function sampleFeeds(
  original: OnnxModel,
  { inputs, split }: UserSplitRequest,
  rowUsers: readonly number[],
  random: () => number,
): { original: Feeds; split: Feeds } {
  const batch = rowUsers.length;
  const feeds: { original: Feeds; split: Feeds } = { original: {}, split: {} };
  const users = BigInt64Array.from(rowUsers, BigInt);
  feeds.split[split.rowUsers] = { dtype: 'int64', data: users, dims: [batch] };
  for (const port of original.inputs) {
    const tensor = sampleInput(port, { random, batch, source: 'the graph' });
    feeds.original[port.name] = tensor;
    const i = inputs.findIndex(({ name }) => name === port.name);
    const input = inputs[i];
    if (input === undefined) {
      feeds.split[port.name] = tensor;
      continue;
    }
    makeUserColumnsEqual(tensor, input, rowUsers);
    for (const part of split.inputs[i] ?? []) {
      feeds.split[part.name] = takeColumns(tensor, input, part, rowUsers);
    }
  }
  return feeds;
}

/** Gives all rows of a user the user-side columns of its first row. */
function makeUserColumnsEqual(
  { data }: OnnxTensor,
  { width, isUser }: ColumnInput,
  rowUsers: readonly number[],
): void {
  const rowWidth = width * isUser.length;
  const values = data as Float32Array;
  for (const [row, user] of rowUsers.entries()) {
    const first = rowUsers.indexOf(user);
    for (const [column, isUserColumn] of isUser.entries()) {
      if (!isUserColumn) continue;
      const from = first * rowWidth + column * width;
      values.copyWithin(row * rowWidth + column * width, from, from + width);
    }
  }
}

/** The columns of one input of the split graph, for each user or for each row. */
function takeColumns(
  { dtype, data }: OnnxTensor,
  { width, isUser }: ColumnInput,
  part: SplitInput,
  rowUsers: readonly number[],
): OnnxTensor {
  const firstRows = rowUsers.flatMap((user, row) => (rowUsers.indexOf(user) === row ? [row] : []));
  const rows = part.isUser ? firstRows : rowUsers.map((_, row) => row);
  const values = data as Float32Array;
  const taken = values.slice(0, rows.length * part.columns.length * width);
  let to = 0;
  for (const row of rows) {
    for (const column of part.columns) {
      const from = (row * isUser.length + column) * width;
      taken.set(values.subarray(from, from + width), to);
      to += width;
    }
  }
  return { dtype, data: taken, dims: [rows.length, ...part.dims] };
}
