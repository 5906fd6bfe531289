/** TensorFlow Serving's `:predict` with the rows of each input in a column. It says neither versions nor counts. */
import type { FeatureSpec } from '../../../lib/core/slots.ts';
import { type Caller, type CallTarget, type Send, UNTOLD } from './caller.ts';
import { clickScores, type Output } from './click-output.ts';
import { HttpEndpoint, jsonOf, readingAnswer } from './http-endpoint.ts';
import type { FeatureTensor, FeatureTensors } from './tensors.ts';

export class TfsCaller implements Caller {
  readonly #endpoint: HttpEndpoint;
  readonly #path: string;
  readonly #tensors: FeatureTensors;
  readonly #spec: FeatureSpec | undefined;

  constructor(target: CallTarget, tensors: FeatureTensors, spec: FeatureSpec | undefined) {
    this.#endpoint = new HttpEndpoint(target);
    this.#path = `/v1/models/${encodeURIComponent(target.shape.name)}:predict`;
    this.#tensors = tensors;
    this.#spec = spec;
  }

  prepare(start: number, end: number): Send {
    const inputs = Object.fromEntries(
      this.#tensors.of(start, end).map((tensor) => [tensor.name, rowsOf(tensor)]),
    );
    const body = { type: 'application/json', bytes: Buffer.from(JSON.stringify({ inputs })) };
    return async () => {
      const answer = await this.#endpoint.post(this.#path, body);
      const outputs = readingAnswer(() =>
        outputsOf(jsonOf(answer).field('outputs').value, this.#spec),
      );
      const probabilities = clickScores(outputs, end - start, answer.source, this.#spec);
      return { ...UNTOLD, probabilities };
    };
  }

  close(): void {
    this.#endpoint.close();
  }
}

function rowsOf({ shape: [rowCount = 0, width = 0], values }: FeatureTensor): unknown[] {
  const plain =
    values instanceof BigUint64Array
      ? Array.from(values, String)
      : Array.from<string | number>(values);
  return Array.from({ length: rowCount }, (_, row) => plain.slice(row * width, (row + 1) * width));
}

/** Of a single output its rows stand without a name. */
function outputsOf(value: unknown, spec: FeatureSpec | undefined): Output[] {
  const named = Array.isArray(value) ? { [spec?.click.output ?? '']: value } : Object(value);
  return Object.entries(named).map(([name, rows]) => ({
    name,
    data: Array.isArray(rows) ? (rows.flat() as number[]) : [],
  }));
}
