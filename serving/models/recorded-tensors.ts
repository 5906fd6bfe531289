/**
 * The tensors of a request as one line of a recording, `{"at": ..., "inputs": [...]}`, and requests
 * read from such a file, with or without times. Redacted inputs are zeros or empty texts of the
 * same shape.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { parseNonFiniteJson } from '../../lib/core/non-finite-json.ts';
import { countElements, type NamedTensor, viewRows } from '../../lib/core/tensor.ts';
import { formatTensor, readTensor } from '../../lib/core/tensor-json.ts';
import type { TensorModel } from '../engine/tensor-model.ts';
import type { Recordable } from './recorder.ts';

/** Maximum rows recorded from one request. */
const ROWS_PER_REQUEST_MAX = 64;
/** Maximum elements recorded from one request; a row with more is not recorded. */
const ELEMENTS_MAX = 1 << 18;
/** Requests of a file that are read. */
const REQUESTS_MAX = 1_000;

export function recordTensors(inputs: readonly NamedTensor[], model: TensorModel): Recordable {
  const { isBatched } = model;
  const total = isBatched ? (inputs[0]?.shape[0] ?? 1) : 1;
  const elements = inputs.reduce((sum, { shape }) => sum + countElements(shape), 0);
  const fitting = Math.floor((ELEMENTS_MAX * total) / Math.max(1, elements));
  const wanted = Math.min(total, ROWS_PER_REQUEST_MAX);
  const rowCount = Math.min(wanted, fitting);
  return {
    rowCount: wanted,
    format(redacted, at) {
      if (rowCount === 0) return [];
      const texts = inputs.map((input) => {
        const rows = isBatched ? { ...input, ...viewRows(input, 0, rowCount) } : input;
        return formatTensor(redacted.has(input.name) ? redact(rows) : rows);
      });
      return [{ text: `{"at":${at},"inputs":[${texts.join()}]}`, rowCount }];
    },
  };
}

function redact(tensor: NamedTensor): NamedTensor {
  const { data } = tensor;
  if (data instanceof Uint8Array) return { ...tensor, data: new Uint8Array(data.length) };
  return { ...tensor, data: data.map(() => '') };
}

/** A request of a recording. */
export interface RecordedRequest {
  /** File and line, for errors. */
  readonly place: string;
  readonly inputs: readonly NamedTensor[];
}

/**
 * Reads the first requests of a file. Its last line may be unfinished, because its writer was
 * killed.
 * @throws CubeError INVALID_ARGUMENT naming file, line and field
 */
export function parseRecordedRequests(text: string, file: string): RecordedRequest[] {
  const lines = text.split('\n');
  if (!isJson(lines.at(-1) ?? '')) lines.pop();
  const requests: RecordedRequest[] = [];
  for (const [i, line] of lines.entries()) {
    if (line.trim() === '' || requests.length === REQUESTS_MAX) continue;
    const place = `${file}, line ${i + 1}`;
    const json = JsonReader.parse(line, place, parseNonFiniteJson);
    json.rejectUnknownFields(['at', 'inputs']);
    json.optional('at', (field) => field.number());
    requests.push({ place, inputs: json.field('inputs').items({ max: 20_000 }).map(readTensor) });
  }
  if (requests.length > 0) return requests;
  throw new CubeError('INVALID_ARGUMENT', `${file} has no requests; record some with --record`);
}

function isJson(text: string): boolean {
  try {
    parseNonFiniteJson(text);
    return true;
  } catch {
    return false;
  }
}
