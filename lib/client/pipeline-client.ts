/**
 * A client of pipelines: of `serving --pipeline`, and of Paddle's Pipeline Serving. Calls gRPC
 * servers with the balancing, retry budget and limits of lookups; a call that a server has failed
 * goes to another one, so a pipeline must be safe to repeat.
 */

import type { GeneralTensor } from '../../proto/general-tensor.ts';
import {
  decodePipelineResponse,
  encodePipelineRequest,
  PIPELINE_SERVICE,
  type PipelineLayout,
  type PipelineRequest,
} from '../../proto/pipeline.ts';
import { readPipelineTensor, writePipelineTensor } from '../../proto/pipeline-tensors.ts';
import { CubeError } from '../core/errors.ts';
import { formatNumpyText, isNumpyText, parseNumpyText } from '../core/numpy-text.ts';
import {
  findArrayType,
  fromByteTensor,
  isTensor,
  type PipelineTensor,
  toByteTensor,
} from '../core/pipeline-tensor.ts';
import type { Credentials } from '../rpc/credentials.ts';
import type { CallPolicy } from './call-policy.ts';
import type { ClientStats } from './client-stats.ts';
import type { ClientLogger } from './replica.ts';
import { ServiceClient } from './service-client.ts';

export interface PipelineClientOptions {
  /** Default timeout of a call in milliseconds. Default 10000. */
  readonly timeoutMs?: number;
  /** The messages of the servers. Default `tensors`, v0.7 to v0.9; `plain`: v0.4 to v0.6. */
  readonly layout?: PipelineLayout;
  /** Default: round robin, each server at most once for a call, and no backup requests. */
  readonly policy?: CallPolicy;
  /** API key of every call, and whether connections use TLS. Default: neither. */
  readonly credentials?: Credentials;
  /** Logs when a server fails or recovers. */
  readonly logger?: ClientLogger;
}

export interface PipelineCallOptions {
  /** Names of the values to return; default: all. */
  readonly fetch?: readonly string[];
  /** For the logs of the servers. Default 0. */
  readonly logId?: bigint;
  /** For the whole call, in milliseconds. Default: the client's. */
  readonly timeoutMs?: number;
  /** Cancels the call, which rejects with the signal's reason. */
  readonly signal?: AbortSignal;
  /** Send arrays as tensors instead of text. Default false. */
  readonly packTensors?: boolean;
  /** Ask for the times of the ops. Default false. */
  readonly profile?: boolean;
  /** Name of the service. Default: not checked by the server. */
  readonly name?: string;
}

/** Text, or an array. A bare typed array has one dimension. */
export type PipelineValue = string | PipelineTensor | ArrayBufferView;

export interface PipelineResult {
  /** 0, or why the pipeline failed. */
  readonly errNo: number;
  readonly errMsg: string;
  /** Arrays as tensors, also those that the server sent as NumPy text. */
  readonly values: Readonly<Record<string, string | PipelineTensor>>;
  /** The times of the ops, if they were asked for and the server sends them. */
  readonly profile?: string;
  /** Model → version that took part, where the server says so. */
  readonly versions: Readonly<Record<string, string>>;
}

const METHOD = 'inference';
const PROFILE_KEY = 'pipeline.profile';
const VERSIONS_KEY = 'hypercube-versions';
const TIMEOUT_MS = 10_000;
const MESSAGE_BYTES_MAX = 512 << 20;
const LIMITS = { tensors: 4_096, values: 1 << 26 };

export class PipelineClient {
  readonly #client: ServiceClient;
  readonly #timeoutMs: number;
  readonly #layout: PipelineLayout;

