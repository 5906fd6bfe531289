/**
 * The pipeline service: gRPC and baidu_std `PipelineService/inference`, and HTTP
 * `POST /{name}/{method}`. Specified in docs/wire/serving.md.
 *
 * A request that fails is answered with `err_no` and `err_msg`, over HTTP with status 200, as by
 * the original. Only requests that are not admitted fail by the protocol, so that clients try
 * another server.
 */
import type { CallGrant } from '../../lib/access/access-gate.ts';
import { CubeError, type ErrorCode, requireDefined } from '../../lib/core/errors.ts';
import { quoteInput } from '../../lib/core/shown-input.ts';
import {
  type HttpAdmit,
  type HttpRequest,
  type HttpResponse,
  JSON_CONTENT_TYPE,
} from '../../lib/rpc/direct-routes.ts';
import type { GrpcHandler } from '../../lib/rpc/grpc-calls.ts';
import { handleFastifyRequest } from '../../lib/rpc/http-server.ts';
import type { RpcHandler } from '../../lib/rpc/rpc-routes.ts';
import type { GeneralModelLimits } from '../../proto/general-tensor.ts';
import {
  decodePipelineRequest,
  encodePipelineResponse,
  PIPELINE_ERROR,
  PIPELINE_SERVICE,
  type PipelineLayout,
  type PipelineRequest,
  type PipelineResponse,
} from '../../proto/pipeline.ts';
import { formatPipelineResponse, parsePipelineRequest } from '../../proto/pipeline-json.ts';
import { LazyAbort } from '../pipeline/lazy-abort.ts';
import type { OpValues } from '../pipeline/op.ts';
import {
  BaiduCallContext,
  type CallContext,
  GrpcCallContext,
  HttpCallContext,
} from './call-context.ts';
import type { Endpoints } from './endpoints.ts';
import { type ProtocolContext, readBodyText, runUnlessLarge } from './handle-prediction.ts';
import { formatVersions, isProductError, toErrorCode, VERSIONS_KEY } from './pipeline-codes.ts';
import { formatProfile, type OpTime } from './pipeline-profile.ts';
import {
  makeErrorResponse,
  PROFILE_KEY,
  packPipelineResponse,
  toErrorResponse,
  type UnpackedRequest,
  unpackPipelineRequest,
} from './pipeline-values.ts';
import { TIMEOUT_MS_MAX } from './request-limits.ts';

/** A pipeline, as this protocol calls it. */
export interface PipelineRunner {
  /** Never rejects. @param options `timeoutMs`: time left in milliseconds */
  run(
    request: UnpackedRequest & { readonly logId: bigint },
    options: { readonly signal: AbortSignal | LazyAbort; readonly timeoutMs: number },
  ): Promise<RunAnswer>;
}

interface RunAnswer {
  readonly errNo: number;
  readonly errMsg: string;
  readonly values: OpValues;
  readonly timings: readonly OpTime[];
  readonly versions: Readonly<Record<string, string>>;
}

export interface PipelineService {
  /** Requests with another name are answered with err_no 3002; over gRPC the name may be empty. */
  readonly name: string;
  readonly engine: PipelineRunner;
  /** The layout of requests that fit both. Default: `tensors`. */
  readonly layout?: PipelineLayout;
  /** Arrays of answers as tensors instead of text. Default: false. */
  readonly packTensors?: boolean;
}

/** A pipeline with a request; it is not stopped before `release`. */
export interface UsedPipeline {
  readonly service: PipelineService | undefined;
  release(): void;
}

/** Where requests find the pipeline, which a reload replaces. */
export interface PipelineSource {
  acquire(): UsedPipeline;
}

const METHOD = 'inference';
/** The usual method over HTTP, which no other route has. */
const HTTP_METHOD = 'prediction';
/** What clients send, among them curl with `-d`. */
const CONTENT_TYPES = ['', JSON_CONTENT_TYPE, 'application/x-www-form-urlencoded'];
/** As many 64-bit values as the largest message has bytes in the original: 256 MiB. */
const REQUEST_LIMITS: GeneralModelLimits = { tensors: 4_096, values: 1 << 25 };
const NEVER_ABORTED = new AbortController().signal;
type PipelineCall = Pick<CallContext, 'timeoutMs'> & { readonly signal: AbortSignal | LazyAbort };

interface HandledRequest {
  readonly response: PipelineResponse;
  /** Value of VERSIONS_KEY; empty: no version took part. */
  readonly versions: string;
}

/** @param name of the pipeline at the start; a reload may change it */
export function registerPipeline(
  { grpc, http: { app, directRoutes }, routes }: Endpoints,
  context: ProtocolContext,
  source: PipelineSource,
  name: string,
): void {
  const endpoint = new PipelineEndpoint(context, source);
  const checkOpen = (): void => context.admission.checkOpen();
  grpc.addUnary(PIPELINE_SERVICE, METHOD, endpoint.grpc, checkOpen);
  routes.add(PIPELINE_SERVICE, METHOD, endpoint.baidu);
  const admit: HttpAdmit = ({ grant }) => {
    checkOpen();
    endpoint.checkGrant(grant);
    return undefined;
  };
  app.post('/:name/:method', { config: { admit } }, (request, reply) =>
    handleFastifyRequest(endpoint.http, request, reply),
  );
  directRoutes.add({
    path: `/${name}/${HTTP_METHOD}`,
    contentTypes: CONTENT_TYPES,
    admit,
    handler: (call) => endpoint.http({ ...call, params: { name } }),
    readsBodyAtOnce: true,
  });
}

class PipelineEndpoint {
  readonly #context: ProtocolContext;
  readonly #source: PipelineSource;

  constructor(context: ProtocolContext, source: PipelineSource) {
    this.#context = context;
    this.#source = source;
  }

