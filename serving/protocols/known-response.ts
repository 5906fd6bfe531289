/** Responses of requests with one head: their JSON as pieces of text around a few numbers. */
import type { Prediction } from '../engine/prediction.ts';
import type { InferBody } from './infer-json.ts';
import type { FirstRequest } from './known-heads.ts';

/** An output of a response: where it is in a prediction, and what does not depend on its values. */
interface OutputText {
  readonly index: number;
  readonly text: string;
  readonly isBinary: boolean;
}

export class KnownResponse {
  readonly #start: string;
  readonly #parameters: string;
  readonly #outputs: readonly OutputText[];
  readonly #dataBytes: number;

  constructor({ model, parsed, head, outputs }: FirstRequest, rowCount: number) {
    const { bundle } = parsed;
    const names = JSON.stringify({ model_name: model, model_version: bundle.version });
    this.#start = names.slice(0, -1);
    this.#parameters = `,"parameters":{"tables_version":${JSON.stringify(bundle.version)}`;
    const all = bundle.pool.outputs.map(({ name, width }, index) => {
      const text = JSON.stringify({ name, datatype: 'FP32', shape: [rowCount, width] });
      const isBinary = head.isBinary(name);
      return { name, index, isBinary, text: text.slice(0, -1), byteCount: 4 * rowCount * width };
    });
    const chosen =
      outputs.length === 0
        ? all
        : outputs.flatMap((name) => all.filter((output) => output.name === name));
    this.#dataBytes = chosen.reduce(
      (sum, { isBinary, byteCount }) => sum + (isBinary ? byteCount : 0),
      0,
    );
    this.#outputs = chosen.map(({ index, text, isBinary, byteCount }) => {
      if (!isBinary) return { index, isBinary, text: `${text},"data":[` };
      const size = `,"parameters":{"binary_data_size":${byteCount}}}`;
      return { index, isBinary, text: `${text}${size}` };
    });
  }

  format(id: string, prediction: Prediction): InferBody {
    const { unseen, unavailable, degraded, outputs } = prediction;
    let json = this.#start;
    if (id !== '') json += `,"id":${JSON.stringify(id)}`;
    json +=
      `${this.#parameters},"unseen":${unseen},"unavailable":${unavailable},` +
      `"degraded":${degraded}},"outputs":[`;
    let separator = '';
    for (const { index, text, isBinary } of this.#outputs) {
      json += separator + text;
      if (!isBinary) json += `${outputs[index]!.data.join()}]}`;
      separator = ',';
    }
    json += ']}';
    if (this.#dataBytes === 0) return { body: Buffer.from(json), headerLength: undefined };
    return this.#appendData(json, outputs);
  }

  #appendData(json: string, outputs: Prediction['outputs']): InferBody {
    const headerLength = Buffer.byteLength(json);
    const body = Buffer.allocUnsafe(headerLength + this.#dataBytes);
    body.write(json);
    let at = headerLength;
    for (const { index, isBinary } of this.#outputs) {
      if (!isBinary) continue;
      const { data } = outputs[index]!;
      body.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), at);
      at += data.byteLength;
    }
    return { body, headerLength };
  }
}
