/**
 * The Paddle protocol: the general model service over baidu_std, gRPC and HTTP (JSON or protobuf).
 * Specified in docs/wire/paddle.md.
 *
 * An invalid request gets a response with `err_no` and `err_msg`. A retryable error is an error of
 * the protocol, so that clients retry on another replica. Over HTTP both have the status of their
 * error code. A degraded response has `err_no` 0 and an `err_msg`.
 */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import { ERROR_TEXT_CHARS_MAX } from '../../lib/core/limits.ts';
import { isTracing } from '../../lib/platform/tracing.ts';
import { createErrorHeaders, type HttpAdmit } from '../../lib/rpc/direct-routes.ts';
import type { GrpcAdmit, GrpcHandler } from '../../lib/rpc/grpc-calls.ts';
import type { RpcHandler } from '../../lib/rpc/rpc-routes.ts';
import {
  decodeGeneralRequest,
  encodeGeneralResponse,
  GENERAL_MODEL_METHODS,
  GENERAL_MODEL_SERVICE,
  type GeneralModelMethod,
  type GeneralModelRequest,
  type GeneralModelResponse,
} from '../../proto/general-model.ts';
import { formatGeneralResponse, parseGeneralRequest } from '../../proto/general-model-json.ts';
import type { GeneralModelLimits } from '../../proto/general-tensor.ts';
import { readTraceparent } from '../../proto/trace-fields.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import { isTensorModel, type LoadedVersion } from '../engine/loaded-version.ts';
import type { Prediction } from '../engine/prediction.ts';
import type { TensorModel } from '../engine/tensor-model.ts';
import type { VersionFinder } from '../models/experiments.ts';
import {
  BaiduCallContext,
  type CallContext,
  GrpcCallContext,
  type HeadContext,
  HttpCallContext,
  HttpHeadContext,
} from './call-context.ts';
import type { Endpoints } from './endpoints.ts';
import {
  admitHead,
  checkAdmission,
  createGrpcAdmit,
  handlePrediction,
  isProtobufType,
  type ParsedGraphRequest,
  type ParsedRequest,
  type ProtocolContext,
  readBodyText,
  runUnlessLarge,
} from './handle-prediction.ts';
import { formatDebugTensor, formatGraphDebug, toPaddleGraphCall } from './paddle-graph.ts';
import { PaddleInputs } from './paddle-inputs.ts';
import { PaddleOutputs } from './paddle-outputs.ts';
import { ProfileTimer } from './profile-timer.ts';
import { ROWS_PER_REQUEST_MAX } from './request-limits.ts';

/** A model of a service with several, and the engine name of its output. */
interface PaddleEngine {
  readonly name: string;
  readonly model: string;
}

/** A configured service name and its model. */
export interface PaddleService {
  readonly name: string;
  readonly model: string;
  /** Every model gets each request, and answers one output. Default: `model` alone. */
  readonly engines?: readonly PaddleEngine[];
  /** Tensor names used by clients, to the names in the model. */
  readonly aliases?: ReadonlyMap<string, string>;
}

const REQUEST_LIMITS: GeneralModelLimits = { tensors: 4096, values: 1 << 20 };
const NEVER_ABORTED = { aborted: false };
/** Errors that concern the caller, not the rows: a status, so that clients handle them. */
const PROTOCOL_ERRORS: readonly ErrorCode[] = [
  'DEADLINE_EXCEEDED',
  'DENIED',
  'UNAUTHENTICATED',
  'RATE_LIMITED',
];
const NO_ALIASES: ReadonlyMap<string, string> = new Map();

/** The services at present: a reload may change their models. */
export interface PaddleServices {
  readonly services: readonly PaddleService[];
}

/**
 * @param current names besides GeneralModelService, which serves the only model or the first of
 *   these services; only the names at the time of the call are registered
 */
