/**
 * Codec of the general model service (general-model.proto), server side: decodes requests, encodes
 * responses. general-model-json.ts does the same in JSON.
 */
import { CubeError } from '../lib/core/errors.ts';
import {
  decodeTensor,
  encodeTensor,
  type GeneralModelLimits,
  type GeneralTensor,
  type OutputTensor,
  writePacked,
} from './general-tensor.ts';
import { WIRE_BYTES, WIRE_VARINT, WireReader, WireWriter } from './wire.ts';

export const GENERAL_MODEL_SERVICE =
  'baidu.paddle_serving.predictor.general_model.GeneralModelService';
export const GENERAL_MODEL_METHODS = ['inference', 'debug'] as const;
export type GeneralModelMethod = (typeof GENERAL_MODEL_METHODS)[number];

export const FETCH_NAMES_MAX = 256;

export interface GeneralModelRequest {
  readonly tensors: readonly GeneralTensor[];
  readonly fetchNames: readonly string[];
  readonly profileServer: boolean;
  readonly logId: bigint;
}

export interface GeneralModelOutput {
  readonly tensors: readonly OutputTensor[];
  readonly engineName: string;
}

export interface GeneralModelResponse {
  readonly outputs: readonly GeneralModelOutput[];
  /** Microseconds. */
  readonly profileTime: readonly number[];
  readonly profileServer: boolean;
  readonly logId: bigint;
  readonly errNo: number;
  readonly errMsg: string;
}

/** @throws CubeError INVALID_ARGUMENT when the bytes are not a Request, TOO_LARGE over a limit */
export function decodeGeneralRequest(
  bytes: Uint8Array,
  limits: GeneralModelLimits,
): GeneralModelRequest {
  const reader = new WireReader(bytes);
  const budget = { values: limits.values };
  const tensors: GeneralTensor[] = [];
  const fetchNames: string[] = [];
  let profileServer = false;
  let logId = 0n;
  while (reader.next()) {
    switch (reader.field) {
      case 1:
        reader.expect(WIRE_BYTES);
        if (tensors.length === limits.tensors) throw tooManyTensorsError(limits);
        tensors.push(decodeTensor(reader.message(), budget));
        break;
      case 2:
        reader.expect(WIRE_BYTES);
        if (fetchNames.length === FETCH_NAMES_MAX) throw tooManyFetchNamesError();
        fetchNames.push(reader.string());
        break;
      case 3:
        reader.expect(WIRE_VARINT);
        profileServer = reader.bool();
        break;
      case 4:
        reader.expect(WIRE_VARINT);
        logId = reader.uint64();
        break;
      default:
        reader.skip();
    }
  }
  return { tensors, fetchNames, profileServer, logId };
}

export function tooManyTensorsError({ tensors }: GeneralModelLimits): CubeError {
  return new CubeError('TOO_LARGE', `a call has at most ${tensors} tensors`);
}

export function tooManyFetchNamesError(): CubeError {
  return new CubeError('TOO_LARGE', `fetch_var_names has at most ${FETCH_NAMES_MAX} names`);
}

export function encodeGeneralResponse(response: GeneralModelResponse): Uint8Array {
  const writer = new WireWriter(1024);
  for (const { tensors, engineName } of response.outputs) {
    writer.message(1, (output) => {
      for (const tensor of tensors) output.message(1, (inner) => encodeTensor(inner, tensor));
      if (engineName !== '') output.string(2, engineName);
    });
  }
  writePacked(writer, 2, response.profileTime);
  if (response.profileServer) writer.uint(3, 1);
  if (response.logId !== 0n) writer.uint(4, response.logId);
  if (response.errNo !== 0) writer.uint(5, response.errNo);
  if (response.errMsg !== '') writer.string(6, response.errMsg);
  return writer.finish();
}
