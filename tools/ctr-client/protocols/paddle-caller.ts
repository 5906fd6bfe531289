/**
 * Paddle's general model service as JSON over HTTP: a tensor for each slot, of strings or keys, and one of the dense features as the
 * graph takes them. Names and scaling are the caller's matter there, so the model's slots.json is needed. It says neither versions
 * nor counts.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import type { FeatureSpec } from '../../../lib/core/slots.ts';
import type { FileColumns } from '../rows/row-columns.ts';
import { type Caller, type CallTarget, type Send, UNTOLD } from './caller.ts';
import { clickScores } from './click-output.ts';
import { HttpEndpoint, jsonOf, readingAnswer } from './http-endpoint.ts';

const PATH = '/GeneralModelService/inference';
const DENSE_INPUT = 'dense_input';

export class PaddleCaller implements Caller {
  readonly #endpoint: HttpEndpoint;
  readonly #file: FileColumns;
  readonly #spec: FeatureSpec;

  constructor(target: CallTarget, file: FileColumns, spec: FeatureSpec) {
    this.#endpoint = new HttpEndpoint(target);
    this.#file = file;
    this.#spec = spec;
  }

  prepare(start: number, end: number): Send {
    const { denseNum, columns } = this.#file;
    const tensor: object[] = this.#spec.slots.map(({ name }, slot) => {
      return { name, ...this.#slotValues(slot, start, end) };
    });
    if (denseNum > 0) {
      const scaled = Array.from(columns.dense.subarray(start * denseNum, end * denseNum));
      tensor.push({ name: DENSE_INPUT, float_data: scaled, shape: [end - start, denseNum] });
    }
    const question = { tensor, fetch_var_names: [this.#spec.click.output] };
    const body = { type: 'application/json', bytes: Buffer.from(JSON.stringify(question)) };
    return async () => {
      const answer = await this.#endpoint.post(PATH, body);
      const json = jsonOf(answer);
      const failed = readingAnswer(() => json.optional('err_no', (field) => field.integer(0)));
      if (failed) {
        throw CubeError.fromBrpc(failed, `${answer.source}: ${json.field('err_msg').value}`);
      }
      const outputs = readingAnswer(() => {
        const [scores] = json.field('outputs').items({ min: 1 });
        const [first] = scores!.field('tensor').items({ min: 1 });
        const data = first!.field('float_data').list() as number[];
        return [{ name: this.#spec.click.output, data }];
      });
      const probabilities = clickScores(outputs, end - start, answer.source, this.#spec);
      return { ...UNTOLD, probabilities };
    };
  }

  close(): void {
    this.#endpoint.close();
  }

  /** A slot's values in rows start … end, with a lod where rows may have several. */
  #slotValues(slot: number, start: number, end: number): object {
    const { columns } = this.#file;
    const slotNum = this.#spec.slots.length;
    const { ends } = columns;
    const strings: string[] = [];
    const ids: string[] = [];
    const lod = [0];
    for (let row = start; row < end; row++) {
      const bag = row * slotNum + slot;
      const from = ends === undefined ? bag : bag === 0 ? 0 : ends[bag - 1]!;
      const to = ends === undefined ? bag + 1 : ends[bag]!;
      for (let at = from; at < to; at++) {
        if ('keys' in columns) ids.push(signed(columns.keys, at));
        else strings.push(columns.features[at]!);
      }
      lod.push(lod.at(-1)! + to - from);
    }
    const values = 'keys' in columns ? { int64_data: ids } : { data: strings };
    return ends === undefined ? values : { ...values, lod };
  }
}

/** A key as an int64 of the same bits. */
function signed(words: Uint32Array, at: number): string {
  const key = (BigInt(words[2 * at + 1]!) << 32n) | BigInt(words[2 * at]!);
  return BigInt.asIntN(64, key).toString();
}
