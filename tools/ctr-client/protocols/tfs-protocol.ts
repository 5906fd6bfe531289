/**
 * TensorFlow Serving's `:predict` in column format. The protocol reports neither versions nor
 * counts.
 */
import type { FeatureSpec } from '../../../lib/core/slots.ts';
import { type Output, selectClickScores } from './click-output.ts';
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
import type { FeatureTensor, FeatureTensors } from './tensors.ts';

export class TfsProtocolClient implements ProtocolClient {
  readonly #endpoint: HttpEndpoint;
  readonly #path: string;
  readonly #tensors: FeatureTensors;
  readonly #spec: FeatureSpec;

  constructor(target: ProtocolClientOptions, tensors: FeatureTensors, spec: FeatureSpec) {
    this.#endpoint = new HttpEndpoint(target);
    this.#path = `/v1/models/${encodeURIComponent(target.shape.name)}:predict`;
    this.#tensors = tensors;
    this.#spec = spec;
  }

  prepareRequest(start: number, end: number, experimentKey: string): SendRequest {
    const inputs = Object.fromEntries(
      this.#tensors.sliceRows(start, end).map((tensor) => [tensor.name, toRows(tensor)]),
    );
    const body = { type: 'application/json', bytes: Buffer.from(JSON.stringify({ inputs })) };
    return async () => {
      const response = await this.#endpoint.post(this.#path, body, experimentKey);
      const outputs = withReadErrors(() =>
        readOutputs(parseJsonBody(response).field('outputs').value, this.#spec),
      );
      const probabilities = selectClickScores(outputs, end - start, response.source, this.#spec);
      const marks = { degraded: isDegraded(response), ...readMetadata(response) };
      return { ...NO_METADATA, probabilities, ...marks };
    };
  }

  close(): void {
    this.#endpoint.close();
  }
}

function toRows({ shape: [rowCount = 0, width = 0], values }: FeatureTensor): unknown[] {
  const plain =
    values instanceof BigUint64Array
      ? Array.from(values, String)
      : Array.from<string | number>(values);
  return Array.from({ length: rowCount }, (_, row) => plain.slice(row * width, (row + 1) * width));
}

/** A single output comes without a name. */
function readOutputs(value: unknown, spec: FeatureSpec): Output[] {
  const named = Array.isArray(value) ? { [spec.click.output]: value } : Object(value);
  return Object.entries(named).map(([name, rows]) => ({
    name,
    data: Array.isArray(rows) ? (rows.flat() as number[]) : [],
  }));
}
