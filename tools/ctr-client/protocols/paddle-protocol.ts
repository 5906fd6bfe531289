/**
 * Paddle's general model service as JSON over HTTP: a tensor of strings or keys for each slot, and
 * one of scaled dense features. Clients name slots and scale features themselves. The protocol
 * reports neither versions nor counts.
 */

import { CubeError, requireDefined } from '../../../lib/core/errors.ts';
import { keyToBigint } from '../../../lib/core/keys.ts';
import type { FeatureSpec } from '../../../lib/core/slots.ts';
import type { FileColumns } from '../rows/row-columns.ts';
import { selectClickScores } from './click-output.ts';
import {
  HttpEndpoint,
  isDegraded,
  parseJsonBody,
  readMetadata,
  withReadErrors,
} from './http-endpoint.ts';
import {
  NO_METADATA,
  type ProtocolClient,
  type ProtocolClientOptions,
  type SendRequest,
} from './protocol-client.ts';

const PATH = '/GeneralModelService/inference';
export const DENSE_INPUT = 'dense_input';

export class PaddleProtocolClient implements ProtocolClient {
  readonly #endpoint: HttpEndpoint;
  readonly #file: FileColumns;
  readonly #spec: FeatureSpec;

  constructor(target: ProtocolClientOptions, file: FileColumns, spec: FeatureSpec) {
    this.#endpoint = new HttpEndpoint(target);
    this.#file = file;
    this.#spec = spec;
  }

  prepareRequest(start: number, end: number, experimentKey: string): SendRequest {
    const { denseNum, columns } = this.#file;
    const { slots } = this.#spec;
    const hasKeys = 'keys' in columns;
    const tensor: object[] = slots.map(({ name }, slot) => {
      const { values, lod } = sliceSlot(this.#file, slots.length, { slot, start, end });
      const data = hasKeys ? { int64_data: values.map(String) } : { data: values };
      return { name, ...data, ...(lod !== undefined && { lod }) };
    });
    if (denseNum > 0) {
      const scaled = Array.from(columns.dense.subarray(start * denseNum, end * denseNum));
      tensor.push({ name: DENSE_INPUT, float_data: scaled, shape: [end - start, denseNum] });
    }
    const request = { tensor, fetch_var_names: [this.#spec.click.output] };
    const body = { type: 'application/json', bytes: Buffer.from(JSON.stringify(request)) };
    return async () => {
      const response = await this.#endpoint.post(PATH, body, experimentKey);
      const json = parseJsonBody(response);
      const failed = withReadErrors(() => json.optional('err_no', (field) => field.integer(0)));
      if (failed) {
        throw CubeError.fromBrpc(failed, `${response.source}: ${json.field('err_msg').value}`);
      }
      const outputs = withReadErrors(() => {
        const [scores] = json.field('outputs').items({ min: 1 });
        const [first] = requireDefined(scores, 'the scores').field('tensor').items({ min: 1 });
        const data = requireDefined(first, 'the tensor of scores')
          .field('float_data')
          .list() as number[];
        return [{ name: this.#spec.click.output, data }];
      });
      const probabilities = selectClickScores(outputs, end - start, response.source, this.#spec);
      const marks = { degraded: isDegraded(response), ...readMetadata(response) };
      return { ...NO_METADATA, probabilities, ...marks };
    };
  }

  close(): void {
    this.#endpoint.close();
  }
}

/** Values of a slot: strings, or keys as int64 with the same bits. */
interface SlotValues {
  readonly values: readonly string[] | readonly bigint[];
  /** Offsets of the rows, where rows may have several values. */
  readonly lod: readonly number[] | undefined;
}

/** The values of a slot in rows start … end. */
export function sliceSlot(
  { columns }: FileColumns,
  slotNum: number,
  { slot, start, end }: { readonly slot: number; readonly start: number; readonly end: number },
): SlotValues {
  const { ends } = columns;
  const strings: string[] = [];
  const ids: bigint[] = [];
  const lod = [0];
  for (let row = start; row < end; row++) {
    const bag = row * slotNum + slot;
    const from = ends === undefined ? bag : bag === 0 ? 0 : ends[bag - 1]!;
    const to = ends === undefined ? bag + 1 : ends[bag]!;
    for (let at = from; at < to; at++) {
      if ('keys' in columns) ids.push(BigInt.asIntN(64, keyToBigint(columns.keys, at)));
      else strings.push(columns.features[at]!);
    }
    lod.push(strings.length + ids.length);
  }
  const values = 'keys' in columns ? ids : strings;
  return { values, lod: ends === undefined ? undefined : lod };
}