export function registerPaddle(
  fronts: Endpoints,
  context: ProtocolContext,
  current: PaddleServices = { services: [] },
): void {
  const { services } = current;
  const general = { name: GENERAL_MODEL_SERVICE };
  const shortName = GENERAL_MODEL_SERVICE.slice(GENERAL_MODEL_SERVICE.lastIndexOf('.') + 1);
  const others = services.filter(
    ({ name }) => name !== shortName && name !== GENERAL_MODEL_SERVICE,
  );
  for (const service of [general, ...others]) {
    const find = (): Partial<PaddleService> =>
      service === general ? (current.services[0] ?? {}) : findService(current, service.name);
    const endpoint = new PaddleEndpoint(context, find);
    for (const method of GENERAL_MODEL_METHODS) {
      fronts.routes.add(service.name, method, endpoint.baidu(method));
      const names = service === general ? [service.name, shortName] : [service.name];
      const options = { config: { admit: endpoint.admitHttp } };
      const handler = endpoint.http(method);
      for (const name of names) fronts.http.app.post(`/${name}/${method}`, options, handler);
      if (service === general) {
        fronts.grpc.addUnary(service.name, method, endpoint.grpc(method), endpoint.admitGrpc);
      }
    }
  }
}

/** @throws CubeError NOT_FOUND for a service that a reload has removed */
function findService({ services }: PaddleServices, name: string): PaddleService {
  const found = services.find((service) => service.name === name);
  if (found !== undefined) return found;
  throw new CubeError('NOT_FOUND', `service ${name} is not served at present`);
}

type Answer = Pick<GeneralModelResponse, 'outputs' | 'errMsg'>;

interface EngineCall {
  readonly isDebug: boolean;
  readonly service: Partial<PaddleService>;
  /** Undefined: the service has one model. */
  readonly engine: PaddleEngine | undefined;
  readonly profile: ProfileTimer;
}

/** One service over all transports. */
class PaddleEndpoint {
  readonly #context: ProtocolContext;
  readonly #getService: () => Partial<PaddleService>;
  /** Inputs and outputs of each loaded version. */
  readonly #inputs = new WeakMap<LoadedBundle, PaddleInputs>();
  readonly #outputs = new WeakMap<LoadedBundle, PaddleOutputs>();

  constructor(context: ProtocolContext, getService: () => Partial<PaddleService>) {
    this.#context = context;
    this.#getService = getService;
  }

