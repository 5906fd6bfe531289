/**
 * Paddle's general model service over baidu_std, as Paddle's C++ and Python clients call it: the
 * tensors of `PaddleProtocolClient`, encoded as protobuf. Up to `connectionsMax` calls are in
 * flight, each on a connection of its own.
 */
import { ServiceClient } from '../../../lib/client/service-client.ts';
import { CubeError, requireDefined } from '../../../lib/core/errors.ts';
import type { FeatureSpec } from '../../../lib/core/slots.ts';
import { GENERAL_MODEL_SERVICE } from '../../../proto/general-model.ts';
import {
  decodeGeneralResponse,
  encodeGeneralRequest,
  type FeedTensor,
  type GeneralOutput,
} from '../../../proto/general-model-client.ts';
import type { FileColumns } from '../rows/row-columns.ts';
import { selectClickScores } from './click-output.ts';
import { DENSE_INPUT, sliceSlot } from './paddle-protocol.ts';
import {
  NO_METADATA,
  type PredictionResponse,
  type ProtocolClient,
  type ProtocolClientOptions,
  type SendRequest,
} from './protocol-client.ts';

const METHOD = 'inference';
const RESPONSE_LIMITS = { tensors: 4096, values: 1 << 26 };

export class PaddleRpcProtocolClient implements ProtocolClient {
  readonly #client: ServiceClient;
  readonly #timeoutMs: number;
  readonly #source: string;
  readonly #file: FileColumns;
  readonly #spec: FeatureSpec;

  constructor(target: ProtocolClientOptions, file: FileColumns, spec: FeatureSpec) {
    const { host } = new URL(target.url);
    this.#client = new ServiceClient({
      endpoints: [host],
      protocol: 'baidu_std',
      service: GENERAL_MODEL_SERVICE,
      probeMethod: 'debug',
      // Failures are counted, not hidden by retries; the load is what the user asked for.
      policy: { retryMax: 0, backupRequest: 'never', concurrencyLimit: 'never' },
      transport: {
        connectionType: 'pooled',
        idleConnectionsMax: target.connectionsMax,
        credentials: target.credentials,
      },
    });
    this.#timeoutMs = target.timeoutMs;
    this.#source = `${host} (baidu_std)`;
    this.#file = file;
    this.#spec = spec;
  }

  /** @throws CubeError UNSUPPORTED for an experiment key */
  prepareRequest(start: number, end: number, experimentKey: string): SendRequest {
    if (experimentKey !== '') {
      throw new CubeError(
        'UNSUPPORTED',
        'baidu_std has no place for an experiment key; use --protocol paddle',
      );
    }
    const fetchNames = [this.#spec.click.output];
    const payload = encodeGeneralRequest(this.#makeTensors(start, end), { fetchNames });
    const read = (bytes: Uint8Array): PredictionResponse => {
      const { outputs, errMsg } = decodeGeneralResponse(bytes, RESPONSE_LIMITS);
      const scores = this.#readScores(outputs, end - start);
      return { ...NO_METADATA, probabilities: scores, degraded: errMsg.startsWith('degraded') };
    };
    return () => this.#client.call(METHOD, payload, read, { timeoutMs: this.#timeoutMs });
  }

  close(): void {
    this.#client.close();
  }

  #makeTensors(start: number, end: number): FeedTensor[] {
    const { denseNum, columns } = this.#file;
    const hasKeys = 'keys' in columns;
    const tensors = this.#spec.slots.map(({ name }, slot): FeedTensor => {
      const { values, lod } = sliceSlot(this.#file, this.#spec.slots.length, { slot, start, end });
      const shape = [values.length, 1];
      const common = { name, aliasName: name, shape, ...(lod !== undefined && { lod }) };
      if (!hasKeys) return { ...common, dataType: 'BYTES', data: values as readonly string[] };
      const words = BigInt64Array.from(values as readonly bigint[]);
      return { ...common, dataType: 'INT64', data: new Uint8Array(words.buffer) };
    });
    if (denseNum === 0) return tensors;
    const dense = columns.dense.slice(start * denseNum, end * denseNum);
    const shape = [end - start, denseNum];
    const data = new Uint8Array(dense.buffer);
    tensors.push({ name: DENSE_INPUT, aliasName: DENSE_INPUT, shape, dataType: 'FP32', data });
    return tensors;
  }

  #readScores(outputs: readonly GeneralOutput[], rowCount: number): Float64Array {
    const [tensor] = requireDefined(outputs[0], 'an output').tensors;
    const { data, dataType } = requireDefined(tensor, 'the tensor of scores');
    const isFloat = dataType === 'FP32' && data instanceof Uint8Array;
    const bytes = isFloat ? data.slice() : new Uint8Array(0);
    const numbers = new Float32Array(bytes.buffer, 0, bytes.length >> 2);
    const named = [{ name: this.#spec.click.output, data: numbers }];
    return selectClickScores(named, rowCount, this.#source, this.#spec);
  }
}
