/** Codec of ModelInfer of the Open Inference Protocol over gRPC as its clients use it. */
import { CubeError } from '../lib/core/errors.ts';
import { TENSOR_TYPE_BYTES, type TensorType } from '../lib/core/graph-signature.ts';
import type { NamedTensor } from '../lib/core/tensor.ts';
import { countElements } from '../lib/core/tensor.ts';
import { attachRawContents, type OipInput, readOipTensor } from './oip.ts';
import { encodeElements } from './tensor-elements.ts';
import { WIRE_BYTES, WireReader, WireWriter } from './wire.ts';

export const OIP_SERVICE = 'inference.GRPCInferenceService';
export const OIP_INFER = 'ModelInfer';
export const OIP_LIVE = 'ServerLive';

const TENSORS_MAX = 20_000;

export interface OipInferRequest {
  readonly modelName: string;
  /** Empty: the server chooses. */
  readonly modelVersion: string;
  readonly id: string;
  readonly inputs: readonly NamedTensor[];
  /** Empty: all outputs. */
  readonly outputs: readonly string[];
}

export interface OipInferResponse {
  readonly modelVersion: string;
  readonly outputs: readonly NamedTensor[];
}

export function encodeOipInferRequest(request: OipInferRequest): Uint8Array {
  const { modelName, modelVersion, id, inputs, outputs } = request;
  const raws = inputs.map(encodeElements);
  const writer = new WireWriter(512 + raws.reduce((sum, { length }) => sum + length, 0));
  writer.string(1, modelName);
  if (modelVersion !== '') writer.string(2, modelVersion);
  if (id !== '') writer.string(3, id);
  for (const { name, dataType, shape } of inputs) {
    writer.message(5, (input) => {
      input.string(1, name).string(2, dataType);
      input.message(3, (dims) => {
        for (const dim of shape) dims.varint(dim);
      });
    });
  }
  for (const name of outputs) writer.message(6, (output) => output.string(1, name));
  for (const raw of raws) writer.bytes(7, raw);
  return writer.finish();
}

/** @throws CubeError INVALID_ARGUMENT when this is not a response */
export function decodeOipInferResponse(bytes: Uint8Array): OipInferResponse {
  const reader = new WireReader(bytes);
  let modelVersion = '';
  const outputs: OipInput[] = [];
  const raw: Uint8Array[] = [];
  while (reader.next()) {
    const { field } = reader;
    if (field !== 2 && field !== 5 && field !== 6) {
      reader.skip();
      continue;
    }
    reader.expect(WIRE_BYTES);
    if (field === 2) modelVersion = reader.string();
    else if (field === 5) outputs.push(readOipTensor(reader.message()));
    else raw.push(reader.view());
    if (Math.max(outputs.length, raw.length) > TENSORS_MAX) {
      throw new CubeError('TOO_LARGE', `a response has more than ${TENSORS_MAX} tensors`);
    }
  }
  const tensors = raw.length > 0 ? attachRawContents(outputs, raw) : outputs;
  return { modelVersion, outputs: tensors.map(toNamedTensor) };
}

function toNamedTensor({ name, datatype, shape, contents }: OipInput): NamedTensor {
  if (!Object.hasOwn(TENSOR_TYPE_BYTES, datatype)) {
    throw new CubeError('UNSUPPORTED', `output ${name} has the data type ${datatype}`);
  }
  const dataType = datatype as TensorType;
  const bytes = contents ?? new Uint8Array(0);
  const count = countElements(shape);
  if (dataType === 'BYTES') return { name, dataType, shape, data: splitTexts(bytes, count, name) };
  if (bytes.length !== count * TENSOR_TYPE_BYTES[dataType]) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `output ${name}: ${bytes.length} bytes do not fit its shape [${shape.join(', ')}]`,
    );
  }
  // A copy: the response's bytes are valid only during the call.
  return { name, dataType, shape, data: new Uint8Array(bytes) };
}

/** Each text follows its length as u32. */
function splitTexts(bytes: Uint8Array, count: number, name: string): string[] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const decoder = new TextDecoder();
  const texts: string[] = [];
  let at = 0;
  while (at + 4 <= bytes.length && texts.length < count) {
    const end = at + 4 + view.getUint32(at, true);
    if (end > bytes.length) break;
    texts.push(decoder.decode(bytes.subarray(at + 4, end)));
    at = end;
  }
  if (texts.length === count && at === bytes.length) return texts;
  throw new CubeError('INVALID_ARGUMENT', `output ${name}: the texts do not fit its shape`);
}