  baidu(method: GeneralModelMethod): RpcHandler {
    return (frame, response) => {
      const { bytes, payloadStart, payloadEnd, timeoutMs } = frame;
      const { grant } = response.caller;
      this.#admit(new BaiduCallContext(timeoutMs, NEVER_ABORTED, { grant }));
      const request = decodeGeneralRequest(bytes.slice(payloadStart, payloadEnd), REQUEST_LIMITS);
      const traceparent = isTracing() ? readTraceparent(frame) : undefined;
      const deferred = response.defer();
      const call = new BaiduCallContext(timeoutMs, deferred, { grant, traceparent });
      this.#handleOrReport(method, request, call).then(
        (result) => {
          if (deferred.isAbandoned) {
            deferred.fail(makeExpiredError());
            return;
          }
          deferred.begin(0);
          deferred.output.append(encodeGeneralResponse(result));
          deferred.finish();
        },
        // The engine sees a call without a caller; if one still listens, its deadline has passed.
        (error) => deferred.fail(deferred.isAbandoned ? makeExpiredError() : error),
      );
    };
  }

  grpc(method: GeneralModelMethod): GrpcHandler {
    return async (bytes, call) => {
      const request = decodeGeneralRequest(bytes, REQUEST_LIMITS);
      return encodeGeneralResponse(
        await this.#handleOrReport(method, request, new GrpcCallContext(call)),
      );
    };
  }

  readonly admitHttp: HttpAdmit = (head) =>
    admitHead(this.#context, 'paddle', new HttpHeadContext(head), () =>
      this.#find(this.#getService()),
    );

  get admitGrpc(): GrpcAdmit {
    return createGrpcAdmit(this.#context, 'paddle', () => this.#find(this.#getService()));
  }

  #admit(call: HeadContext): void {
    checkAdmission(this.#context, 'paddle', call, () => this.#find(this.#getService()));
  }

  http(method: GeneralModelMethod) {
    return async (request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> => {
      const type = request.headers['content-type']?.split(';')[0]?.trim().toLowerCase() ?? '';
      const isProtobuf = isProtobufType(type);
      const call = new HttpCallContext({
        headers: request.headers,
        raw: reply.raw,
        grant: request.grant,
        arrivedMs: this.#context.clock.nowMs(),
      });
      const parsed = isProtobuf
        ? decodeGeneralRequest(toBytes(request.body), REQUEST_LIMITS)
        : await this.#parseJson(readBodyText(request.body), call);
      let result: GeneralModelResponse;
      try {
        result = await this.#handle(method, parsed, call);
      } catch (error) {
        const failure = CubeError.from(error);
        reply.status(failure.status.http).headers(createErrorHeaders(failure));
        result = this.#formatError(parsed, error);
      }
      reply.type(isProtobuf ? type : 'application/json');
      const body = isProtobuf
        ? encodeGeneralResponse(result)
        : Buffer.from(formatGeneralResponse(result));
      return reply.send(body);
    };
  }

  #parseJson(
    text: string,
    { signal }: CallContext,
  ): GeneralModelRequest | Promise<GeneralModelRequest> {
    const work = parseGeneralRequest(text, 'body', REQUEST_LIMITS);
    const parsed = runUnlessLarge(work, text.length);
    return 'next' in parsed ? this.#context.slices.run(parsed, signal) : parsed;
  }

  /**
   * Handles a request; an error that concerns only this request becomes a response with `err_no`.
   * @throws CubeError a retryable error, or one of PROTOCOL_ERRORS
   */
  async #handleOrReport(
    method: GeneralModelMethod,
    request: GeneralModelRequest,
    call: CallContext,
  ): Promise<GeneralModelResponse> {
    try {
      return await this.#handle(method, request, call);
    } catch (error) {
      const { code, status } = CubeError.from(error);
      if (status.retryable || PROTOCOL_ERRORS.includes(code)) throw error;
      return this.#formatError(request, error);
    }
  }

  async #handle(
    method: GeneralModelMethod,
    request: GeneralModelRequest,
    call: CallContext,
  ): Promise<GeneralModelResponse> {
    const { profileServer, logId } = request;
    const isDebug = method === 'debug';
    const profile = new ProfileTimer(this.#context.clock);
    const service = this.#getService();
    const engines = service.engines ?? [undefined];
    const answers = await Promise.all(
      engines.map((engine) => this.#predict(request, { isDebug, service, engine, profile }, call)),
    );
    profile.end();
    return {
      outputs: answers.flatMap(({ outputs }) => outputs),
      profileTime: profileServer || isDebug ? profile.times : [],
      profileServer,
      logId,
      errNo: 0,
      errMsg: answers.find(({ errMsg }) => errMsg !== '')?.errMsg ?? '',
    };
  }

  /** The outputs of one model. */
  #predict(
    { tensors, fetchNames }: GeneralModelRequest,
    { isDebug, service, engine, profile }: EngineCall,
    call: CallContext,
  ): Promise<Answer> {
    const aliases = service.aliases ?? NO_ALIASES;
    // An experiment may need a second parse, which belongs to the same step.
    let parseStep: number | undefined;
    const endParse = (): void => {
      parseStep = profile.end(parseStep);
    };
    const parseRows = (bundle: LoadedBundle): ParsedRequest<Answer> => {
      const fetch = this.#getOutputs(bundle).select(fetchNames, aliases);
      const rows = this.#getInputs(bundle).parseRows(tensors, ROWS_PER_REQUEST_MAX, aliases);
      endParse();
      return {
        bundle,
        rows,
        detail: isDebug,
        formatResponse: (prediction: Prediction) => {
          profile.end();
          const scores = {
            tensors: fetch(prediction),
            engineName: engine?.name ?? bundle.manifest.bundle,
          };
          const outputs = isDebug ? [scores, formatDebugOutput(prediction, bundle)] : [scores];
          return { outputs, errMsg: describeDegradation(prediction) };
        },
      };
    };
    const parseGraph = (graph: TensorModel): ParsedGraphRequest<Answer> => {
      const { call: graphCall, formatOutputs } = toPaddleGraphCall(
        { tensors, fetchNames },
        graph,
        aliases,
      );
      endParse();
      return {
        graph,
        call: graphCall,
        formatResponse: (prediction) => {
          profile.end();
          const results = {
            tensors: formatOutputs(prediction),
            engineName: engine?.name ?? graph.name,
          };
          const outputs = isDebug ? [results, formatGraphDebug(graph, prediction)] : [results];
          const { lookups } = prediction;
          return { outputs, errMsg: lookups === undefined ? '' : describeDegradation(lookups) };
        },
      };
    };
    const source = {
      find: (models: VersionFinder) => this.#find(engine ?? service, models),
      parse: (choose: () => LoadedVersion) => {
        const loaded = choose();
        return isTensorModel(loaded) ? parseGraph(loaded) : parseRows(loaded);
      },
    };
    return handlePrediction(this.#context, 'paddle', call, source);
  }

  #formatError(
    { profileServer, logId }: GeneralModelRequest,
    error: unknown,
  ): GeneralModelResponse {
    const { code, message, status } = CubeError.from(error);
    if (code === 'INTERNAL')
      this.#context.logger.error({ err: error, logId: `${logId}` }, 'call failed');
    return {
      outputs: [],
      profileTime: [],
      profileServer,
      logId,
      errNo: status.brpc,
      errMsg: message.slice(0, ERROR_TEXT_CHARS_MAX),
    };
  }

  /** @param engine or the service, whose model admission looks at */
  #find(
    { model }: Pick<Partial<PaddleService>, 'model'>,
    models: VersionFinder = this.#context.models,
  ): LoadedVersion {
    return model === undefined ? models.findOnly() : models.find(model);
  }

  #getInputs(bundle: LoadedBundle): PaddleInputs {
    const feeds = this.#inputs.get(bundle) ?? new PaddleInputs(bundle);
    this.#inputs.set(bundle, feeds);
    return feeds;
  }

  #getOutputs(bundle: LoadedBundle): PaddleOutputs {
    const fetch = this.#outputs.get(bundle) ?? new PaddleOutputs(bundle);
    this.#outputs.set(bundle, fetch);
    return fetch;
  }
}

