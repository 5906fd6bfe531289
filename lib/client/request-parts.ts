/**
 * Splits a request into parts that several servers answer at the same time, and joins their
 * answers: `package_size` rows for each part, at most `max_channel_per_request` parts. Rows that do
 * not fit are shared among the parts; Paddle's SDK dropped them.
 */
import type { FeedTensor, GeneralAnswer, GeneralOutput } from '../../proto/general-model-client.ts';
import { CubeError } from '../core/errors.ts';
import { concatRows, viewRows } from '../core/tensor.ts';

/** Rows of one part. */
export interface RowRange {
  readonly first: number;
  readonly count: number;
}

/** @param packageSize 0: one part */
export function planParts(rowCount: number, packageSize: number, partsMax: number): RowRange[] {
  if (packageSize === 0 || rowCount <= packageSize) return [{ first: 0, count: rowCount }];
  const parts = Math.min(Math.ceil(rowCount / packageSize), partsMax);
  const size = Math.max(packageSize, Math.ceil(rowCount / parts));
  const ranges: RowRange[] = [];
  for (let first = 0; first < rowCount; first += size) {
    ranges.push({ first, count: Math.min(size, rowCount - first) });
  }
  return ranges;
}

/**
 * The number of rows, which all tensors have in common.
 * @throws CubeError INVALID_ARGUMENT when they differ
 */
export function countRows(tensors: readonly FeedTensor[]): number {
  const [first] = tensors;
  if (first === undefined) return 0;
  const rows = countTensorRows(first);
  const other = tensors.find((tensor) => countTensorRows(tensor) !== rows);
  if (other === undefined) return rows;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `a request cannot be split: tensor ${first.name} has ${rows} rows, ` +
      `${other.name} has ${countTensorRows(other)}`,
  );
}

export function viewPart(tensors: readonly FeedTensor[], { first, count }: RowRange): FeedTensor[] {
  return tensors.map((tensor) => {
    const { name, aliasName, lod } = tensor;
    if (lod === undefined) return { name, aliasName, ...viewRows(tensor, first, count) };
    const start = lod[first] ?? 0;
    const values = viewRows(tensor, start, (lod[first + count] ?? start) - start);
    const offsets = Array.from({ length: count + 1 }, (_, i) => (lod[first + i] ?? 0) - start);
    return { name, aliasName, ...values, lod: offsets };
  });
}

/**
 * Joins the answers to the parts of a request, in order.
 * @throws CubeError INTERNAL when they are not answers to parts of one request
 */
export function joinAnswers(answers: readonly GeneralAnswer[]): GeneralAnswer {
  const [first, ...others] = answers;
  if (first === undefined || others.length === 0) return first ?? EMPTY_ANSWER;
  return {
    outputs: first.outputs.map((output, at) =>
      joinOutputs([output, ...others.map(({ outputs }) => requireAlike(outputs[at]))]),
    ),
    profileTime: answers.flatMap(({ profileTime }) => profileTime),
    logId: first.logId,
    errMsg: answers.find(({ errMsg }) => errMsg !== '')?.errMsg ?? '',
  };
}

const EMPTY_ANSWER: GeneralAnswer = { outputs: [], profileTime: [], logId: 0n, errMsg: '' };

function joinOutputs(parts: readonly GeneralOutput[]): GeneralOutput {
  const { engineName, tensors } = requireAlike(parts[0]);
  return {
    engineName,
    tensors: tensors.map(({ name, aliasName, dataType, shape }, at) => {
      const pieces = parts.map((part) => {
        const piece = requireAlike(part.tensors[at]);
        const isAlike =
          piece.name === name &&
          piece.dataType === dataType &&
          piece.shape.slice(1).join() === shape.slice(1).join();
        return requireAlike(isAlike ? piece : undefined);
      });
      const lod = joinLods(pieces);
      return { name, aliasName, ...concatRows(pieces), ...(lod !== undefined && { lod }) };
    }),
  };
}

function joinLods(pieces: readonly FeedTensor[]): Int32Array | undefined {
  if (pieces.every(({ lod }) => lod === undefined)) return undefined;
  const joined = [0];
  for (const { lod } of pieces) {
    const start = joined.at(-1) ?? 0;
    const offsets = requireAlike(lod);
    for (let i = 1; i < offsets.length; i++) joined.push(start + (offsets[i] ?? 0));
  }
  return Int32Array.from(joined);
}

function requireAlike<T>(value: T | undefined): T {
  if (value !== undefined) return value;
  throw new CubeError('INTERNAL', 'the parts of a request got answers of different models');
}

function countTensorRows({ shape, lod }: FeedTensor): number {
  return lod === undefined ? (shape[0] ?? 1) : Math.max(0, lod.length - 1);
}