  private constructor(endpoints: readonly string[], options: PipelineClientOptions) {
    const { policy, credentials, logger } = options;
    this.#client = new ServiceClient({
      endpoints,
      protocol: 'grpc',
      service: PIPELINE_SERVICE,
      probeMethod: 'probe',
      // A backup would run the whole pipeline a second time.
      policy: { backupRequest: 'never', ...policy },
      transport: { credentials, messageBytesMax: MESSAGE_BYTES_MAX, trailer: VERSIONS_KEY },
      ...(logger !== undefined && { logger }),
    });
    this.#timeoutMs = options.timeoutMs ?? TIMEOUT_MS;
    this.#layout = options.layout ?? 'tensors';
  }

  /**
   * Connections are opened by the first calls.
   * @param endpoints host:port of each server
   * @throws CubeError INVALID_ARGUMENT
   */
  static connect(
    endpoints: string | readonly string[],
    options: PipelineClientOptions = {},
  ): PipelineClient {
    const list = typeof endpoints === 'string' ? [endpoints] : endpoints;
    const wrong = list.find((endpoint) => !/^[^/\s]+:\d{1,5}$/.test(endpoint));
    if (wrong !== undefined || list.length === 0) {
      const got = JSON.stringify(wrong ?? list);
      throw new CubeError('INVALID_ARGUMENT', `endpoints: expected host:port, got ${got}`);
    }
    return new PipelineClient(list, options);
  }

  /**
   * Runs the pipeline; start several calls without awaiting them to run them at the same time.
   * Failures of the pipeline are in the result.
   * @throws CubeError UNAVAILABLE, OVERLOADED, DEADLINE_EXCEEDED and others of the protocol
   */
  async predict(
    values: Readonly<Record<string, PipelineValue>>,
    options: PipelineCallOptions = {},
  ): Promise<PipelineResult> {
    const request = encodePipelineRequest(makeRequest(values, options, this.#layout));
    const { timeoutMs = this.#timeoutMs, signal } = options;
    const { answer, versions } = await this.#client.call(
      METHOD,
      request,
      (bytes, trailer) => ({
        answer: decodePipelineResponse(bytes, LIMITS),
        versions: parseVersions(Buffer.from(trailer).toString()),
      }),
      { timeoutMs, signal },
    );
    const { errNo, errMsg, keys, values: texts, tensors } = answer;
    const result = new Map<string, string | PipelineTensor>();
    let profile: string | undefined;
    for (const [i, key] of keys.entries()) {
      const text = texts[i] ?? '';
      if (key === PROFILE_KEY) profile = text;
      else result.set(key, isNumpyText(text) ? parseText(text, key) : text);
    }
    for (const tensor of tensors) result.set(tensor.name, toValue(tensor));
    const { fetch } = options;
    const kept = [...result].filter(([name]) => fetch === undefined || fetch.includes(name));
    return {
      errNo,
      errMsg,
      values: Object.fromEntries(kept),
      ...(profile !== undefined && { profile }),
      versions,
    };
  }

  /** Counters, and the state of each server. */
  get stats(): ClientStats {
    return this.#client.stats;
  }

  /** Fails the calls in flight. */
  close(): void {
    this.#client.close();
  }
}

function makeRequest(
  values: Readonly<Record<string, PipelineValue>>,
  { logId = 0n, packTensors = false, profile = false, name = '' }: PipelineCallOptions,
  layout: PipelineLayout,
): PipelineRequest {
  const keys: string[] = [];
  const texts: string[] = [];
  const tensors: GeneralTensor[] = [];
  for (const [key, value] of Object.entries(values)) {
    if (typeof value !== 'string' && packTensors) {
      tensors.push(writePipelineTensor(key, toByteTensor(toTensor(key, value))));
      continue;
    }
    keys.push(key);
    texts.push(
      typeof value === 'string' ? value : formatNumpyText(toByteTensor(toTensor(key, value))),
    );
  }
  if (profile) {
    keys.push(PROFILE_KEY);
    texts.push('1');
  }
  const method = name === '' ? '' : 'prediction';
  return { layout, keys, values: texts, tensors, name, method, logId, clientIp: '' };
}

function toTensor(key: string, value: PipelineTensor | ArrayBufferView): PipelineTensor {
  if (isTensor(value)) return value;
  const dataType = findArrayType(value);
  if (dataType === undefined) {
    throw new CubeError('INVALID_ARGUMENT', `value ${key}: expected text, a tensor or an array`);
  }
  const data = value as PipelineTensor['data'];
  return { dataType, shape: [data.length], data } as PipelineTensor;
}

/** Text that begins as an array but is none stays text. */
function parseText(text: string, key: string): string | PipelineTensor {
  try {
    return fromByteTensor(parseNumpyText(text, key, LIMITS.values));
  } catch {
    return text;
  }
}

function toValue(tensor: GeneralTensor): string | PipelineTensor {
  const value = readPipelineTensor(tensor);
  return typeof value === 'string' ? value : fromByteTensor(value);
}

function parseVersions(text: string): Record<string, string> {
  const pairs = text.split(',').filter((pair) => pair.includes('='));
  return Object.fromEntries(
    pairs.map((pair) => {
      const at = pair.indexOf('=');
      return [pair.slice(0, at), pair.slice(at + 1)];
    }),
  );
}