/** The err_msg of a response that is not an error: empty unless it is degraded. */
function describeDegradation({
  degraded,
  unavailable,
}: Pick<Prediction, 'degraded' | 'unavailable'>): string {
  if (!degraded) return '';
  return `degraded: ${unavailable} lookups had no answer; their default rows were used`;
}

/** The additional output of `debug`: strings of the form `name=value`. */
function formatDebugOutput(prediction: Prediction, { manifest }: LoadedBundle) {
  const { version, unseen, unavailable, degraded, slots = [], timings } = prediction;
  const strings = [
    `model=${manifest.bundle}`,
    `version=${manifest.version}`,
    `tables_version=${version}`,
    `unseen=${unseen}`,
    `unavailable=${unavailable}`,
    `degraded=${degraded}`,
    `queue_micros=${Math.round(timings.queueMicros)}`,
    `lookup_micros=${Math.round(timings.lookupMicros)}`,
    `infer_micros=${Math.round(timings.inferMicros)}`,
    ...slots.map(
      ({ slot, ...counts }) =>
        `slot ${slot}: hit=${counts.hit} unseen=${counts.unseen} unavailable=${counts.unavailable}`,
    ),
  ];
  return formatDebugTensor(strings);
}

function makeExpiredError(): CubeError {
  return new CubeError(
    'DEADLINE_EXCEEDED',
    'the deadline passed before the response was ready; send fewer rows, or a larger timeout_ms',
  );
}

function toBytes(body: unknown): Uint8Array {
  return body instanceof Uint8Array ? body : new Uint8Array(0);
}