  /** @throws CubeError DENIED */
  checkGrant(grant: CallGrant | undefined): void {
    if (grant === undefined) return;
    const used = this.#source.acquire();
    try {
      grant.principal.checkModel(used.service?.name ?? '');
    } finally {
      used.release();
    }
  }

  readonly grpc: GrpcHandler = async (bytes, call) => {
    const timeout = new GrpcCallContext(call);
    this.checkGrant(call.grant);
    const handled = await this.#handle((service) => decodeRequest(bytes, service), {
      timeoutMs: () => timeout.timeoutMs(),
      signal: call.abortSignal,
    });
    if (handled.versions !== '') call.setTrailer(VERSIONS_KEY, handled.versions);
    return encodePipelineResponse(handled.response);
  };

  readonly baidu: RpcHandler = ({ bytes, payloadStart, payloadEnd, timeoutMs }, response) => {
    this.#context.admission.checkOpen();
    this.checkGrant(response.caller.grant);
    const message = bytes.slice(payloadStart, payloadEnd);
    const deferred = response.defer();
    const context = new BaiduCallContext(timeoutMs, NEVER_ABORTED);
    const call = { timeoutMs: () => context.timeoutMs(), signal: NEVER_ABORTED };
    this.#handle((service) => decodeRequest(message, service), call).then(
      (handled) => {
        deferred.begin(0);
        deferred.output.append(encodePipelineResponse(handled.response));
        deferred.finish();
      },
      (error) => deferred.fail(error),
    );
  };

  readonly http = async ({ headers, body, raw, params }: HttpRequest): Promise<HttpResponse> => {
    const { name = '' } = params;
    const abort = new LazyAbort();
    raw.once('close', () => {
      if (!raw.writableFinished) abort.abort(undefined);
    });
    const context = new HttpCallContext({ headers, raw });
    const call = { timeoutMs: () => context.timeoutMs(), signal: abort };
    const parse = (): PipelineRequest | Promise<PipelineRequest> => {
      const text = readBodyText(body);
      const work = runUnlessLarge(parsePipelineRequest(text, 'body', REQUEST_LIMITS), text.length);
      return 'next' in work ? this.#context.slices.run(work, abort) : work;
    };
    // The path binds the name, as the original's gateway does.
    const { response, versions } = await this.#handle(
      async () => ({ ...(await parse()), name }),
      call,
    );
    return {
      type: JSON_CONTENT_TYPE,
      ...(versions !== '' && { headers: { [VERSIONS_KEY]: versions } }),
      body: formatPipelineResponse(response),
    };
  };

  /** @throws CubeError STOPPING, OVERLOADED; other errors are in the response */
  async #handle(
    parse: (service: PipelineService) => PipelineRequest | Promise<PipelineRequest>,
    call: PipelineCall,
  ): Promise<HandledRequest> {
    const { admission, metrics, requestLog, clock } = this.#context;
    const startMs = clock.nowMs();
    try {
      admission.enter();
    } catch (error) {
      metrics.recordFailure('pipeline', CubeError.from(error).code);
      throw error;
    }
    let handled: HandledRequest;
    const used = this.#source.acquire();
    try {
      const service = requireDefined(used.service, 'the pipeline');
      handled = await this.#run(await parse(service), service, call);
    } catch (error) {
      this.#logInternal(error);
      handled = { response: toErrorResponse(error), versions: '' };
    } finally {
      used.release();
      admission.leave();
    }
    const durationMs = clock.nowMs() - startMs;
    const code = toMetricCode(handled.response.errNo);
    if (code === 'OK') metrics.recordAnswer('pipeline');
    else metrics.recordFailure('pipeline', code);
    metrics.recordDuration('pipeline', durationMs / 1_000);
    requestLog.record({
      protocol: 'pipeline',
      code,
      durationMs,
      model: undefined,
      prediction: undefined,
    });
    return handled;
  }

  async #run(
    request: PipelineRequest,
    { name, engine, packTensors = false }: PipelineService,
    call: PipelineCall,
  ): Promise<HandledRequest> {
    if (request.name !== '' && request.name !== name) {
      const message = `there is no service ${quoteInput(request.name)}; this server has ${name}`;
      return { response: makeErrorResponse(PIPELINE_ERROR.NO_SERVICE, message), versions: '' };
    }
    const { values, parameters } = unpackPipelineRequest(request);
    const timeoutMs = call.timeoutMs() ?? TIMEOUT_MS_MAX;
    const { logId } = request;
    const options = { signal: call.signal, timeoutMs };
    const answer = await engine.run({ logId, values, parameters }, options);
    const versions = formatVersions(answer.versions);
    if (answer.errNo !== 0) {
      return { response: makeErrorResponse(answer.errNo, answer.errMsg), versions };
    }
    const response = packPipelineResponse(answer.values, packTensors);
    if (parameters[PROFILE_KEY] !== '1' || response.errNo !== 0) return { response, versions };
    const keys = [...response.keys, PROFILE_KEY];
    const texts = [...response.values, formatProfile(answer.timings)];
    return { response: { ...response, keys, values: texts }, versions };
  }

  #logInternal(error: unknown): void {
    if (CubeError.from(error).code !== 'INTERNAL') return;
    this.#context.logger.error({ err: error }, 'pipeline request failed');
  }
}

function decodeRequest(bytes: Uint8Array, { layout }: PipelineService): PipelineRequest {
  return decodePipelineRequest(bytes, REQUEST_LIMITS, layout);
}

/** What an err_no counts as in the metrics. */
function toMetricCode(errNo: number): ErrorCode | 'OK' {
  return errNo === 0 || isProductError(errNo) ? 'OK' : toErrorCode(errNo);
}
