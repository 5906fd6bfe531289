/**
 * A client of pipelines: of `serving --pipeline`, and of Paddle's Pipeline Serving. Calls gRPC
 * servers in turn; a server that cannot take a call is skipped for this call.
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
import { systemClock } from '../platform/clock.ts';
import { GrpcUnaryClient } from './grpc-unary.ts';

export interface PipelineClientOptions {
  /** Default timeout of a call in milliseconds. Default 10000. */
  readonly timeoutMs?: number;
  /** The messages of the servers. Default `tensors`, v0.7 to v0.9; `plain`: v0.4 to v0.6. */
  readonly layout?: PipelineLayout;
}

export interface PipelineCallOptions {
  /** Names of the values to return; default: all. */
  readonly fetch?: readonly string[];
  /** For the logs of the servers. Default 0. */
  readonly logId?: bigint;
  /** For the whole call, in milliseconds. Default: the client's. */
  readonly timeoutMs?: number;
  /** Cancels the call. */
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

const PATH = `/${PIPELINE_SERVICE}/inference`;
const PROFILE_KEY = 'pipeline.profile';
const VERSIONS_KEY = 'hypercube-versions';
const TIMEOUT_MS = 10_000;
const MESSAGE_BYTES_MAX = 512 << 20;
const LIMITS = { tensors: 4_096, values: 1 << 26 };

export class PipelineClient {
  readonly #servers: readonly GrpcUnaryClient[];
  readonly #timeoutMs: number;
  readonly #layout: PipelineLayout;
  #next = 0;

  private constructor(endpoints: readonly string[], options: PipelineClientOptions) {
    this.#servers = endpoints.map((host) => new GrpcUnaryClient(host, MESSAGE_BYTES_MAX));
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
    const { bytes, versions } = await this.#call(request, options);
    const { errNo, errMsg, keys, values: texts, tensors } = decodePipelineResponse(bytes, LIMITS);
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

  /** Fails the calls in flight. */
  close(): void {
    for (const server of this.#servers) server.close();
  }

  async #call(
    request: Uint8Array,
    { timeoutMs = this.#timeoutMs, signal }: PipelineCallOptions,
  ): Promise<{ readonly bytes: Uint8Array; readonly versions: Record<string, string> }> {
    const deadlineMs = systemClock.nowMs() + timeoutMs;
    const first = this.#next++;
    for (let tried = 1; ; tried++) {
      const server = this.#servers[(first + tried - 1) % this.#servers.length];
      if (server === undefined) throw new CubeError('INTERNAL', 'no server');
      try {
        const leftMs = Math.max(1, deadlineMs - systemClock.nowMs());
        const { bytes, trailers } = await server.call(PATH, request, leftMs, signal);
        return { bytes, versions: parseVersions(String(trailers.get(VERSIONS_KEY)[0] ?? '')) };
      } catch (error) {
        const failure = CubeError.from(error);
        const isLast = tried === this.#servers.length || signal?.aborted === true;
        if (isLast || !failure.status.retryable) throw failure;
      }
    }
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
