/**
 * The clients of remote services: `brpc` and `grpc` call the general model service of Paddle
 * Serving, `kserve` a model over KServe v2 (gRPC). Requests that share a call of `process` share a
 * call of the service: their tensors are joined along the first dimension.
 */

import type { CallPolicy } from '../../lib/client/call-policy.ts';
import { toInputTensor } from '../../lib/client/feed-tensors.ts';
import { ServiceClient } from '../../lib/client/service-client.ts';
import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import { concatRows, type NamedTensor, viewRows } from '../../lib/core/tensor.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { GENERAL_MODEL_SERVICE } from '../../proto/general-model.ts';
import {
  decodeGeneralTensors,
  encodeGeneralRequest,
  type FeedTensor,
} from '../../proto/general-model-client.ts';
import {
  decodeOipInferResponse,
  encodeOipInferRequest,
  OIP_INFER,
  OIP_LIVE,
  OIP_SERVICE,
} from '../../proto/oip-client.ts';
import type { OpClient, OpValues, ProcessContext } from './op.ts';
import { fromByteTensor } from './pipeline-tensor.ts';
import { VariableNames } from './variable-names.ts';

export interface RemoteClientOptions {
  /** host:port of each server. */
  readonly endpoints: readonly string[];
  readonly protocol: 'brpc' | 'grpc' | 'kserve';
  /** The model of a KServe server. */
  readonly model?: string;
  /** The version of a KServe model; default: the server chooses. */
  readonly version?: string;
  /** Aliases, and the outputs to return; default: no aliases, all outputs. */
  readonly names?: VariableNames;
  /** Balancing, retries and backup requests. */
  readonly policy?: CallPolicy;
  /** Limit of a call where the request has no deadline, in milliseconds; default 20000. */
  readonly timeoutMs?: number;
  readonly logger?: Logger;
}

const TIMEOUT_MS = 20_000;
const RESPONSE_LIMITS = { tensors: 4096, values: 1 << 26 };

/** The messages of a protocol. */
interface Codec {
  readonly service: string;
  readonly method: string;
  readonly probeMethod: string;
  encode(tensors: readonly FeedTensor[], context: ProcessContext): Uint8Array;
  decode(bytes: Uint8Array): { readonly version?: string; readonly tensors: NamedTensor[] };
}

export class RemoteClient implements OpClient {
  readonly #codec: Codec;
  readonly #client: ServiceClient;
  readonly #names: VariableNames;
  readonly #timeoutMs: number;
  readonly #reportedName: string;

  /** Connects at the first call. @throws CubeError INVALID_ARGUMENT for an invalid option */
  constructor(options: RemoteClientOptions) {
    const { endpoints, protocol, policy, logger, timeoutMs = TIMEOUT_MS, model } = options;
    this.#names = options.names ?? new VariableNames({});
    this.#codec =
      protocol === 'kserve' ? createKserve(options, this.#names) : createGeneral(this.#names);
    this.#timeoutMs = timeoutMs;
    this.#reportedName = model ?? '';
    const { service, probeMethod } = this.#codec;
    this.#client = new ServiceClient({
      endpoints,
      protocol: protocol === 'brpc' ? 'baidu_std' : 'grpc',
      service,
      probeMethod,
      ...(policy === undefined ? {} : { policy }),
      ...(logger === undefined ? {} : { logger }),
    });
  }

  async predict(feeds: readonly OpValues[], context: ProcessContext): Promise<readonly OpValues[]> {
    const inputs = feeds.map((feed) => this.#toTensors(feed));
    const rowCounts = inputs.map((tensors) => tensors[0]?.shape[0] ?? 1);
    const joined = joinFeeds(inputs);
    const { encode, decode, method } = this.#codec;
    const payload = encode(joined, context);
    const timeoutMs = Math.min(context.remainingMs, this.#timeoutMs);
    const { signal } = context;
    const { version, tensors } = await this.#client.call(method, payload, decode, {
      timeoutMs,
      signal,
    });
    if (version !== undefined) {
      for (const { versions } of context.requests) versions.record(this.#reportedName, version);
    }
    return this.#split(tensors, rowCounts);
  }

  async stop(): Promise<void> {
    this.#client.close();
  }

  #toTensors(feed: OpValues): FeedTensor[] {
    return Object.entries(feed).map(([alias, value]) => {
      const name = this.#names.toInput(alias);
      return { ...toInputTensor(name, value, {}), aliasName: alias === name ? '' : alias };
    });
  }

  /** @throws CubeError UNSUPPORTED when an output has no rows that belong to requests */
  #split(tensors: readonly NamedTensor[], rowCounts: readonly number[]): OpValues[] {
    const total = rowCounts.reduce((sum, count) => sum + count, 0);
    let first = 0;
    return rowCounts.map((count) => {
      const values: Record<string, unknown> = {};
      for (const tensor of tensors) {
        if (rowCounts.length > 1 && tensor.shape[0] !== total) {
          throw new CubeError(
            'UNSUPPORTED',
            `output ${tensor.name} of shape [${tensor.shape.join(', ')}] cannot be divided ` +
              `among the ${rowCounts.length} requests of a batch; set batchSize to 1`,
          );
        }
        const part = rowCounts.length > 1 ? viewRows(tensor, first, count) : tensor;
        values[tensor.name] = fromByteTensor(part);
      }
      first += count;
      return this.#names.selectOutputs(values);
    });
  }
}

/** Joins the tensors of feeds that have equal names, types and inner shapes. */
function joinFeeds(inputs: readonly (readonly FeedTensor[])[]): readonly FeedTensor[] {
  const first = requireDefined(inputs[0], 'a feed');
  if (inputs.length === 1) return first;
  return first.map(({ name, aliasName }) => {
    const parts = inputs.map((tensors) => {
      const found = tensors.find((tensor) => tensor.name === name);
      if (found !== undefined) return found;
      throw new CubeError('INVALID_ARGUMENT', `input ${name} is missing in a feed of the batch`);
    });
    return { name, aliasName, ...concatRows(parts) };
  });
}

/** Not every server knows the aliases of outputs: where there are some, all are fetched. */
function createGeneral(names: VariableNames): Codec {
  return {
    service: GENERAL_MODEL_SERVICE,
    method: 'inference',
    probeMethod: 'probe',
    encode: (tensors, { logId }) =>
      encodeGeneralRequest(tensors, {
        fetchNames: names.hasAliases ? [] : names.fetchList,
        logId,
      }),
    decode: (bytes) => {
      const tensors = decodeGeneralTensors(bytes, RESPONSE_LIMITS);
      // Servers name outputs as the model does; some give the alias only.
      return {
        tensors: tensors.map((tensor) => ({ ...tensor, name: tensor.name || tensor.aliasName })),
      };
    },
  };
}

function createKserve({ model, version = '' }: RemoteClientOptions, names: VariableNames): Codec {
  if (model === undefined || model === '') {
    throw new CubeError('INVALID_ARGUMENT', 'model: the client kserve needs the name of the model');
  }
  return {
    service: OIP_SERVICE,
    method: OIP_INFER,
    probeMethod: OIP_LIVE,
    encode: (inputs, { logId }) =>
      encodeOipInferRequest({
        modelName: model,
        modelVersion: version,
        id: logId === 0n ? '' : String(logId),
        inputs,
        outputs: names.requestedOutputs,
      }),
    decode: (bytes) => {
      const { modelVersion, outputs } = decodeOipInferResponse(bytes);
      return { version: modelVersion, tensors: [...outputs] };
    },
  };
}
